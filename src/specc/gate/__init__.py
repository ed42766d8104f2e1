"""The gate: lint, certificate, law, equality, speed. It judges the shipped runtime on this device, never
repairs.

The package is also a function: `specc.gate(folder)` is `gate_bundle(folder)`. Both have one name, and Python
puts the package in the function's place as soon as a module of it is imported; so the package itself can be
called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from specc.gate.bundle import gate_bundle
from specc.gate.checks import Check
from specc.gate.run import GateResult, run_gate
from specc.progress import Progress, no_progress

__all__ = ["Check", "GateResult", "gate_bundle", "run_gate"]


class GatePackage(ModuleType):
    """This package, called as `gate_bundle`."""

    def __call__(
        self,
        bundle: str | Path,
        *,
        trials: int | None = None,
        seed: int = 0,
        threads: int | Sequence[int] = 0,
        certificates: str | Path | None = None,
        report: str | Path | None = None,
        progress: Progress = no_progress,
    ) -> dict[str, Any]:
        """Certify the bundle in a folder on this device; see `gate_bundle`."""
        return gate_bundle(
            bundle,
            trials=trials,
            seed=seed,
            threads=threads,
            certificates=certificates,
            report=report,
            progress=progress,
        )


sys.modules[__name__].__class__ = GatePackage
