"""Drafters of the C library that read files or a target's hidden states, as parts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import SpeccError
from specc.runtime._ffi import Library, ffi
from specc.runtime.parts import Native


@dataclass(frozen=True)
class StaticNgram:
    """Looks the context up in a table of the target's own answers (draft_table.bin); q is one-hot."""

    path: Path
    n_ids: int  # of the tokenizer, as the table says too
    min_count: int = 1  # how often a continuation must have been seen

    def native(self, library: Library) -> Native:
        """specc_table_drafter, which maps the file."""
        out = ffi.new("specc_drafter *")
        path = ffi.new("char[]", str(self.path).encode())
        library.check(library.c.specc_table_drafter(path, self.n_ids, self.min_count, out))
        return out, []


@dataclass(frozen=True, eq=False)
class TableHeads:
    """Parallel heads as tables: row h of a call is logits[h, id of the hidden state]."""

    logits: npt.NDArray[np.float32]  # [heads, n, vocab]

    def native(self, library: Library) -> Native:
        """specc_table_heads; the table is copied."""
        table, out = np.ascontiguousarray(self.logits, np.float32), ffi.new("specc_backend *")
        heads, n, vocab = table.shape
        data = ffi.cast("float *", table.ctypes.data)
        library.check(library.c.specc_table_heads(data, n, vocab, heads, out))
        return out, []


@dataclass(frozen=True, eq=False)
class HeadDraft:
    """A trained head over the target's hidden states; `ids`: its reduced vocabulary, None for all n_ids."""

    kind: str  # "feature" (own cache) or "medusa" (parallel heads)
    engine: Any  # Ort, Table or TableHeads
    hidden: int  # columns of the target's hidden states
    n_ids: int
    ids: Sequence[int] | None = None  # strictly rising
    stop: float = 0.0  # no node whose q has a smaller largest probability

    def native(self, library: Library) -> Native:
        """specc_feature_drafter or specc_medusa_drafter, which take engine and map over."""
        engine, keep = self.engine.native(library)
        out, options = ffi.new("specc_drafter *"), ffi.new("specc_head_options *")
        options.engine, options.map, options.stop, options.hidden = engine, ffi.NULL, self.stop, self.hidden
        make = {"feature": library.c.specc_feature_drafter, "medusa": library.c.specc_medusa_drafter}[
            self.kind
        ]
        try:
            options.map = self._map(library)
            library.check(make(options, out))
        except SpeccError:
            library.c.specc_draft_map_free(ffi.cast("specc_draft_map *", options.map))
            if engine.release != ffi.NULL:
                engine.release(engine.self)
            raise
        return out, [engine, keep]

    def _map(self, library: Library) -> Any:
        if self.ids is None:
            return ffi.NULL
        out = ffi.new("specc_draft_map **")
        library.check(library.c.specc_draft_map_create(list(self.ids), len(self.ids), self.n_ids, out))
        return out[0]


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A small draft speeds up a middle model; all that it emits goes to the target with the middle model's own q."""

    middle: Any  # Table, Ort or Backend: the engine that drafts for the target
    small: Any  # Ngram, StaticNgram, ModelDraft, or Staged of them
    n_ids: int  # ids that may be sampled, as the target's
    k: int = 4  # tokens that the small draft proposes at a time

    def native(self, library: Library) -> Native:
        """specc_hierarchy_drafter, which takes both over."""
        (middle, keep), (small, kept) = self.middle.native(library), self.small.native(library)
        out, options = ffi.new("specc_drafter *"), ffi.new("specc_hierarchy_options *")
        options.middle, options.small, options.n_ids, options.k = middle, small, self.n_ids, self.k
        try:
            library.check(library.c.specc_hierarchy_drafter(options, out))
        except SpeccError:
            for part in (middle, small):
                if part.release != ffi.NULL:
                    part.release(part.self)
            raise
        return out, [middle, keep, small, kept]


@dataclass(frozen=True, eq=False)
class Staged:
    """A chain of drafters: at each depth the first one that answers proposes the node."""

    stages: Sequence[Any]

    def native(self, library: Library) -> Native:
        """specc_staged_drafter, which takes the stages over."""
        parts = [stage.native(library) for stage in self.stages]
        array, out = ffi.new("specc_drafter[]", len(parts)), ffi.new("specc_drafter *")
        for i, (part, _) in enumerate(parts):
            array[i] = part[0]
        library.check(library.c.specc_staged_drafter(array, len(parts), out))
        return out, [parts]
