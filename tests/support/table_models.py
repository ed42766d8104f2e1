"""Table engines and small parts that the tests of runtime and gate share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.runtime import (
    Backend,
    DraftContext,
    Drafter,
    Io,
    Library,
    Model,
    ModelDraft,
    Node,
    Table,
    Wrapped,
    library,
)

Logits = npt.NDArray[np.float32]
WIDTHS = (1, 2, 3, 4, 5, 32)
LOGITS = np.random.default_rng(3).normal(0, 1.5, (64, 8)).astype(np.float32)
TOKENS = tuple(np.random.default_rng(1).integers(0, 8, 600).tolist())


def chain(n: int, strength: float = 6.0) -> Logits:
    """Order 1: after b comes b + 1, nearly surely."""
    return np.roll(strength * np.eye(n), 1, axis=1).astype(np.float32)


def noise_table(n: int, order: int, seed: int = 4) -> Logits:
    """Random rows without ties."""
    return np.random.default_rng(seed).normal(0, 1.5, (n**order, n)).astype(np.float32)


def draft(table: Logits, order: int = 1, capacity: int = 1024) -> ModelDraft:
    """A drafter over a table."""
    return ModelDraft(Table(table, order, capacity, (1, 2, 3, 4, 5, 6, 32)))


def self_drafting(table: Logits, loaded: Library | None, order: int = 1, **parts: Any) -> Model:
    """Target and draft are one table."""
    return Model.table(table, order=order, drafter=draft(table, order), loaded=loaded, **parts)


class Python(Backend):
    """A chain model in Python that records its calls; `spoil` may write into the logits, `pause` is in
    seconds.
    """

    vocab, capacity, widths = 8, 600 + 16, (1, 2, 3, 4, 5, 16)

    def __init__(self, spoil: Callable[[Logits, Io], None] | None = None, pause: float = 0.0) -> None:
        self.spoil, self.pause = spoil, pause
        self.calls: list[tuple[int, list[int]]] = []

    def open(self, io: Io) -> Any:
        return io

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        time.sleep(self.pause)
        self.calls.append((int(cache.past_len[0]), cache.position[:rows].tolist()))
        for i, row in enumerate(cache.logit_rows[:n_logits]):
            cache.logits[i] = chain(8)[cache.input_ids[row] % 8]
        if self.spoil is not None:
            self.spoil(cache.logits[:n_logits], cache)


class Ahead(Drafter):
    """Proposes b + 1, b + 2, ... modulo n."""

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        return [(int(context.tokens[-1]) + 1 + i) % context.n_ids for i in range(context.k)]


class ByWidth(Wrapped):
    """Rows of five-row calls are off by the least bit."""

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        if rows == 5:
            cache[2].logits[:n_logits] = np.nextafter(cache[2].logits[:n_logits], np.float32(np.inf))


class Poisoning(Wrapped):
    """Everything behind the length is overwritten before each call."""

    value = float("nan")

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        self.poison(cache, int(cache[2].past_len[0]), self.value)
        super().run(cache, rows, n_logits)


def table(logits: Any = LOGITS) -> Table:
    """Order 2 over 8 ids."""
    return Table(logits, 2, 256 + 32, WIDTHS)


def exact_model(drafter: Any = None) -> Model:
    return Model.from_parts(table(), drafter, n_ids=8, context=256, k_max=4, assume_exact=True)


class Disturbed(Wrapped):
    """`disturb(logits, io, rows)` may write into the rows of a call."""

    def __init__(self, disturb: Any) -> None:
        super().__init__(table(), library())
        self.disturb, self.rng = disturb, np.random.default_rng(0)

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        self.disturb(self, cache[2].logits[:n_logits], cache[2], rows)


def noise_in_a_row(size: float) -> Any:
    """Row 2 of a call is off, each position by its own amount, the same one whenever it stands there."""

    def disturb(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
        if len(logits) > 2:
            at = int(io.past_len[0]) + 2
            logits[2] += np.float32(size) * np.random.default_rng(at).normal(size=8).astype(np.float32)

    return disturb


def noise_of_luck(size: float) -> Any:
    """Row 2 of a call is off, by another amount each time."""

    def disturb(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
        if len(logits) > 2:
            logits[2] += np.float32(size) * self.rng.normal(size=8).astype(np.float32)

    return disturb


def shifted(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    """Each row shows what the row before it should."""
    if len(logits) > 2:
        logits[1:] = logits[:-1].copy()


def other_kernel(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    """Widths 2 to 5 are computed by another kernel than width 1."""
    if 2 <= rows <= 5:
        logits += np.spacing(logits)


def verified_otherwise(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    """K + 1 rows are computed by another kernel than any other number."""
    if rows == 5:
        logits *= np.float32(1.001)


def by_neighbour(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    logits += np.float32(1e-6) * np.float32(io.input_ids[rows - 1])


def by_slot(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    """R44: identical rows come out different by their place in the call."""
    logits += np.float32(1e-6) * np.arange(len(logits), dtype=np.float32)[:, None]


def at_capacity(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    """Wrong near the end of the context only."""
    if io.past_len[0] > 240 and rows == 5:
        logits += np.float32(1e-4)


class Stale(Wrapped):
    """Reads one cache entry beyond the length, which a rolled back call wrote."""

    def __init__(self) -> None:
        super().__init__(table(), library())
        self.behind: dict[int, int] = {}

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        io = cache[2]
        past = int(io.past_len[0])
        io.logits[:n_logits] += np.float32(1e-3) * np.float32(self.behind.get(past + rows, 0))
        self.behind |= {past + i: int(io.input_ids[i]) for i in range(rows)}


class PrefillCut(Wrapped):
    """The cache depends on where a prompt was cut: a chunk's first entry is written a little otherwise."""

    def __init__(self) -> None:
        super().__init__(table(), library())
        self.cut: dict[int, set[int]] = {}

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        io, starts = cache[2], self.cut.setdefault(id(cache[0]), set())
        past = int(io.past_len[0])
        starts.difference_update(range(past, past + 400))
        if n_logits == 1 or past < 30:
            starts.add(past)
        io.logits[:n_logits] += np.float32(1e-4) * len([start for start in starts if start <= 30])


def flaky(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if self.rng.random() < 0.002:
        logits[0, 0] += np.float32(1e-3)


def not_a_number(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
    if io.past_len[0] > 20:
        logits[0, 0] = np.nan
