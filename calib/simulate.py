"""Staged drafting on recorded greedy answers, offline: tokens a call and predicted speed-up, with no engine running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specc.calib.ngram_table import Table, find

COSTS = (1.0, 1.13, 1.28, 1.42, 1.57)
"""Of a call of 1..5 rows, in calls of one row (main recipe, two cores)."""
Stage = Callable[[Sequence[int]], int | None]


@dataclass(frozen=True)
class Simulated:
    """What drafting made of some answers."""

    tokens: int
    calls: int
    cost: float
    """Of calls and drafts, in calls of one row."""

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens a target call."""
        return self.tokens / max(1, self.calls)

    @property
    def speed_up(self) -> float:
        """Against one token a call."""
        return self.tokens / max(self.cost, 1e-9)


def lookup(ids: Sequence[int], low: int = 2, high: int = 4) -> int | None:
    """What followed the latest earlier occurrence of the longest run of the last ids."""
    row = list(ids)
    for n in range(min(high, len(row) - 1), low - 1, -1):
        tail = row[-n:]
        for i in range(len(row) - n - 1, -1, -1):
            if row[i : i + n] == tail:
                return row[i + n]
    return None


def table_stage(table: Table, min_count: int, min_share: float) -> Stage:
    """A stage that asks the table."""

    def ask(ids: Sequence[int]) -> int | None:
        entry = find(table, ids[-8:], min_count)
        return entry.next if entry is not None and entry.count >= min_share * entry.total else None

    return ask


def simulate(prompt: Sequence[int], answer: Sequence[int], stages: Sequence[Stage], k: int = 4) -> Simulated:
    """Greedy decoding of a known answer; the first stage that answers proposes, at every depth."""
    at, calls, cost, text = 1, 0, 0.0, [*prompt, *answer[:1]]
    while at < len(answer):
        drafted: list[int] = []
        while len(drafted) < min(k, len(answer) - at - 1):
            token = next((t for stage in stages if (t := stage([*text, *drafted])) is not None), None)
            if token is None:
                break
            drafted.append(token)
        right = next((i for i, token in enumerate(drafted) if token != answer[at + i]), len(drafted))
        text += answer[at : at + right + 1]
        at, calls, cost = at + right + 1, calls + 1, cost + COSTS[len(drafted)]
    return Simulated(len(answer) - 1, calls, cost)


def together(parts: Sequence[Simulated]) -> Simulated:
    """The sum of some."""
    return Simulated(sum(p.tokens for p in parts), sum(p.calls for p in parts), sum(p.cost for p in parts))
