"""The replay judge: every decision of a record again, by the references in numpy, on logits computed without
drafts.

A fresh session reads the prompt, then one token a call at the law's width, so that no draft and no other row
takes part. A decision is right when the numbers behind it are (u from the seed, p from the logits, q as
recorded) and when the rule makes of them what was emitted. Nothing is random and nothing is tested
statistically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError, RuntimeFault
from specc.gate.replay.slot import compute_law, judge_numbers, judge_rule, judge_shape
from specc.generate.record import Record, Round, Slot, read_record
from specc.progress import Progress, no_progress
from specc.runtime import Info, Model, Request, Session


@dataclass(frozen=True)
class Difference:
    """The first decision that is not what the law makes of its numbers."""

    round: int
    slot: int
    position: int
    """Index among prompt and output."""
    token: int | None
    """The drafted id."""
    emitted: int
    what: str
    p: float | None
    """As recorded; likewise q, u and p_emitted."""
    q: float | None
    u: float | None
    p_emitted: float


class PlainRows:
    """Rows of the law: the deployed target's logits behind a text, one call a token."""

    def __init__(self, session: Session, model: Model, prompt: Sequence[int]) -> None:
        info = model.info
        self.session, self.width, self.n_ids = session, info.certificate.law_width, info.n_ids
        for at in range(0, len(prompt) - 1, info.chunk):
            session.rows(prompt[at : min(at + info.chunk, len(prompt) - 1)], at, info.chunk, wanted=False)

    def after(self, text: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits [n_ids] behind text, of which all but the last token has been read; -inf for an id without a
        logit.

        Raises RuntimeFault for logits that are no numbers.
        """
        row = self.session.rows(text[-1:], len(text) - 1, self.width)[0][: self.n_ids]
        if np.isnan(row).any() or np.isposinf(row).any():
            raise RuntimeFault(f"the logits behind token {len(text) - 1} are no numbers; run `specc gate`", 7)
        return np.concatenate([row, np.full(self.n_ids - row.size, -np.inf, np.float32)])


def judge_record(
    folder: Path,
    path: Path,
    threads: int = 0,
    certificates: Path | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """The JSON of `specc gate --replay`. Raises InputError for a record of another bundle or one that is
    none.
    """
    record = read_record(path)
    with Model.open(folder, threads=threads, certificates=certificates, trust=True) as model:
        check_bundle(record, model, folder)
        difference, decisions = judge_rounds(record, model, progress)
        info = model.info
    return compose_answer(record, difference, decisions, info)


def check_bundle(record: Record, model: Model, folder: Path) -> None:
    """The record must be of this very bundle."""
    header, info = record.header, model.info
    if header.digest != info.digest:
        raise InputError(
            f"{record.path} was recorded with the bundle of digest {header.digest[:16]}, {folder} is "
            f"{info.digest[:16]}; give the bundle that it was recorded with"
        )
    if not header.prompt or max(header.prompt) >= info.n_ids or len(header.prompt) >= info.context:
        raise InputError(f"{record.path} has a prompt that {folder} cannot read; record the generation again")
    try:
        Request(**header.request)
    except TypeError as error:
        raise InputError(f"{record.path} asks for what no request has ({error}); record it again") from None


def judge_rounds(record: Record, model: Model, progress: Progress) -> tuple[Difference | None, int]:
    """The first difference, and how many decisions were judged. progress: called with "replay" after each
    round.
    """
    text, decisions, info = list(record.header.prompt), 0, model.info
    with model.session() as session:
        plain = PlainRows(session, model, text)
        for i, round in enumerate(record.rounds):
            difference = next(judge_round(round, record, text, plain, info.eos), None)
            decisions += len(round.slots)
            if difference is None:
                difference = judge_commit(round, record, text, info.eos, info.context)
            if difference is not None:
                return difference, decisions
            text += round.tokens
            progress("replay", (i + 1) / len(record.rounds))
    return None, decisions


def judge_round(
    round: Round, record: Record, text: Sequence[int], plain: PlainRows, eos: Sequence[int]
) -> Iterator[Difference]:
    """Differences of one round, slot by slot."""
    if round.at != len(text):
        yield make_difference(
            round, 0, f"the round begins behind {round.at} tokens, {len(text)} were committed before it"
        )
        return
    before = list(text)
    for i, slot in enumerate(round.slots):
        p = compute_law(record.header, plain.after(before), before, eos)
        wrong = (
            judge_shape(round, i, p.size)
            or judge_numbers(record.header, slot, p, len(before))
            or judge_rule(record.header, slot, p, len(before))
        )
        if wrong:
            yield make_difference(round, i, wrong)
            return
        before.append(slot.emitted)


def judge_commit(
    round: Round, record: Record, text: Sequence[int], eos: Sequence[int], context: int
) -> Difference | None:
    """What was committed is what was emitted, up to an end token, the limit or (in the last round) a stop
    string.
    """
    request, emitted = record.header.request, [slot.emitted for slot in round.slots]
    room = min(context - len(text), int(request["max_new_tokens"]) - (len(text) - len(record.header.prompt)))
    kept = emitted[: max(room, 0)]
    ends = [i for i, token in enumerate(kept) if token in eos and not request["ignore_eos"]]
    kept = kept[: ends[0] + 1] if ends else kept
    committed = list(round.tokens)
    stopped = bool(request["stop"]) and round is record.rounds[-1] and 0 < len(committed) <= len(kept)
    if committed == kept or (stopped and committed == kept[: len(committed)]):
        return None
    return make_difference(round, 0, f"{committed} was committed, of what was emitted {kept} should be")


def make_difference(round: Round, i: int, what: str) -> Difference:
    """A difference with the numbers of its slot."""
    empty = Slot(None, 0, False, None, None, 0.0, None, None, None)
    slot = round.slots[i] if i < len(round.slots) else empty
    return Difference(
        round.number,
        i,
        round.at + i,
        slot.drafted,
        slot.emitted,
        what,
        slot.p,
        slot.q,
        slot.u,
        slot.p_emitted,
    )


def compose_answer(
    record: Record, difference: Difference | None, decisions: int, info: Info
) -> dict[str, Any]:
    """The JSON of a replay."""
    verdict = "failed" if difference else "passed" if record.finish is not None else "cut-off"
    notes = []
    if record.finish is None:
        notes.append(
            f"{record.path} is cut off behind {len(record.rounds)} whole rounds; the rest was not judged"
        )
    if record.header.fingerprint != info.fingerprint:
        notes.append(f"it was recorded on another device, {record.header.device}")
    if info.certificate.kind == "bounded":
        notes.append(
            "the bundle is approximate here: rows of a round are not those of plain decoding, bit for bit"
        )
    return {
        "verdict": verdict,
        "rounds": len(record.rounds),
        "decisions": decisions,
        "finish": record.finish,
        "difference": asdict(difference) if difference else None,
        "notes": notes,
        "digest": record.header.digest,
        "seed": record.header.seed,
        "rule": record.header.request["rule"],
        "device": info.device,
    }
