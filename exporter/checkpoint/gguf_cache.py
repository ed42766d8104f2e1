"""transformers reads the head of a GGUF and makes its table of names many times over; here each is made once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

REPEATED = ("GGUFReader", "get_tensor_name_map")


@contextlib.contextmanager
def cache_gguf_reads() -> Iterator[None]:
    """While the block runs, the gguf package gives the same reader for the same file, the same table for a model."""
    import gguf

    package: Any = gguf
    before = {name: getattr(package, name) for name in REPEATED}
    for name, made in before.items():
        setattr(package, name, functools.cache(made))
    try:
        yield
    finally:
        for name, made in before.items():
            setattr(package, name, made)
