"""Read a GGUF's header and build its table of names once: transformers does both many times."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

REPEATED = ("GGUFReader", "get_tensor_name_map")


@contextlib.contextmanager
def cache_gguf_reads() -> Iterator[None]:
    """While the block runs, the gguf package caches its reader by file and its table of names by model."""
    import gguf

    package: Any = gguf
    before = {name: getattr(package, name) for name in REPEATED}
    for name, function in before.items():
        setattr(package, name, functools.cache(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(package, name, function)
