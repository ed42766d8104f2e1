"""The speed judge: does speculation pay here, and with which K?

No statistical test: costs and counts are measured and a speed-up is predicted from them. Costs come from the
certificate (median milliseconds of a call at each width) and from the drafter (median over generations of its
milliseconds a proposal), acceptance from runs over calibration prompts. A round that proposes n tokens costs
the call that holds n + 1 rows and the drafter's time; plain decoding costs one call at the law's width for
each token. The bundle as a whole has `no-gain` only if no K gains LEAST_GAIN in any class and temperature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specc.errors import SpeccError
from specc.gate.checks import Check
from specc.gate.engine.equality import Work
from specc.progress import Progress, no_progress
from specc.runtime import Certificate, Event, Model, Session

LEAST_GAIN = 1.05
TIE = 1.02
"""Two speed-ups whose ratio is below this count as equal: medians of a few calls cannot tell them apart."""
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class SpeedRow:
    """One prompt class, temperature and K."""

    prompt_class: str
    temperature: float
    k: int
    speed_up: float
    """Predicted, against plain decoding."""
    acceptance: float
    """accepted / proposed, 0 where nothing was proposed."""
    tokens_per_call: float
    proposing: float
    """Share of rounds that propose."""
    by_position: tuple[float, ...]
    """Chance that slot i is accepted, given that it was reached."""

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return asdict(self)


@dataclass(frozen=True)
class AcceptanceCount:
    """Counts of one prompt class, temperature and K; the only times are the drafter's."""

    prompt_class: str
    temperature: float
    k: int
    calls: dict[int, int]
    """Rounds by the width of their call."""
    tokens: int
    proposed: int
    accepted: int
    proposing: int
    """Rounds that proposed."""
    reached: tuple[int, ...]
    """[k] rounds in which slot i was judged."""
    passed: tuple[int, ...]
    """[k] rounds in which it was accepted."""
    draft_ms: tuple[float, ...]
    """Milliseconds a proposal, one number for each generation that had any."""
    draft_call_ms: tuple[float, ...] = ()
    """Milliseconds a call of the draft's engine, likewise."""


@dataclass(frozen=True)
class SpeedVerdict:
    """Best K overall, all rows, and what is best for each class and temperature."""

    k: int
    best: float
    """Largest predicted speed-up of all rows."""
    draft_ms: float
    """A proposal of the best K, median."""
    rows: tuple[SpeedRow, ...]
    check: Check
    draft_call_ms: float = 0.0
    """A call of the draft's engine, median; 0 without one."""

    def as_dict(self) -> dict[str, Any]:
        """For reports: all rows, and the K that is best for each class and temperature."""
        rows = [row.as_dict() for row in select_best_rows(self.rows)]
        best = [
            {name: row[name] for name in ("prompt_class", "temperature", "k", "speed_up")}
            | {"no_gain": row["speed_up"] < LEAST_GAIN}
            for row in rows
        ]
        return {
            "k": self.k,
            "draft_ms": self.draft_ms,
            "limit": LEAST_GAIN,
            "best": best,
            "rows": [row.as_dict() for row in self.rows],
        }


def judge_speed(
    model: Model, certificate: Certificate, classes: dict[str, Work], progress: Progress = no_progress
) -> SpeedVerdict:
    """Measures acceptance at each K whose width differs and predicts the speed-up from median costs.

    progress: called with "speed" after each class, temperature and K.
    """
    cells = [
        (name, t, k)
        for k in list_useful_k(certificate, model.info.k_max)
        for name in classes
        for t in TEMPERATURES
    ]
    counts = []
    with model.session() as session:
        for i, (name, temperature, k) in enumerate(cells):
            counts.append(measure_acceptance(session, certificate, name, classes[name], temperature, k))
            progress("speed", (i + 1) / len(cells))
    draft_ms = {k: median_draft_ms(counts, k) for k in {count.k for count in counts}}
    rows = [predict_row(count, certificate, draft_ms[count.k]) for count in counts]
    k, best = choose_k(rows), max(rows, key=lambda row: row.speed_up)
    label = f"speed: predicted speed-up at its best ({best.prompt_class}, T={best.temperature}, K={best.k})"
    check = Check(label, LEAST_GAIN, best.speed_up, best.speed_up >= LEAST_GAIN)
    call_ms = median([ms for count in counts for ms in count.draft_call_ms] or [0.0])
    return SpeedVerdict(k, best.speed_up, draft_ms[k], tuple(rows), check, call_ms)


def list_useful_k(certificate: Certificate, k_max: int) -> list[int]:
    """The largest K of each verify width: smaller ones would pay for rows that they do not use."""
    widths = {k: find_verify_width(certificate, k) for k in range(1, k_max + 1)}
    return [k for k in widths if widths[k] and widths.get(k + 1) != widths[k]]


def find_verify_width(certificate: Certificate, k: int) -> int:
    """The smallest certified width for K tokens, as the runtime picks it; 0 for none."""
    width_class = dict(zip(certificate.widths, certificate.width_class, strict=True))
    law_class = width_class[certificate.law_width]
    large_enough = [w for w in certificate.widths if w > k]
    exact = [w for w in large_enough if width_class[w] == law_class and law_class >= 0]
    usable = large_enough if certificate.kind == "bounded" else exact
    return usable[0] if usable else 0


class RoundTally:
    """Counts over the rounds of several generations with the same K."""

    def __init__(self, certificate: Certificate, k: int) -> None:
        self.certificate = certificate
        self.calls, self.reached, self.passed = Counter[int](), [0] * k, [0] * k
        self.tokens = self.proposed = self.accepted = self.proposing = 0

    def add(self, event: Event) -> None:
        """Adds one round."""
        law_width = self.certificate.law_width
        self.calls[find_verify_width(self.certificate, event.proposed) if event.proposed else law_width] += 1
        self.tokens += len(event.tokens)
        self.proposing += event.proposed > 0
        self.proposed += event.proposed
        self.accepted += event.accepted
        for slot in range(event.proposed):
            self.reached[slot] += event.accepted >= slot
            self.passed[slot] += event.accepted > slot


def measure_acceptance(
    session: Session, certificate: Certificate, name: str, work: Work, temperature: float, k: int
) -> AcceptanceCount:
    """Generates and counts. Counts are the same in every run of an engine; the drafter's times are not."""
    tally = RoundTally(certificate, k)
    draft_ms: list[float] = []
    draft_call_ms: list[float] = []
    for i, prompt in enumerate(work.prompts):
        before = tally.proposing
        for event in session.generate(
            prompt,
            temperature=temperature,
            rule="coupled",
            k=k,
            seed=work.seed + i,
            max_new_tokens=work.new_tokens,
            ignore_eos=True,
        ):
            if not event.prefill and event.tokens:
                tally.add(event)
        seconds = session.stats["draft_seconds"]
        if tally.proposing > before:
            draft_ms.append(1e3 * seconds / (tally.proposing - before))
        if session.stats["draft_calls"]:
            draft_call_ms.append(1e3 * seconds / session.stats["draft_calls"])
    return AcceptanceCount(
        name,
        temperature,
        k,
        dict(tally.calls),
        tally.tokens,
        tally.proposed,
        tally.accepted,
        tally.proposing,
        tuple(tally.reached),
        tuple(tally.passed),
        tuple(draft_ms),
        tuple(draft_call_ms),
    )


def median_draft_ms(counts: Sequence[AcceptanceCount], k: int) -> float:
    """Milliseconds of a proposal of at most k tokens, attempts that proposed nothing included; 0
    without any.
    """
    return median([ms for count in counts if count.k == k for ms in count.draft_ms] or [0.0])


def predict_row(count: AcceptanceCount, certificate: Certificate, draft_ms: float) -> SpeedRow:
    """Predicted speed-up from counts and costs."""
    cost = dict(zip(certificate.widths, certificate.call_ms, strict=True))
    rounds = sum(count.calls.values())
    spent = sum(cost[width] * n for width, n in count.calls.items()) + draft_ms * count.proposing
    plain = count.tokens * cost[certificate.law_width]
    by_position = tuple(p / r if r else 0.0 for p, r in zip(count.passed, count.reached, strict=True))
    return SpeedRow(
        count.prompt_class,
        count.temperature,
        count.k,
        plain / max(spent, 1e-12),
        count.accepted / max(count.proposed, 1),
        count.tokens / max(rounds, 1),
        count.proposing / max(rounds, 1),
        by_position,
    )


def select_best_rows(rows: Sequence[SpeedRow]) -> list[SpeedRow]:
    """For each class and temperature the row with the largest speed-up."""
    best: dict[tuple[str, float], SpeedRow] = {}
    for row in rows:
        cell = row.prompt_class, row.temperature
        if cell not in best or row.speed_up > best[cell].speed_up:
            best[cell] = row
    return list(best.values())


def choose_k(rows: Sequence[SpeedRow]) -> int:
    """The largest K whose geometric mean of speed-ups over classes and temperatures is within `TIE` of the
    best.

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
    return (cost[find_verify_width(certificate, k)] + draft_ms) / max(cost[certificate.law_width], 1e-12)


def load_prompt_classes(
    folder: Path, tokens: Sequence[int], context: int, seed: int, prompts: int = 2
) -> dict[str, Work]:
    """Prompts of each class to tune on, as the bundle's tokenizer and template make them; calibration text
    where the device has no tokenizer package or the context is too short for them.
    """
    new_tokens = max(1, min(48, context // 4))
    try:
        from specc.calib.prompts import load
        from specc.contracts.bundle.manifest import read_bundle
        from specc.generate.template import Prompter

        prompter = Prompter.from_bundle(read_bundle(folder))
        classes = {
            name: tuple(tuple(prompter.encode_user(text)) for text in texts[:prompts])
            for name, texts in load("tuning").items()
        }
    except (ImportError, SpeccError, OSError):
        return make_prompt_classes(tokens, context, seed)
    if any(len(prompt) + new_tokens >= context for group in classes.values() for prompt in group):
        return make_prompt_classes(tokens, context, seed)
    return {name: Work(group, new_tokens, seed) for name, group in classes.items()}


def make_prompt_classes(
    tokens: Sequence[int], context: int, seed: int, new_tokens: int = 48
) -> dict[str, Work]:
    """`prose`: plain calibration text; `copy`: a text followed by its own first quarter."""
    new_tokens = max(1, min(new_tokens, context // 4))
    size = max(2, min(64, (context - new_tokens - 2) // 2))
    starts = [len(tokens) * i // 4 for i in range(1, 4)]
    prose = tuple(tuple(tokens[start : start + size]) or tuple(tokens[:1]) for start in starts)
    copy = tuple((*text, *text[: max(1, len(text) // 4)]) for text in prose)
    return {"prose": Work(prose, new_tokens, seed), "copy": Work(copy, new_tokens, seed)}
