"""Values of a report that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def replace_non_finite(value: Any) -> Any:
    """The same value with None for numbers that JSON does not have, and words for keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(item) for item in value]
    return value
