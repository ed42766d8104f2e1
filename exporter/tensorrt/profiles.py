"""Optimization profiles: one for each width, checked before a builder starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specc.errors import InputError

MOST = 32
"""Profiles of one engine; a recipe gives K + 2."""


@dataclass(frozen=True)
class Profile:
    """Fixed shapes of one width: minimum, optimum and maximum are the same number of rows."""

    rows: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs with a symbolic axis."""
        return {"input_ids": (1, self.rows), "position": (1, self.rows), "logit_rows": (self.rows,)}


def make_profiles(widths: Sequence[int], context: int, capacity: int) -> tuple[Profile, ...]:
    """Profile j takes widths[j] rows. Raises InputError for widths that no engine can have."""
    fault = find_fault(widths, context, capacity)
    if fault:
        raise InputError(f"widths {list(widths)} with context {context} and {capacity} cache slots: {fault}")
    return tuple(map(Profile, widths))


def find_fault(widths: Sequence[int], context: int, capacity: int) -> str | None:
    """What is wrong with these widths; None where nothing is."""
    if not widths or any(type(width) is not int or width < 1 for width in widths):
        return "each must be a whole number from 1 on"
    if list(widths) != sorted(set(widths)):
        return "they must rise, so that profile and width go by the same number"
    if len(widths) > MOST:
        return f"{len(widths)} profiles are more than {MOST}; take a smaller K"
    if context < 1 or capacity < context + widths[-1]:
        return f"the widest call needs {context + widths[-1]} slots"
    return None
