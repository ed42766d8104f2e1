"""What drafts would propose along the target's own greedy answers, and how much of it stands: no engine runs.

A stage is a table [depth][index]: the token that it proposes for a place of the text when the draft of that depth was
right so far, NOBODY where it is silent. Rounds are then replayed over the known answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.calib.answers import Sample
from specc.calib.ngram_table import PROBES, context_hash

NOBODY = -1
Says = npt.NDArray[np.int64]
"""[depth, len(ids)]"""
Orders = Mapping[int, npt.NDArray[np.void]]
"""Order -> slots, as calib.ngram_table.read_table gives them."""


@dataclass(frozen=True)
class Stage:
    """One stage's proposals along one text, and whether its engine has to be called for them."""

    says: Says
    calls: bool = False
    once: bool = False
    """One call a round, whatever the depth (parallel heads)."""


@dataclass(frozen=True)
class Played:
    """Rounds over some answers at one K."""

    tokens: int
    rows: tuple[int, ...]
    """[K + 1] rounds by the number of tokens proposed."""
    calls: int
    """Of the draft's engine."""
    right: tuple[int, ...]
    tried: tuple[int, ...]
    """[K] proposals at each position, given that all before it stood."""

    @property
    def per_call(self) -> float:
        """Tokens a target call."""
        return self.tokens / max(1, sum(self.rows))

    def speed_up(self, row_cost: float, draft_cost: float) -> float:
        """Against one token a call; costs of a further row and of a draft call, in target calls of one row."""
        spent = (
            sum(n * (1 + row_cost * proposed) for proposed, n in enumerate(self.rows))
            + draft_cost * self.calls
        )
        return self.tokens / max(spent, 1e-9)


def play(sample: Sample, stages: Sequence[Stage], k: int) -> Played:
    """Greedy rounds over one known answer; a wrong token ends what stands, the round proposes on to K."""
    ids, at = sample.ids.tolist(), sample.n_prompt + 1
    first, rows, right, tried, calls = at, [0] * (k + 1), [0] * k, [0] * k, 0
    once = any(stage.once for stage in stages)
    while at < len(ids):
        most, stands, proposed, asked = min(k, len(ids) - at - 1), 0, 0, 0
        while stands == proposed < most:
            token, called = next_token(stages, proposed, at + proposed)
            asked += called
            if token == NOBODY:
                break
            tried[proposed] += 1
            stands += token == ids[at + proposed]
            right[proposed] += token == ids[at + proposed]
            proposed += 1
            if stands < proposed:
                asked, proposed = asked + called * (most - proposed), most
        rows[proposed] += 1
        calls += min(asked, 1) if once else asked
        at += stands + 1
    return Played(at - first, tuple(rows), calls, tuple(right), tuple(tried))


def next_token(stages: Sequence[Stage], depth: int, index: int) -> tuple[int, bool]:
    """(token of the first stage that answers, whether an engine was called for it)."""
    called = False
    for stage in stages:
        called |= stage.calls
        token = int(stage.says[min(depth, len(stage.says) - 1), index])
        if token != NOBODY:
            return token, called
    return NOBODY, called


def together(parts: Sequence[Played]) -> Played:
    """The sum of some at one K."""

    def added(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*values, strict=True)))

    return Played(
        sum(p.tokens for p in parts),
        added([p.rows for p in parts]),
        sum(p.calls for p in parts),
        added([p.right for p in parts]),
        added([p.tried for p in parts]),
    )


# ---------------------------------------------------------------------- stages


def lookup_stage(sample: Sample, low: int, high: int) -> Stage:
    """Prompt lookup: what followed the latest earlier occurrence of the longest run of the last ids."""
    ids = sample.ids.tolist()
    says = np.full((1, len(ids)), NOBODY, np.int64)
    seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(high + 1)]
    for i in range(1, len(ids)):
        runs = [(n, tuple(ids[i - n : i])) for n in range(min(high, i), low - 1, -1)]
        says[0, i] = next((ids[seen[n][run]] for n, run in runs if run in seen[n]), NOBODY)
        for n, run in runs:
            seen[n][run] = i
    return Stage(says)


def table_stage(sample: Sample, table: Orders, min_count: int) -> Stage:
    """The static table of the target's answers, as its file has it."""
    ids = sample.ids.tolist()
    says = np.full((1, len(ids)), NOBODY, np.int64)
    for i in range(sample.n_prompt, len(ids)):
        contexts = (tuple(ids[i - order : i]) for order in sorted(table, reverse=True) if order <= i)
        says[0, i] = next(
            (t for c in contexts if (t := entry_of(table[len(c)], c, min_count)) != NOBODY), NOBODY
        )
    return Stage(says)


def entry_of(slots: npt.NDArray[np.void], context: tuple[int, ...], min_count: int) -> int:
    """The likeliest next id of a context, NOBODY where the table has none that was seen often enough."""
    h = context_hash(context)
    for step in range(PROBES):
        slot = slots[(h + step) & (len(slots) - 1)]
        if slot["tag"] == 0:
            break
        if slot["tag"] == (h >> 32 or 1):
            return int(slot["next"]) if slot["count"] >= min_count else NOBODY
    return NOBODY


def model_stage(sample: Sample, argmax: Callable[[Sequence[int]], Sequence[int]]) -> Stage:
    """A draft model or an early exit: argmax(ids)[p] foretells index p + 1."""
    says = np.full((1, len(sample.ids)), NOBODY, np.int64)
    says[0, 1:] = np.asarray(argmax(sample.ids.tolist()))[:-1]
    return Stage(says, calls=True)


def feature_stage(sample: Sample, head: Any, ids: Any, depth: int, stop: float) -> Stage:
    """A feature head, unrolled over the text; silent where its largest probability is below `stop`."""
    from specc.calib.batches import batch_of
    from specc.distill.losses import foretell

    found = foretell(head, batch_of([sample]), ids, depth)
    says = np.full((depth, len(sample.ids)), NOBODY, np.int64)
    token = np.where(found.sure[:, 0].numpy() < stop, NOBODY, found.token[:, 0].numpy())
    says[:, 2:] = token[:, : says.shape[1] - 2]
    return Stage(says, calls=True)


def medusa_stage(sample: Sample, head: Any, ids: Any, stop: float) -> Stage:
    """Parallel heads: head j at the state of place p foretells place p + 2 + j."""
    import torch

    assert sample.hidden is not None
    with torch.no_grad():
        rows = torch.softmax(head(torch.from_numpy(np.array(sample.hidden, np.float32))), -1).max(-1)
    best = np.where(rows.values.numpy() < stop, NOBODY, ids[rows.indices].numpy())
    says = np.full((best.shape[1], len(sample.ids)), NOBODY, np.int64)
    for j in range(best.shape[1]):
        says[j, 2 + j :] = best[: says.shape[1] - 2 - j, j]
    return Stage(says, calls=True, once=True)
