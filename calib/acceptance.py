"""The acceptance rate of drafts, predicted by replaying them along the target's own greedy answers.

No engine runs. Each stage of a draft has a table [depth][index]: the token that it proposes for an index of
the text where the draft up to that depth was accepted, NO_TOKEN where it proposes none. Rounds are then
replayed over the known answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.calib.ngram_table import PROBES, hash_context
from specc.calib.samples import Sample

NO_TOKEN = -1
Proposals = npt.NDArray[np.int64]
"""[depth, len(ids)]"""
Orders = Mapping[int, npt.NDArray[np.void]]
"""Order -> slots, as calib.ngram_table.read_table gives them."""


@dataclass(frozen=True)
class Stage:
    """One stage's proposals along one text, and whether its engine has to be called for them."""

    proposals: Proposals
    needs_engine: bool = False
    is_parallel: bool = False
    """One engine call a round, whatever the depth (parallel heads)."""


@dataclass(frozen=True)
class Replay:
    """What rounds of speculative decoding over some answers would do at one K."""

    tokens: int
    rounds: tuple[int, ...]
    """[K + 1] rounds by the number of tokens proposed."""
    draft_calls: int
    """Calls of the draft's engine."""
    accepted: tuple[int, ...]
    """[K] accepted proposals at each position."""
    tried: tuple[int, ...]
    """[K] proposals at each position where all before it were accepted."""

    @property
    def tokens_per_call(self) -> float:
        """Tokens a target call."""
        return self.tokens / max(1, sum(self.rounds))

    def speed_up(self, row_cost: float, draft_cost: float) -> float:
        """Against one token a call; costs of a further row and a draft call, in target calls of one row."""
        cost = (
            sum(n * (1 + row_cost * proposed) for proposed, n in enumerate(self.rounds))
            + draft_cost * self.draft_calls
        )
        return self.tokens / max(cost, 1e-9)


def replay_rounds(sample: Sample, stages: Sequence[Stage], k: int) -> Replay:
    """Greedy rounds over one known answer.

    A draft does not know which of its tokens are wrong and proposes on to K. After a wrong one no token is
    accepted, and the calls of its stage are counted for the rest of the round.
    """
    ids, start = sample.ids.tolist(), sample.n_prompt + 1
    at, rounds, accepted, tried, draft_calls = start, [0] * (k + 1), [0] * k, [0] * k, 0
    is_parallel = any(stage.is_parallel for stage in stages)
    while at < len(ids):
        limit, n_accepted, proposed, calls = min(k, len(ids) - at - 1), 0, 0, 0
        while n_accepted == proposed < limit:
            token, was_called = propose_token(stages, proposed, at + proposed)
            calls += was_called
            if token == NO_TOKEN:
                break
            is_right = token == ids[at + proposed]
            tried[proposed] += 1
            accepted[proposed] += is_right
            n_accepted += is_right
            proposed += 1
            if n_accepted < proposed:
                calls, proposed = calls + was_called * (limit - proposed), limit
        rounds[proposed] += 1
        draft_calls += min(calls, 1) if is_parallel else calls
        at += n_accepted + 1
    return Replay(at - start, tuple(rounds), draft_calls, tuple(accepted), tuple(tried))


def propose_token(stages: Sequence[Stage], depth: int, index: int) -> tuple[int, bool]:
    """(token of the first stage that proposes one, whether an engine was called for it)."""
    was_called = False
    for stage in stages:
        was_called |= stage.needs_engine
        token = int(stage.proposals[min(depth, len(stage.proposals) - 1), index])
        if token != NO_TOKEN:
            return token, was_called
    return NO_TOKEN, was_called


def sum_replays(parts: Sequence[Replay]) -> Replay:
    """The sum of replays at one K."""

    def add(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*values, strict=True)))

    return Replay(
        sum(part.tokens for part in parts),
        add([part.rounds for part in parts]),
        sum(part.draft_calls for part in parts),
        add([part.accepted for part in parts]),
        add([part.tried for part in parts]),
    )


# ---------------------------------------------------------------------- stages


def make_lookup_stage(sample: Sample, low: int, high: int) -> Stage:
    """Prompt lookup: what followed the latest earlier occurrence of the longest run of last ids."""
    ids = sample.ids.tolist()
    proposals = np.full((1, len(ids)), NO_TOKEN, np.int64)
    seen: list[dict[tuple[int, ...], int]] = [{} for _ in range(high + 1)]
    for i in range(1, len(ids)):
        runs = [(n, tuple(ids[i - n : i])) for n in range(min(high, i), low - 1, -1)]
        proposals[0, i] = next((ids[seen[n][run]] for n, run in runs if run in seen[n]), NO_TOKEN)
        for n, run in runs:
            seen[n][run] = i
    return Stage(proposals)


def make_table_stage(sample: Sample, table: Orders, min_count: int) -> Stage:
    """The n-gram table of the target's answers: the longest context that has an entry proposes."""
    ids = sample.ids.tolist()
    proposals = np.full((1, len(ids)), NO_TOKEN, np.int64)
    for i in range(sample.n_prompt, len(ids)):
        contexts = (tuple(ids[i - order : i]) for order in sorted(table, reverse=True) if order <= i)
        tokens = (look_up_token(table[len(context)], context, min_count) for context in contexts)
        proposals[0, i] = next((token for token in tokens if token != NO_TOKEN), NO_TOKEN)
    return Stage(proposals)


def look_up_token(slots: npt.NDArray[np.void], context: tuple[int, ...], min_count: int) -> int:
    """The likeliest next id of a context; NO_TOKEN without an entry that was seen `min_count` times."""
    h = hash_context(context)
    for step in range(PROBES):
        slot = slots[(h + step) & (len(slots) - 1)]
        if slot["tag"] == 0:
            break
        if slot["tag"] == (h >> 32 or 1):
            return int(slot["next"]) if slot["count"] >= min_count else NO_TOKEN
    return NO_TOKEN


def make_model_stage(sample: Sample, argmax: Callable[[Sequence[int]], Sequence[int]]) -> Stage:
    """A draft model or an early exit; argmax(ids)[p] is its prediction for index p + 1."""
    proposals = np.full((1, len(sample.ids)), NO_TOKEN, np.int64)
    proposals[0, 1:] = np.asarray(argmax(sample.ids.tolist()))[:-1]
    return Stage(proposals, needs_engine=True)


def make_feature_stage(sample: Sample, head: Any, ids: Any, depth: int, stop: float) -> Stage:
    """A feature head, unrolled over the text; it proposes nothing where its confidence is below `stop`.

    `ids`: int64 [Vd], the target id of each column of the head.
    """
    from specc.calib.batches import stack_samples
    from specc.calib.head_predictions import predict

    predictions = predict(head, stack_samples([sample]), ids, depth)
    proposals = np.full((depth, len(sample.ids)), NO_TOKEN, np.int64)
    confidence, predicted = predictions.confidence[:, 0].numpy(), predictions.predicted[:, 0].numpy()
    proposals[:, 2:] = np.where(confidence < stop, NO_TOKEN, predicted)[:, : proposals.shape[1] - 2]
    return Stage(proposals, needs_engine=True)


def make_medusa_stage(sample: Sample, head: Any, ids: Any, stop: float) -> Stage:
    """Parallel heads: head j, at the hidden state of position p, predicts index p + 2 + j."""
    import torch

    assert sample.hidden is not None
    with torch.no_grad():
        best = torch.softmax(head(torch.from_numpy(np.array(sample.hidden, np.float32))), -1).max(-1)
    predicted = np.where(best.values.numpy() < stop, NO_TOKEN, ids[best.indices].numpy())
    proposals = np.full((predicted.shape[1], len(sample.ids)), NO_TOKEN, np.int64)
    for j in range(predicted.shape[1]):
        proposals[j, 2 + j :] = predicted[: proposals.shape[1] - 2 - j, j]
    return Stage(proposals, needs_engine=True, is_parallel=True)
