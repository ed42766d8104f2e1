"""Drafters of the C library that read files or a target's hidden states, as parts of a model."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specc.runtime._ffi import Library, ffi
from specc.runtime.parts import Native


@dataclass(frozen=True)
class StaticNgram:
    """Looks the context up in a table of the target's own answers (draft_table.bin); q is one-hot."""

    path: Path
    n_ids: int                                 # of the tokenizer, as the table says too
    min_count: int = 1                         # how often a continuation must have been seen

    def native(self, library: Library) -> Native:
        """specc_table_drafter, which maps the file."""
        out = ffi.new("specc_drafter *")
        path = ffi.new("char[]", str(self.path).encode())
        library.check(library.c.specc_table_drafter(path, self.n_ids, self.min_count, out))
        return out, []
