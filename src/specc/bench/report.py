"""From generations to the JSON of `specc bench`: one row for each class, mode and setting, and a summary."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from specc.bench.measure import MODES, Generation, Setting
from specc.bench.numbers import (
    Round,
    by_position,
    gaps,
    mean,
    middle,
    percentile,
    predicted,
    shares,
    speed_ups,
)
from specc.runtime import Certificate

Cell = tuple[str, Setting]
Json = dict[str, Any]


def rows(generations: Sequence[Generation], certificate: Certificate) -> list[Json]:
    """One row a class, setting and mode; those of speculation say what it brought."""
    cells: dict[Cell, dict[str, list[Generation]]] = defaultdict(lambda: {mode: [] for mode in MODES})
    for one in generations:
        cells[one.prompt_class, one.setting][one.mode].append(one)
    out = []
    for (name, setting), by_mode in cells.items():
        for mode, some in by_mode.items():
            out.append(
                {
                    "class": name,
                    "mode": mode,
                    "temperature": setting.temperature,
                    "rule": setting.rule,
                    **common(some),
                }
            )
        out[-1] |= gain(by_mode["plain"], by_mode["spec"], certificate)
    return out


def common(some: Sequence[Generation]) -> Json:
    """What plain and speculative rows both have; times in milliseconds."""
    rounds = list(chain.from_iterable(one.rounds for one in some))
    proposed, calls = sum(one.proposed for one in rounds), sum(one.target_calls for one in some)
    waits = list(chain.from_iterable(shares(one.rounds) for one in some))
    pauses = list(chain.from_iterable(gaps(one.rounds) for one in some))
    rates = [median(by) for by in by_prompt(some).values()]
    return {
        "tokens_per_second": median(rates),
        "tokens_per_second_low": percentile(rates, 0.25),
        "tokens_per_second_high": percentile(rates, 0.75),
        "acceptance_rate": sum(one.accepted for one in rounds) / proposed if proposed else None,
        "tokens_per_target_call": sum(len(one.tokens) for one in some) / max(calls, 1),
        "ttft_ms": milli(middle([one.first_s for one in some])),
        "ttft_ms_p99": milli(percentile([one.first_s for one in some], 0.99)),
        "itl_ms_p50": milli(percentile(waits, 0.5)),
        "itl_ms_p99": milli(percentile(waits, 0.99)),
        "gap_ms_p50": milli(percentile(pauses, 0.5)),
        "gap_ms_p99": milli(percentile(pauses, 0.99)),
        "peak_mb": max(one.peak_mb for one in some),
        "tokens": sum(len(one.tokens) for one in some),
        "generations": len(some),
        "draft_share": share(some, lambda one: one.draft_seconds),
        "target_share": share(some, lambda one: one.target_seconds),
    }


def gain(plain: Sequence[Generation], spec: Sequence[Generation], certificate: Certificate) -> Json:
    """What speculation brought: median over prompts of paired ratios with quartiles, the ratio of all time,
    prediction.

    `predicted_speed_up` takes the rounds as they were and the certificate's costs; `same_text` counts pairs
    with equal ids, which greedy and coupled decoding of a bit-exact bundle must have throughout.
    """
    rounds = list(chain.from_iterable(one.rounds for one in spec))
    ratios = list(speed_ups(by_prompt(plain), by_prompt(spec)).values())
    draft_ms = 1e3 * math.fsum(one.draft_seconds for one in spec)
    reasons = dict.fromkeys(chain.from_iterable(one.reasons for one in spec))
    return {
        "speed_up": median(ratios),
        "speed_up_low": percentile(ratios, 0.25),
        "speed_up_high": percentile(ratios, 0.75),
        "speed_up_total": seconds_per_token(plain) / seconds_per_token(spec),
        "predicted_speed_up": predicted(rounds, call_costs(certificate, rounds), 0, draft_ms),
        "acceptance_by_position": by_position(rounds),
        "proposing_share": sum(one.proposed > 0 for one in rounds) / max(len(rounds), 1),
        "same_text": sum(a.tokens == b.tokens for a, b in paired(plain, spec)) / len(spec),
        "enabled": all(one.enabled for one in spec),
        "reasons": list(reasons),
    }


def call_costs(certificate: Certificate, rounds: Iterable[Round]) -> dict[int, float]:
    """Milliseconds of the call that verifies n proposed tokens, for every n that occurred; 0 is a
    plain call.
    """
    from specc.gate.engine.speed import find_verify_width

    cost = dict(zip(certificate.widths, certificate.call_ms, strict=False))
    counts = {one.proposed for one in rounds} | {0}
    width = {n: find_verify_width(certificate, n) if n else certificate.law_width for n in counts}
    return {n: cost[w] for n, w in width.items() if cost.get(w)}


def break_even(certificate: Certificate, k_max: int) -> dict[int, float]:
    """By K the tokens that a call must bring so that proposing so many pays, the drafter's time apart.

    The costs are the certificate's, so this holds for the power mode in which it was made.
    """
    cost = call_costs(certificate, [Round(0, k, 0, 0.0) for k in range(1, k_max + 1)])
    return {k: cost[k] / cost[0] for k in cost if k and 0 in cost}


def by_prompt(some: Iterable[Generation]) -> dict[int, list[float]]:
    """Tokens per second by prompt, in the order of the repeats."""
    out: dict[int, list[float]] = defaultdict(list)
    for one in some:
        out[one.prompt].append(one.rate)
    return dict(out)


def paired(
    plain: Sequence[Generation], spec: Sequence[Generation]
) -> Iterable[tuple[Generation, Generation]]:
    """Generations of one prompt, setting and repeat; both lists are in the order of measuring."""
    return zip(plain, spec, strict=True)


def seconds_per_token(some: Sequence[Generation]) -> float:
    """Of all generations together."""
    return math.fsum(one.seconds for one in some) / max(sum(len(one.tokens) for one in some), 1)


def share(some: Sequence[Generation], part: Any) -> float:
    """Part of the decoding time."""
    return math.fsum(part(one) for one in some) / max(math.fsum(one.seconds for one in some), 1e-12)


def milli(seconds: float | None) -> float | None:
    """Milliseconds."""
    return None if seconds is None else 1e3 * seconds


def summary(found: Sequence[Mapping[str, Any]]) -> list[Json]:
    """For each setting the means over classes of what speculation brought, and the class that gains least."""
    out = []
    for temperature, rule in dict.fromkeys((row["temperature"], row["rule"]) for row in found):
        one = {"mode": "spec", "temperature": temperature, "rule": rule}
        here = [row for row in found if one.items() <= row.items()]
        least = min(here, key=lambda row: float(row["speed_up"]))
        guesses = [row["predicted_speed_up"] for row in here if row["predicted_speed_up"] is not None]
        out.append(
            {
                "temperature": temperature,
                "rule": rule,
                "classes": len(here),
                "mean_speed_up": mean([row["speed_up"] for row in here]),
                "mean_speed_up_total": mean([row["speed_up_total"] for row in here]),
                "mean_predicted_speed_up": mean(guesses),
                "least_speed_up": least["speed_up"],
                "least_class": least["class"],
                "tokens_per_target_call": mean([row["tokens_per_target_call"] for row in here]),
                "draft_share": mean([row["draft_share"] for row in here]),
            }
        )
    return out
