"""Engines and drafters that a model is put together from: those of the C library, and base classes for ones in Python.

A part is described by a small object; `native(library)` gives its C struct and what must stay alive as long as it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError, SpeccError
from specc.runtime._ffi import Library, ffi, text_of
from specc.runtime.request import RULES

Native = tuple[Any, list[Any]]  # a C struct pointer, and what must outlive it


@dataclass(frozen=True, eq=False)
class Table:
    """A Markov table with exactly known laws: row b (order 1) or a * n + b (order 2) are the logits after ..., a, b."""

    logits: npt.NDArray[np.float32]  # [n ** order, vocab]
    order: int
    capacity: int
    widths: tuple[int, ...]  # rising; the widest one is the prefill chunk
    hidden: str = ""  # "gives" hidden states, 1 at the row's id; "reads" a from them too

    def native(self, library: Library) -> Native:
        """specc_table_backend; the table is copied."""
        table = np.ascontiguousarray(self.logits, np.float32)
        if table.ndim != 2 or self.order not in (1, 2):
            found = f"order {self.order} and shape {table.shape}"
            raise InputError(f"a table of {found} is none; give order 1 or 2 and two axes")
        n = table.shape[0] if self.order == 1 else round(table.shape[0] ** 0.5)
        if n**self.order != table.shape[0]:
            raise InputError(f"a table of order 2 has n * n rows, not {table.shape[0]}")
        out = ffi.new("specc_backend *")
        widths, data = ffi.new("int32_t[]", self.widths), ffi.cast("float *", table.ctypes.data)
        library.check(
            library.c.specc_table_backend(
                data, n, table.shape[1], self.order, self.capacity, widths, len(self.widths), out
            )
        )
        if self.hidden:
            library.check(library.c.specc_table_hidden(out, int(self.hidden == "reads")))
        return out, []


@dataclass(frozen=True)
class Ort:
    """An ONNX file with specc's graph signature, run by ONNX Runtime."""

    model: Path
    vocab: int
    layers: int
    kv_heads: int
    head_dim: int
    capacity: int
    widths: tuple[int, ...]
    threads: int = 0
    library: Path | None = None  # libonnxruntime; None: the loader's own search
    hidden: int = 0  # columns of the graph's output `hidden`, 0 for none
    hidden_in: int = 0  # columns of its input `hidden`

    def native(self, library: Library) -> Native:
        """specc_ort_backend; weights are loaded here."""
        options, out = ffi.new("specc_ort_options *"), ffi.new("specc_backend *")
        model = ffi.new("char[]", str(self.model).encode())
        engine = ffi.new("char[]", str(self.library).encode()) if self.library else ffi.NULL
        options.model, options.library = model, engine
        for name in ("threads", "vocab", "layers", "kv_heads", "head_dim", "capacity", "hidden", "hidden_in"):
            setattr(options, name, getattr(self, name))
        options.n_widths = len(self.widths)
        options.widths[0 : len(self.widths)] = list(self.widths)
        library.check(library.c.specc_ort_backend(options, out))
        return out, []


@dataclass(frozen=True)
class Io:
    """Buffers of one cache; the runtime fills the first four before `run`, which must fill logits."""

    input_ids: npt.NDArray[np.int64]  # [widest]
    position: npt.NDArray[np.int64]  # [widest]
    logit_rows: npt.NDArray[np.int64]  # [widest]
    past_len: npt.NDArray[np.int32]  # [1]
    logits: npt.NDArray[np.float32]  # [widest, vocab]
    hidden: npt.NDArray[np.float32]  # [widest, hidden]; no columns where the engine gives none


class Backend:
    """An engine written in Python: set the attributes, override the methods; an exception fails its call."""

    name = "python"
    version = "0"
    vocab: int
    capacity: int  # context + widest
    widths: tuple[int, ...]  # rising
    hidden = 0  # columns of io.hidden

    def open(self, io: Io) -> Any:
        """A new cache over these buffers."""
        raise NotImplementedError

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        """Fills io.logits[:n_logits] for io.input_ids[:rows] after io.past_len[0] entries."""
        raise NotImplementedError

    def poison(self, cache: Any, start: int, value: float) -> None:
        """Overwrites cache slots >= start; for the gate."""

    def close(self, cache: Any) -> None:
        """The cache is no longer used."""

    def native(self, library: Library) -> Native:
        """A specc_backend whose functions call this object."""
        out, name, version = ffi.new("specc_backend *"), _chars(self.name), _chars(self.version)
        out.name, out.version, out.vocab, out.capacity = name, version, self.vocab, self.capacity
        out.n_widths, out.hidden = len(self.widths), self.hidden
        out.widths[0 : len(self.widths)] = list(self.widths)
        calls = _BackendCalls(self, library)
        for member in ("open", "run", "poison", "close"):
            setattr(out, member, calls.pointers[member])
        return out, [name, version, calls]


class Wrapped(Backend):
    """A Python backend around another part's engine: `run` calls the inner one; override it to watch or to disturb."""

    def __init__(self, inner: Any, library: Library) -> None:
        self.inner, self._keep = inner.native(library)
        self._library = library
        self.name, self.version = "wrapped " + text_of(self.inner.name), text_of(self.inner.version)
        self.vocab, self.capacity, self.hidden = self.inner.vocab, self.inner.capacity, self.inner.hidden
        self.widths = tuple(self.inner.widths[i] for i in range(self.inner.n_widths))

    def open(self, io: Io) -> Any:
        """Opens an inner cache; its buffers are copied in and out at each run."""
        handle, inner_io = ffi.new("void **"), ffi.new("specc_io *")
        self._library.check(self.inner.open(self.inner.self, handle, inner_io))
        return handle[0], inner_io, io

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        """One call of the inner engine."""
        handle, inner, io = cache
        for name, count in (
            ("input_ids", rows),
            ("position", rows),
            ("logit_rows", n_logits),
            ("past_len", 1),
        ):
            source = getattr(io, name)
            ffi.memmove(getattr(inner, name), ffi.from_buffer(source), count * source.itemsize)
        self._library.check(self.inner.run(handle, rows, n_logits))
        ffi.memmove(ffi.from_buffer(io.logits), inner.logits, n_logits * self.vocab * 4)
        if self.hidden:
            ffi.memmove(ffi.from_buffer(io.hidden), inner.hidden, rows * self.hidden * 4)

    def poison(self, cache: Any, start: int, value: float) -> None:
        """Poisons the inner cache."""
        self._library.check(self.inner.poison(cache[0], start, value))

    def close(self, cache: Any) -> None:
        """Closes the inner cache."""
        self.inner.close(cache[0])

    def __del__(self) -> None:
        inner = getattr(self, "inner", None)
        if inner is not None and inner.release != ffi.NULL:
            inner.release(inner.self)


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
        """Shapes logits [n_logits] by the request's options and draws node `depth` of this round from the result."""
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
        out, name = ffi.new("specc_drafter *"), _chars(self.name)
        out.name = name
        calls = _DrafterCalls(self, library)
        for member in ("open", "propose", "commit", "close"):
            setattr(out, member, calls.pointers[member])
        return out, [name, calls]


class _Calls:
    """C function pointers onto one Python object; states are numbered, C holds the number as its pointer."""

    failure = "SPECC_E_ENGINE"

    def __init__(self, library: Library) -> None:
        self.library, self.states, self.last = library, dict[int, Any](), 0
        self.pointers: dict[str, Any] = {}

    def add(self, member: str, signature: str, body: Callable[..., None]) -> None:
        """Registers one member; an exception of the body becomes specc_fail with its sentence."""

        def call(*args: Any) -> int | None:
            try:
                body(*args)
            except BaseException as error:  # nothing may pass through C
                return self.fail(error)
            return None if signature.startswith("void") else 0

        error = None if signature.startswith("void") else getattr(self.library.c, self.failure)
        self.pointers[member] = (
            ffi.callback(signature, call, error=error) if error else ffi.callback(signature, call)
        )

    def fail(self, error: BaseException) -> int:
        """Records the sentence; the exception's own status code wins, else the engine's or the drafter's."""
        code = getattr(error, "code", 0) or getattr(self.library.c, self.failure)
        message = str(error) if isinstance(error, SpeccError) else f"{type(error).__name__}: {error}"
        return int(self.library.c.specc_fail(code, message.encode("utf-8", "replace")))

    def put(self, pointer: Any, state: Any) -> None:
        """Stores a state and hands its number to C."""
        self.last += 1
        self.states[self.last] = state
        pointer[0] = ffi.cast("void *", self.last)

    def get(self, pointer: Any) -> Any:
        return self.states[int(ffi.cast("intptr_t", pointer))]

    def drop(self, pointer: Any) -> Any:
        return self.states.pop(int(ffi.cast("intptr_t", pointer)))


class _BackendCalls(_Calls):
    def __init__(self, backend: Backend, library: Library) -> None:
        super().__init__(library)
        self.backend = backend
        self.add("open", "int(void *, void **, specc_io *)", self.open)
        self.add(
            "run", "int(void *, int32_t, int32_t)", lambda c, rows, n: backend.run(self.get(c)[0], rows, n)
        )
        self.add(
            "poison",
            "int(void *, int32_t, float)",
            lambda c, n, value: backend.poison(self.get(c)[0], n, value),
        )
        self.add("close", "void(void *)", lambda c: backend.close(self.drop(c)[0]))

    def open(self, _self: Any, pointer: Any, c_io: Any) -> None:
        """Lays the buffers out and opens a cache over them."""
        widest = self.backend.widths[-1]
        ids, position, rows = (np.zeros(widest, np.int64) for _ in range(3))
        logits, hidden = (
            np.zeros((widest, n), np.float32) for n in (self.backend.vocab, self.backend.hidden)
        )
        io = Io(ids, position, rows, np.zeros(1, np.int32), logits, hidden)
        for name, kind in (
            ("input_ids", "int64_t *"),
            ("position", "int64_t *"),
            ("logit_rows", "int64_t *"),
            ("past_len", "int32_t *"),
            ("logits", "float *"),
        ):
            setattr(c_io, name, ffi.cast(kind, getattr(io, name).ctypes.data))
        c_io.hidden = ffi.cast("float *", hidden.ctypes.data) if self.backend.hidden else ffi.NULL
        c_io.hidden_in = ffi.NULL
        self.put(pointer, (self.backend.open(io), io))


class _DrafterCalls(_Calls):
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
        for i, node in enumerate(nodes[:16]):
            out.parent[i], out.token[i] = i - 1 if node.parent is None else node.parent, node.token
            out.q[i] = ffi.NULL if node.q is None else ffi.cast("double *", node.q.ctypes.data)

    def close(self, pointer: Any) -> None:
        self.kept.pop(int(ffi.cast("intptr_t", pointer)), None)
        self.drafter.close(self.drop(pointer))


def _chars(text: str) -> Any:
    return ffi.new("char[]", text.encode())
