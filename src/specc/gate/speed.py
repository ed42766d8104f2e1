"""The speed judge: does speculation pay here, and with which K?

Costs come from the certificate (milliseconds of a call at each width), acceptance from runs over calibration prompts.
A round that proposes n tokens costs the call that holds n + 1 rows and the drafter's time; plain decoding costs one
call at the law's width for each token. The whole bundle has `no-gain` only if no K gains in any class and temperature.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specc.gate.checks import Check
from specc.gate.equality import Work
from specc.runtime import Certificate, Model, Session

LEAST_GAIN = 1.05
TEMPERATURES = (0.0, 0.8)
Progress = Callable[[int, int], Any]


@dataclass(frozen=True)
class Row:
    """One prompt class, temperature and K."""

    prompt_class: str
    temperature: float
    k: int
    speed_up: float                            # predicted, against plain
    acceptance: float                          # accepted / proposed, 0 where nothing was proposed
    tokens_per_call: float
    proposing: float                           # share of rounds that propose
    by_position: tuple[float, ...]             # chance that slot i is accepted, given that it was reached

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return asdict(self)


@dataclass(frozen=True)
class Speed:
    """The verdict: best K, its predicted speed-up in its best class, all rows, milliseconds of a proposal."""

    k: int
    best: float
    draft_ms: float
    rows: tuple[Row, ...]
    check: Check


def judge(model: Model, certificate: Certificate, classes: dict[str, Work], progress: Progress | None = None) -> Speed:
    """Measures acceptance at each K whose width differs and predicts speed from the certificate's costs."""
    cells = [(name, t, k) for k in useful_k(certificate, model.info.k_max) for name in classes for t in TEMPERATURES]
    rows, drafted = [], [0.0, 0.0]
    with model.session() as session:
        for i, (name, temperature, k) in enumerate(cells):
            row, seconds, rounds = measure(session, certificate, name, classes[name], temperature, k)
            rows.append(row)
            drafted = [drafted[0] + seconds, drafted[1] + rounds]
            if progress is not None:
                progress(i + 1, len(cells))
    k = best_k(rows)
    best = max(row.speed_up for row in rows)
    check = Check(f"speed: predicted speed-up in the best class (K = {k})", LEAST_GAIN, best, best >= LEAST_GAIN)
    return Speed(k, best, 1e3 * drafted[0] / max(drafted[1], 1.0), tuple(rows), check)


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


def measure(session: Session, certificate: Certificate, name: str, work: Work, temperature: float,
            k: int) -> tuple[Row, float, int]:
    """One row, and the drafter's seconds over its proposing rounds."""
    cost = dict(zip(certificate.widths, certificate.call_ms, strict=True))
    spent = tokens = accepted = proposed = seconds = 0.0
    rounds = proposing = 0
    reached, passed = [0] * k, [0] * k
    for i, prompt in enumerate(work.prompts):
        events = session.generate(prompt, temperature=temperature, rule="coupled", k=k, seed=work.seed + i,
                                  max_new_tokens=work.new_tokens, ignore_eos=True)
        for event in (event for event in events if not event.prefill and event.tokens):
            width = verify_width(certificate, event.proposed) if event.proposed else certificate.law_width
            spent, tokens, rounds = spent + cost[width], tokens + len(event.tokens), rounds + 1
            proposed, accepted = proposed + event.proposed, accepted + event.accepted
            proposing += event.proposed > 0
            for slot in range(event.proposed):
                reached[slot] += event.accepted >= slot
                passed[slot] += event.accepted > slot
        seconds += session.stats["draft_seconds"]
    plain = tokens * cost[certificate.law_width]
    by_position = tuple(p / r if r else 0.0 for p, r in zip(passed, reached, strict=True))
    row = Row(name, temperature, k, plain / max(spent + 1e3 * seconds, 1e-12), accepted / max(proposed, 1.0),
              tokens / max(rounds, 1), proposing / max(rounds, 1), by_position)
    return row, seconds, proposing


def best_k(rows: Sequence[Row]) -> int:
    """The K with the largest geometric mean of speed-ups over classes and temperatures."""
    def mean(k: int) -> float:
        gains = [math.log(max(row.speed_up, 1e-9)) for row in rows if row.k == k]
        return sum(gains) / len(gains)

    return max(sorted({row.k for row in rows}), key=mean)


def break_even(certificate: Certificate, k: int, draft_ms: float) -> float:
    """Tokens in a proposing round of K tokens from which speculation pays."""
    cost = dict(zip(certificate.widths, certificate.call_ms, strict=True))
    return (cost[verify_width(certificate, k)] + draft_ms) / max(cost[certificate.law_width], 1e-12)


def prompt_classes(tokens: Sequence[int], context: int, seed: int, new_tokens: int = 48) -> dict[str, Work]:
    """`prose`: plain calibration text; `copy`: text that stands twice in the prompt, begun a second time."""
    new_tokens = max(1, min(new_tokens, context // 4))
    size = max(2, min(64, (context - new_tokens - 2) // 2))
    starts = [len(tokens) * i // 4 for i in range(1, 4)]
    prose = tuple(tuple(tokens[start : start + size]) or tuple(tokens[:1]) for start in starts)
    copy = tuple((*text, *text[: max(1, len(text) // 4)]) for text in prose)
    return {"prose": Work(prose, new_tokens, seed), "copy": Work(copy, new_tokens, seed)}
