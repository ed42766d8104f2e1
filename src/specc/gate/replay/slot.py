"""One decision of a record: its shape, the numbers behind it, and what the rule makes of them.

Each judge gives a sentence on what is wrong, or None. Sources: rejection as in Leviathan et al. 2023,
`coupled` as the exponential race of `law.noise`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specc.gate.law import noise
from specc.gate.law.reference import distribution
from specc.generate.record import Header, Round, Slot
from specc.runtime import Options, Request

CLOSE = 1e-9
"""Relative tolerance: C and numpy round exp and sums differently."""
TINY = 1e-12
Row = npt.NDArray[np.float64]


def compute_law(
    header: Header, logits: npt.NDArray[np.float32], text: Sequence[int], eos: Sequence[int]
) -> Row:
    """p [n_ids] behind text by the reference; end tokens are banned until min_new_tokens are out."""
    request, n_prompt = Request(**header.request), len(header.prompt)
    bans = len(text) - n_prompt < request.min_new_tokens and not request.ignore_eos
    bias = {**request.logit_bias, **(dict.fromkeys(eos, -np.inf) if bans else {})}
    names = Options.__dataclass_fields__
    options = Options(**{**{name: getattr(request, name) for name in names}, "logit_bias": bias})
    return distribution(options, logits, text, n_prompt)


def judge_shape(round: Round, i: int, n_ids: int) -> str | None:
    """Accepted slots come before the last one, an accepted id is the drafted one, and ids are ids."""
    slot, last = round.slots[i], i == len(round.slots) - 1
    if slot.emitted >= n_ids or (slot.drafted or 0) >= n_ids:
        return f"ids are below {n_ids}"
    if slot.accepted and slot.drafted != slot.emitted:
        return "the drafted id was accepted and another one emitted"
    if not slot.accepted and not last:
        return "the round goes on behind a rejection"
    if slot.accepted and last:
        return "the round ends with an accepted id and without a token of the target's own"
    return None


def judge_numbers(header: Header, slot: Slot, p: Row, position: int) -> str | None:
    """u and draw come from the seed, p from the logits, q from its row."""
    sampled = header.request["temperature"] != 0 and header.request["rule"] == "rejection"
    wanted = {
        "u": find_number(header, position, noise.ACCEPT, sampled and slot.drafted is not None),
        "draw": find_number(header, position, noise.TARGET, sampled and not slot.accepted),
    }
    for name, value in wanted.items():
        if getattr(slot, name) != value:
            return f"{name} is {format_number(getattr(slot, name))}, the seed gives {format_number(value)}"
    if slot.drafted is not None and not is_close(slot.p, p[slot.drafted]):
        return f"p of the drafted id is {format_number(slot.p)}, plainly it is {p[slot.drafted]:.17g}"
    if not is_close(slot.p_emitted, p[slot.emitted]):
        return f"p of the emitted id is {format_number(slot.p_emitted)}, plainly it is {p[slot.emitted]:.17g}"
    return judge_q(slot, p.size)


def find_number(header: Header, position: int, purpose: int, used: bool) -> float | None:
    """The seed's random number for a purpose, None where none decides."""
    return noise.uniform(header.seed, position, purpose, int(header.request["sample"])) if used else None


def judge_q(slot: Slot, n_ids: int) -> str | None:
    """q is a probability that the drafted id can have, and that of its row."""
    if slot.drafted is None:
        return None if slot.q is None else "q is given for no drafted id"
    if slot.q is None or not 0 < slot.q <= 1 + CLOSE:
        return f"q of the drafted id is {format_number(slot.q)}"
    row = slot.q_row
    if row is None:
        return (
            None
            if slot.q == 1 or slot.draw is None
            else "q of a rejected id is below 1 and its row is missing"
        )
    if row.size != n_ids or not (row >= 0).all() or not is_close(row.sum(), 1.0):
        return f"the row of q has {row.size} entries with the sum {row.sum():.17g}"
    return (
        None if row[slot.drafted] == slot.q else f"q is {slot.q:.17g}, its row says {row[slot.drafted]:.17g}"
    )


def judge_rule(header: Header, slot: Slot, p: Row, position: int) -> str | None:
    """What the rule makes of these numbers."""
    if header.request["temperature"] == 0:
        return judge_choice(slot, int(np.argmax(p)), "the largest logit")
    if header.request["rule"] == "coupled":
        times = noise.race_times(p, header.seed, position, int(header.request["sample"]))
        first = int(np.argmin(times))
        tie = times[slot.emitted] <= times[first] * (1 + CLOSE)
        return judge_choice(slot, slot.emitted if tie else first, "the race")
    if slot.drafted is not None:
        wrong = judge_acceptance(slot, p)
        if wrong or slot.accepted:
            return wrong
    return judge_draw(slot, p)


def judge_choice(slot: Slot, token: int, who: str) -> str | None:
    """Where the target's own choice is one id: it is emitted, and a draft is accepted exactly when it is that
    id.
    """
    if slot.emitted != token:
        return f"{who} gives id {token}, id {slot.emitted} was emitted"
    if slot.drafted is not None and slot.accepted != (slot.drafted == token):
        return f"{who} gives id {token}, the drafted id {slot.drafted} was {describe_decision(slot)}"
    return None


def judge_acceptance(slot: Slot, p: Row) -> str | None:
    """u * q < p; a rejection with nothing left to draw from is an acceptance."""
    assert slot.drafted is not None and slot.u is not None and slot.q is not None
    left, right = slot.u * slot.q, float(p[slot.drafted])
    accepted = left < right or not residual(slot, p).sum() > TINY
    if abs(left - right) <= CLOSE * max(left, right) or accepted == slot.accepted:
        return None
    decision = f"the drafted id {slot.drafted} was {describe_decision(slot)}"
    return f"u * q is {left:.6g} and p {right:.6g}, and {decision}"


def residual(slot: Slot, p: Row) -> Row:
    """(p - q)+ [n_ids]; p itself where nothing was drafted."""
    if slot.drafted is None:
        return p
    if slot.q_row is not None:
        left: Row = np.maximum(p - slot.q_row, 0)
        return left
    rest: Row = p.copy()
    rest[slot.drafted] = 0
    return rest


def judge_draw(slot: Slot, p: Row) -> str | None:
    """The number `draw` falls into the emitted id's part of p or of the residual."""
    weight = residual(slot, p)
    assert slot.draw is not None
    low, high = noise.draw_interval(weight, slot.emitted)
    if weight[slot.emitted] > 0 and low - CLOSE <= slot.draw <= high + CLOSE:
        return None
    token = int(np.searchsorted(np.cumsum(weight) / weight.sum(), slot.draw, side="right"))
    return f"the number {slot.draw:.6g} draws id {token}, id {slot.emitted} was emitted"


def is_close(a: float | None, b: float) -> bool:
    """Equal up to rounding."""
    return a is not None and abs(a - b) <= CLOSE * max(abs(a), abs(b)) + TINY


def format_number(value: float | None) -> str:
    """A number in full."""
    return "nothing" if value is None else f"{value:.17g}"


def describe_decision(slot: Slot) -> str:
    """The decision in a word."""
    return "accepted" if slot.accepted else "rejected"
