"""The arithmetic of the bench: medians, percentiles, latencies, counts by position; no clock and no
engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Round:
    """One round of a generation."""

    tokens: int
    """Committed."""
    proposed: int
    accepted: int
    seconds: float
    """From the end of the round before, or of the prompt."""


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest of the sorted values, as numpy's default; share in [0, 1]; None without
    values.
    """
    if not values:
        return None
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = min(int(place), len(ranked) - 1)
    high = min(low + 1, len(ranked) - 1)
    part = place - low
    return (
        ranked[low]
        if part == 0 or ranked[low] == ranked[high]
        else ranked[low] * (1 - part) + ranked[high] * part
    )


def median_or_none(values: Sequence[float]) -> float | None:
    """The median; None without values."""
    return median(values) if values else None


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None without values."""
    return math.fsum(values) / len(values) if values else None


def split_round_times(rounds: Sequence[Round]) -> list[float]:
    """Seconds of each token but those of the first round, whose wait is the first token's: a round's tokens
    share its time, and together they last as long as the rounds. A last round without a token has no share.
    """
    return [round.seconds / round.tokens for round in rounds[1:] for _ in range(round.tokens)]


def list_gaps(rounds: Sequence[Round]) -> list[float]:
    """Seconds between one appearance of tokens and the next: what a reader of the stream waits."""
    return [round.seconds for round in rounds[1:] if round.tokens]


def acceptance_by_position(rounds: Sequence[Round]) -> tuple[float, ...]:
    """Chance that slot i is accepted, given that it was proposed and reached; one entry a slot that was
    reached.
    """
    slots = range(max((round.proposed for round in rounds), default=0))
    reached = [sum(round.proposed > i and round.accepted >= i for round in rounds) for i in slots]
    passed = [sum(round.proposed > i and round.accepted > i for round in rounds) for i in slots]
    return tuple(p / r for p, r in zip(passed, reached, strict=True) if r)


def compute_speed_ups(
    plain: Mapping[int, Sequence[float]], spec: Mapping[int, Sequence[float]]
) -> dict[int, float]:
    """By prompt the median of the ratios of pairs that ran one after the other; values are tokens per
    second.
    """
    pairs = {
        prompt: list(zip(plain[prompt], spec[prompt], strict=False)) for prompt in plain if prompt in spec
    }
    return {prompt: median(b / a for a, b in two) for prompt, two in pairs.items() if two}


def predict_speed_up(
    rounds: Sequence[Round], cost: Mapping[int, float], law: int, draft_ms: float
) -> float | None:
    """Plain over speculative milliseconds by the certificate's costs.

    cost: milliseconds of a call that verifies so many tokens (0: a plain call); law: the cost of `law` tokens
    is what plain decoding pays for each token; draft_ms: all of the drafter's time. None where a cost is
    missing.
    """
    if not rounds or any(round.proposed not in cost for round in rounds) or law not in cost:
        return None
    spent = math.fsum(cost[round.proposed] for round in rounds) + draft_ms
    return sum(round.tokens for round in rounds) * cost[law] / spent if spent > 0 else None
