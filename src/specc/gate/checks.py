"""What every judge returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One number held against one limit; `seed` repeats it, 0 where nothing is drawn."""

    name: str
    limit: float
    value: float
    passed: bool
    seed: int = 0
