"""Drafters of a model: those of the C library, and the base class for one in Python.

A drafter is described by a small object; `native(library)` gives its specc_drafter and what must stay alive
as long as it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import SpeccError
from specc.runtime._ffi import Library, ffi
from specc.runtime.callbacks import Calls, Native, chars
from specc.runtime.request import RULES


@dataclass(frozen=True)
class Ngram:
    """Prompt lookup: proposes what followed the longest earlier match of the last tokens; q is one-hot."""

    min_match: int = 2
    max_match: int = 4

    def native(self, library: Library) -> Native:
        """specc_ngram_drafter."""
        out = ffi.new("specc_drafter *")
        library.check(library.c.specc_ngram_drafter(self.min_match, self.max_match, out))
        return out, []


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
class ModelDraft:
    """An independent draft engine with its own cache."""

    engine: Any  # Table, Ort or Backend

    def native(self, library: Library) -> Native:
        """specc_model_drafter, which takes the engine over."""
        engine, keep = self.engine.native(library)
        out = ffi.new("specc_drafter *")
        library.check(library.c.specc_model_drafter(engine, out))
        return out, [engine, keep]


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
    """A small draft speeds up a middle model, whose tokens go to the target with its own q."""

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


@dataclass(frozen=True)
class Node:
    """One proposed token and the distribution it was drawn from; q None is one-hot."""

    token: int
    q: npt.NDArray[np.float64] | None = None  # [n_ids], the very array that DraftContext.draw returned
    parent: int | None = None  # node before it, -1 the current token; None: the one before in the list


class DraftContext:
    """What a Python drafter sees of one round."""

    def __init__(self, c: Any, library: Library) -> None:
        self._c, self._library = c, library
        data: Any = ffi.buffer(c.tokens, 4 * c.n_tokens)
        self.tokens: npt.NDArray[np.int32] = np.frombuffer(
            data, np.int32
        )  # [n_tokens] committed, prompt first
        self.n_prompt, self.k, self.n_ids = int(c.n_prompt), int(c.k), int(c.n_ids)
        self.rule, self.seed, self.sample = RULES[c.rule], int(c.seed), int(c.sample)

    def draw(self, logits: npt.NDArray[np.float32], depth: int) -> Node:
        """Shapes logits [n_logits] by the request's options and draws node `depth` of this round."""
        row = np.ascontiguousarray(logits, np.float32)
        q, token = np.empty(self.n_ids, np.float64), ffi.new("int32_t *")
        self._library.check(
            self._library.c.specc_draft_draw(
                self._c.sampler,
                ffi.cast("float *", row.ctypes.data),
                row.size,
                depth,
                ffi.cast("double *", q.ctypes.data),
                token,
            )
        )
        return Node(token[0], q)


class Drafter:
    """A drafter written in Python: override `propose`, and the others when it keeps state.

    >>> import numpy as np
    >>> from specc import Drafter, Model
    >>> class Repeat(Drafter):
    ...     def propose(self, state, context):
    ...         return [int(context.tokens[-1])] * context.k
    >>> target = 8.0 * np.eye(4, dtype=np.float32)  # a Markov table: each id is followed by itself
    >>> with Model.table(target, drafter=Repeat()) as model, model.session() as session:
    ...     result = session.run([2], temperature=0, max_new_tokens=10)
    >>> result.tokens == [2] * 10, result.stats["accepted"] == result.stats["proposed"] > 0
    (True, True)
    """

    name = "python"

    def open(self) -> Any:
        """State for one session."""
        return None

    def propose(self, state: Any, context: DraftContext) -> Sequence[Node | int]:
        """At most context.k tokens, a chain; every token drawn from a q must be returned."""
        raise NotImplementedError

    def commit(self, state: Any, n_keep: int) -> None:
        """The first n_keep committed ids still hold."""

    def close(self, state: Any) -> None:
        """The session is gone."""

    def native(self, library: Library) -> Native:
        """A specc_drafter whose functions call this object."""
        out, name = ffi.new("specc_drafter *"), chars(self.name)
        out.name = name
        calls = _DrafterCalls(self, library)
        for member in ("open", "propose", "commit", "close"):
            setattr(out, member, calls.pointers[member])
        return out, [name, calls]


class _DrafterCalls(Calls):
    failure = "SPECC_E_DRAFT"

    def __init__(self, drafter: Drafter, library: Library) -> None:
        super().__init__(library)
        self.drafter = drafter
        self.kept: dict[int, list[Any]] = {}
        self.add("open", "int(void *, void **)", lambda _self, pointer: self.put(pointer, drafter.open()))
        self.add("propose", "int(void *, specc_draft_context *, specc_proposal *)", self.propose)
        self.add("commit", "int(void *, int32_t)", lambda state, n: drafter.commit(self.get(state), n))
        self.add("close", "void(void *)", self.close)

    def propose(self, pointer: Any, c: Any, out: Any) -> None:
        """Asks the drafter and writes its chain; the q arrays stay alive until the next proposal."""
        chain = self.drafter.propose(self.get(pointer), DraftContext(c, self.library))
        nodes = [node if isinstance(node, Node) else Node(int(node)) for node in chain]
        self.kept[int(ffi.cast("intptr_t", pointer))] = [node.q for node in nodes]
        out.n, out.calls = len(nodes), 0
        for i, node in enumerate(nodes[: self.library.c.SPECC_MAX_K]):
            out.parent[i], out.token[i] = i - 1 if node.parent is None else node.parent, node.token
            out.q[i] = ffi.NULL if node.q is None else ffi.cast("double *", node.q.ctypes.data)

    def close(self, pointer: Any) -> None:
        self.kept.pop(int(ffi.cast("intptr_t", pointer)), None)
        self.drafter.close(self.drop(pointer))
