"""Engines of a model: those of the C library, and the base class for one in Python.

An engine is described by a small object; `native(library)` gives its specc_backend and what must stay alive
as long as it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError
from specc.runtime._ffi import Library, ffi, text_of
from specc.runtime.callbacks import Calls, Native, chars


@dataclass(frozen=True, eq=False)
class Table:
    """A Markov table with exactly known laws.

    Row b (order 1) or a * n + b (order 2) holds the logits after the tokens ..., a, b.
    """

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
        out, name, version = ffi.new("specc_backend *"), chars(self.name), chars(self.version)
        out.name, out.version, out.vocab, out.capacity = name, version, self.vocab, self.capacity
        out.n_widths, out.hidden = len(self.widths), self.hidden
        out.widths[0 : len(self.widths)] = list(self.widths)
        calls = _BackendCalls(self, library)
        for member in ("open", "run", "poison", "close"):
            setattr(out, member, calls.pointers[member])
        return out, [name, version, calls]


class Wrapped(Backend):
    """A Python backend around another engine: `run` calls the inner one; override it to watch or disturb."""

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


class _BackendCalls(Calls):
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
