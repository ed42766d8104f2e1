"""Return freed memory to the system before a stage that needs much of it."""

from __future__ import annotations

import ctypes
import gc


def release_memory() -> None:
    """Make the C library return freed pages; does nothing where it has no malloc_trim.

    Sessions leave hundreds of megabytes of freed blocks between live ones, which the allocator would keep.
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
