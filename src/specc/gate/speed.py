"""The speed judge: does speculation pay here, and with which K?

Costs come from the certificate (median milliseconds of a call at each width) and from the drafter (median of the
generations' milliseconds a proposal), acceptance from runs over calibration prompts. A round that proposes n tokens
costs the call that holds n + 1 rows and the drafter's time; plain decoding costs one call at the law's width for each
token. The whole bundle has `no-gain` only if no K gains in any class and temperature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specc.errors import SpeccError
from specc.gate.checks import Check
from specc.gate.equality import Work
from specc.runtime import Certificate, Model, Session

LEAST_GAIN = 1.05
TIE = 1.02
"""Speed-ups nearer than this are one: medians of a few calls decide no closer."""
TEMPERATURES = (0.0, 0.8)
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Row:
    """One prompt class, temperature and K."""

    prompt_class: str
    temperature: float
    k: int
    speed_up: float  # predicted, against plain
    acceptance: float  # accepted / proposed, 0 where nothing was proposed
    tokens_per_call: float
    proposing: float  # share of rounds that propose
    by_position: tuple[float, ...]  # chance that slot i is accepted, given that it was reached

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return asdict(self)


@dataclass(frozen=True)
class Count:
    """What one prompt class, temperature and K did: no times but the drafter's."""

    prompt_class: str
    temperature: float
    k: int
    calls: dict[int, int]  # rounds by the width of their call
    tokens: int
    proposed: int
    accepted: int
    proposing: int  # rounds that proposed
    reached: tuple[int, ...]  # [k] rounds in which slot i was judged
    passed: tuple[int, ...]  # [k] rounds in which it was accepted
    draft_ms: tuple[float, ...]  # milliseconds a proposal, one number a generation that had any
    draft_call_ms: tuple[float, ...] = ()  # milliseconds a call of the draft's engine, likewise


@dataclass(frozen=True)
class Speed:
    """The verdict: best K overall, its rows and what is best for each class and temperature."""

    k: int
    best: float  # largest predicted speed-up of all rows
    draft_ms: float  # a proposal of the best K, median
    rows: tuple[Row, ...]
    check: Check
    draft_call_ms: float = 0.0  # a call of the draft's engine, median; 0 without one

    def as_dict(self) -> dict[str, Any]:
        """For reports: all rows, and the K that is best for each class and temperature."""
        chosen = [row.as_dict() for row in best_rows(self.rows)]
        best = [
            {name: row[name] for name in ("prompt_class", "temperature", "k", "speed_up")}
            | {"no_gain": row["speed_up"] < LEAST_GAIN}
            for row in chosen
        ]
        return {
            "k": self.k,
            "draft_ms": self.draft_ms,
            "limit": LEAST_GAIN,
            "best": best,
            "rows": [row.as_dict() for row in self.rows],
        }


def judge(
    model: Model, certificate: Certificate, classes: dict[str, Work], progress: Progress | None = None
) -> Speed:
    """Measures acceptance at each K whose width differs and predicts speed from median costs."""
    cells = [
        (name, t, k)
        for k in useful_k(certificate, model.info.k_max)
        for name in classes
        for t in TEMPERATURES
    ]
    counts = []
    with model.session() as session:
        for i, (name, temperature, k) in enumerate(cells):
            counts.append(measure(session, certificate, name, classes[name], temperature, k))
            if progress is not None:
                progress(i + 1, len(cells))
    draft_ms = {k: draft_median(counts, k) for k in {count.k for count in counts}}
    rows = [predict(count, certificate, draft_ms[count.k]) for count in counts]
    k, best = best_k(rows), max(rows, key=lambda row: row.speed_up)
    label = f"speed: predicted speed-up at its best ({best.prompt_class}, T={best.temperature}, K={best.k})"
    check = Check(label, LEAST_GAIN, best.speed_up, best.speed_up >= LEAST_GAIN)
    call_ms = median([ms for count in counts for ms in count.draft_call_ms] or [0.0])
    return Speed(k, best.speed_up, draft_ms[k], tuple(rows), check, call_ms)


def useful_k(certificate: Certificate, k_max: int) -> list[int]:
    """The largest K of each verify width: smaller ones would pay for rows that they do not use."""
    widths = {k: verify_width(certificate, k) for k in range(1, k_max + 1)}
    return [k for k in widths if widths[k] and widths.get(k + 1) != widths[k]]


def verify_width(certificate: Certificate, k: int) -> int:
    """The smallest certified width for K tokens, as the runtime picks it; 0 for none."""
    law = dict(zip(certificate.widths, certificate.width_class, strict=True))
    fits = [w for w in certificate.widths if w > k]
    exact = [w for w in fits if law[w] == law[certificate.law_width] and law[w] >= 0]
    found = fits if certificate.kind == "bounded" else exact
    return found[0] if found else 0


def measure(
    session: Session, certificate: Certificate, name: str, work: Work, temperature: float, k: int
) -> Count:
    """Generates and counts; the same counts on every run of the same engine, but for the drafter's time."""
    calls, reached, passed = Counter[int](), [0] * k, [0] * k
    tokens = proposed = accepted = proposing = 0
    drafted: list[float] = []
    called: list[float] = []
    for i, prompt in enumerate(work.prompts):
        events = session.generate(
            prompt,
            temperature=temperature,
            rule="coupled",
            k=k,
            seed=work.seed + i,
            max_new_tokens=work.new_tokens,
            ignore_eos=True,
        )
        before = proposing
        for event in (event for event in events if not event.prefill and event.tokens):
            calls[verify_width(certificate, event.proposed) if event.proposed else certificate.law_width] += 1
            tokens, proposing = tokens + len(event.tokens), proposing + (event.proposed > 0)
            proposed, accepted = proposed + event.proposed, accepted + event.accepted
            for slot in range(event.proposed):
                reached[slot] += event.accepted >= slot
                passed[slot] += event.accepted > slot
        if proposing > before:
            drafted.append(1e3 * session.stats["draft_seconds"] / (proposing - before))
        if session.stats["draft_calls"]:
            called.append(1e3 * session.stats["draft_seconds"] / session.stats["draft_calls"])
    return Count(
        name,
        temperature,
        k,
        dict(calls),
        tokens,
        proposed,
        accepted,
        proposing,
        tuple(reached),
        tuple(passed),
        tuple(drafted),
        tuple(called),
    )


def draft_median(counts: Sequence[Count], k: int) -> float:
    """Milliseconds of a proposal of at most k tokens, with the looking that found nothing; 0 where there is none."""
    return median([ms for count in counts if count.k == k for ms in count.draft_ms] or [0.0])


def predict(count: Count, certificate: Certificate, draft_ms: float) -> Row:
    """Speed from counts and costs."""
    cost = dict(zip(certificate.widths, certificate.call_ms, strict=True))
    rounds = sum(count.calls.values())
    spent = sum(cost[width] * n for width, n in count.calls.items()) + draft_ms * count.proposing
    plain = count.tokens * cost[certificate.law_width]
    by_position = tuple(p / r if r else 0.0 for p, r in zip(count.passed, count.reached, strict=True))
    return Row(
        count.prompt_class,
        count.temperature,
        count.k,
        plain / max(spent, 1e-12),
        count.accepted / max(count.proposed, 1),
        count.tokens / max(rounds, 1),
        count.proposing / max(rounds, 1),
        by_position,
    )


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """For each class and temperature the row with the largest speed-up."""
    best: dict[tuple[str, float], Row] = {}
    for row in rows:
        cell = row.prompt_class, row.temperature
        if cell not in best or row.speed_up > best[cell].speed_up:
            best[cell] = row
    return list(best.values())


def best_k(rows: Sequence[Row]) -> int:
    """The largest K whose geometric mean of speed-ups over classes and temperatures is within `TIE` of the best.

    K is a ceiling: the controller proposes fewer tokens where fewer pay.
    """

    def mean(k: int) -> float:
        gains = [math.log(max(row.speed_up, 1e-9)) for row in rows if row.k == k]
        return math.exp(sum(gains) / len(gains))

    means = {k: mean(k) for k in {row.k for row in rows}}
    return max(k for k, gain in means.items() if gain * TIE >= max(means.values()))


def break_even(certificate: Certificate, k: int, draft_ms: float) -> float:
    """Tokens in a proposing round of K tokens from which speculation pays."""
    cost = dict(zip(certificate.widths, certificate.call_ms, strict=True))
    return (cost[verify_width(certificate, k)] + draft_ms) / max(cost[certificate.law_width], 1e-12)


def classes_of(
    folder: Path, tokens: Sequence[int], context: int, seed: int, prompts: int = 2
) -> dict[str, Work]:
    """Prompts of each class to tune on, as the bundle's tokenizer and template make them; calibration text where the
    device has no tokenizer package or the context is too short for them."""
    new_tokens = max(1, min(48, context // 4))
    try:
        from specc.calib.prompts import load
        from specc.contracts.bundle.manifest import read_bundle
        from specc.generate.template import Prompter

        prompter = Prompter.of(read_bundle(folder))
        made = {
            name: tuple(tuple(prompter.user(text)) for text in texts[:prompts])
            for name, texts in load("tuning").items()
        }
    except (ImportError, SpeccError, OSError):
        return prompt_classes(tokens, context, seed)
    if any(len(prompt) + new_tokens >= context for group in made.values() for prompt in group):
        return prompt_classes(tokens, context, seed)
    return {name: Work(group, new_tokens, seed) for name, group in made.items()}


def prompt_classes(tokens: Sequence[int], context: int, seed: int, new_tokens: int = 48) -> dict[str, Work]:
    """`prose`: plain calibration text; `copy`: text that stands twice in the prompt, begun a second time."""
    new_tokens = max(1, min(new_tokens, context // 4))
    size = max(2, min(64, (context - new_tokens - 2) // 2))
    starts = [len(tokens) * i // 4 for i in range(1, 4)]
    prose = tuple(tuple(tokens[start : start + size]) or tuple(tokens[:1]) for start in starts)
    copy = tuple((*text, *text[: max(1, len(text) // 4)]) for text in prose)
    return {"prose": Work(prose, new_tokens, seed), "copy": Work(copy, new_tokens, seed)}
