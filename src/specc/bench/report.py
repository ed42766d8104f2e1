"""From generations to the JSON of `specc bench`: one row for each class, mode and setting, and a summary."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from specc.bench.generations import MODES, Generation, Setting
from specc.bench.numbers import (
    Round,
    acceptance_by_position,
    compute_speed_ups,
    list_gaps,
    mean,
    median_or_none,
    percentile,
    predict_speed_up,
    split_round_times,
)
from specc.runtime import Certificate

Cell = tuple[str, Setting]
Json = dict[str, Any]


def make_rows(generations: Sequence[Generation], certificate: Certificate) -> list[Json]:
    """One row a class, setting and mode; those of speculation say what it brought."""
    cells: dict[Cell, dict[str, list[Generation]]] = defaultdict(lambda: {mode: [] for mode in MODES})
    for generation in generations:
        cells[generation.prompt_class, generation.setting][generation.mode].append(generation)
    out = []
    for (name, setting), by_mode in cells.items():
        for mode, group in by_mode.items():
            out.append(
                {
                    "class": name,
                    "mode": mode,
                    "temperature": setting.temperature,
                    "rule": setting.rule,
                    **summarize_generations(group),
                }
            )
        out[-1] |= measure_gain(by_mode["plain"], by_mode["spec"], certificate)
    return out


def summarize_generations(generations: Sequence[Generation]) -> Json:
    """What plain and speculative rows both have; times in milliseconds."""
    rounds = list(chain.from_iterable(generation.rounds for generation in generations))
    proposed, calls = (
        sum(round.proposed for round in rounds),
        sum(generation.target_calls for generation in generations),
    )
    waits = list(chain.from_iterable(split_round_times(generation.rounds) for generation in generations))
    pauses = list(chain.from_iterable(list_gaps(generation.rounds) for generation in generations))
    rates = [median(by) for by in group_rates(generations).values()]
    return {
        "tokens_per_second": median(rates),
        "tokens_per_second_low": percentile(rates, 0.25),
        "tokens_per_second_high": percentile(rates, 0.75),
        "acceptance_rate": sum(round.accepted for round in rounds) / proposed if proposed else None,
        "tokens_per_target_call": sum(len(generation.tokens) for generation in generations) / max(calls, 1),
        "ttft_ms": to_ms(median_or_none([generation.first_s for generation in generations])),
        "ttft_ms_p99": to_ms(percentile([generation.first_s for generation in generations], 0.99)),
        "itl_ms_p50": to_ms(percentile(waits, 0.5)),
        "itl_ms_p99": to_ms(percentile(waits, 0.99)),
        "gap_ms_p50": to_ms(percentile(pauses, 0.5)),
        "gap_ms_p99": to_ms(percentile(pauses, 0.99)),
        "peak_mb": max(generation.peak_mb for generation in generations),
        "tokens": sum(len(generation.tokens) for generation in generations),
        "generations": len(generations),
        "draft_share": share(generations, lambda generation: generation.draft_seconds),
        "target_share": share(generations, lambda generation: generation.target_seconds),
    }


def measure_gain(plain: Sequence[Generation], spec: Sequence[Generation], certificate: Certificate) -> Json:
    """What speculation brought: median over prompts of paired ratios with quartiles, the ratio of all time,
    prediction.

    `predicted_speed_up` takes the rounds as they were and the certificate's costs; `same_text` counts pairs
    with equal ids, which greedy and coupled decoding of a bit-exact bundle must have throughout.
    """
    rounds = list(chain.from_iterable(generation.rounds for generation in spec))
    ratios = list(compute_speed_ups(group_rates(plain), group_rates(spec)).values())
    draft_ms = 1e3 * math.fsum(generation.draft_seconds for generation in spec)
    reasons = dict.fromkeys(chain.from_iterable(generation.reasons for generation in spec))
    return {
        "speed_up": median(ratios),
        "speed_up_low": percentile(ratios, 0.25),
        "speed_up_high": percentile(ratios, 0.75),
        "speed_up_total": seconds_per_token(plain) / seconds_per_token(spec),
        "predicted_speed_up": predict_speed_up(rounds, list_call_costs(certificate, rounds), 0, draft_ms),
        "acceptance_by_position": acceptance_by_position(rounds),
        "proposing_share": sum(round.proposed > 0 for round in rounds) / max(len(rounds), 1),
        "same_text": sum(a.tokens == b.tokens for a, b in pair_generations(plain, spec)) / len(spec),
        "enabled": all(generation.enabled for generation in spec),
        "reasons": list(reasons),
    }


def list_call_costs(certificate: Certificate, rounds: Iterable[Round]) -> dict[int, float]:
    """Milliseconds of the call that verifies n proposed tokens, for every n that occurred; 0 is a
    plain call.
    """
    from specc.gate.engine.speed import find_verify_width

    cost = dict(zip(certificate.widths, certificate.call_ms, strict=False))
    counts = {round.proposed for round in rounds} | {0}
    width = {n: find_verify_width(certificate, n) if n else certificate.law_width for n in counts}
    return {n: cost[w] for n, w in width.items() if cost.get(w)}


def compute_break_even(certificate: Certificate, k_max: int) -> dict[int, float]:
    """By K the tokens that a call must bring so that proposing so many pays, the drafter's time apart.

    The costs are the certificate's, so this holds for the power mode in which it was made.
    """
    cost = list_call_costs(certificate, [Round(0, k, 0, 0.0) for k in range(1, k_max + 1)])
    return {k: cost[k] / cost[0] for k in cost if k and 0 in cost}


def group_rates(generations: Iterable[Generation]) -> dict[int, list[float]]:
    """Tokens per second by prompt, in the order of the repeats."""
    out: dict[int, list[float]] = defaultdict(list)
    for generation in generations:
        out[generation.prompt].append(generation.rate)
    return dict(out)


def pair_generations(
    plain: Sequence[Generation], spec: Sequence[Generation]
) -> Iterable[tuple[Generation, Generation]]:
    """Generations of one prompt, setting and repeat; both lists are in the order of measuring."""
    return zip(plain, spec, strict=True)


def seconds_per_token(generations: Sequence[Generation]) -> float:
    """Of all generations together."""
    return math.fsum(generation.seconds for generation in generations) / max(
        sum(len(generation.tokens) for generation in generations), 1
    )


def share(generations: Sequence[Generation], part: Any) -> float:
    """Part of the decoding time."""
    return math.fsum(part(generation) for generation in generations) / max(
        math.fsum(generation.seconds for generation in generations), 1e-12
    )


def to_ms(seconds: float | None) -> float | None:
    """Milliseconds."""
    return None if seconds is None else 1e3 * seconds


def summarize_rows(rows: Sequence[Mapping[str, Any]]) -> list[Json]:
    """For each setting the means over classes of what speculation brought, and the class that gains least."""
    out = []
    for temperature, rule in dict.fromkeys((row["temperature"], row["rule"]) for row in rows):
        setting = {"mode": "spec", "temperature": temperature, "rule": rule}
        here = [row for row in rows if setting.items() <= row.items()]
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
