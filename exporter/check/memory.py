"""Memory that Python freed goes back to the system before a stage that needs much of it."""

from __future__ import annotations

import ctypes
import gc


def release_memory() -> None:
    """Let the C library return freed pages; does nothing where it cannot.

    Sessions leave hundreds of megabytes of freed blocks between live ones, which the allocator keeps otherwise.
    """
    gc.collect()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    trim(0)
