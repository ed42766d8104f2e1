"""Records of generations, as `specc run --record` keeps them and `specc gate --replay` judges them again.

One JSON value a line: a head (bundle, device, seed, request, prompt ids), a line for each round with
everything that decided it, and an end. Each line is written out at once, so that a crash costs at most the
round under way.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specc.atomic import io_errors
from specc.errors import InputError
from specc.version import __version__

if TYPE_CHECKING:
    from specc.runtime import Decision, Event, Info, Session

FORMAT = 1
Row = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Slot:
    """One judged slot; numbers that decided nothing are None."""

    drafted: int | None
    emitted: int
    accepted: bool
    p: float | None  # of the drafted id
    q: float | None
    p_emitted: float
    u: float | None
    draw: float | None
    q_row: Row | None
    """[n_ids] what a rejected id was drawn from; None: one-hot, or not needed."""


@dataclass(frozen=True)
class Round:
    """One round: where it began, what it judged, what of it was committed."""

    number: int
    at: int
    slots: tuple[Slot, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Head:
    """What a generation was asked for, and of whom."""

    digest: str
    device: str
    fingerprint: str
    kind: str
    law_width: int
    seed: int
    request: dict[str, Any]
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """A record that was read."""

    path: Path
    head: Head
    rounds: tuple[Round, ...]
    finish: str | None
    """How it ended; None: the file is cut off."""


# ---------------------------------------------------------------------- writing


class Recorder:
    """Writes one record; made by `recording`."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path, self._rounds, self._tokens = file, path, 0, 0

    def line(self, value: Mapping[str, Any]) -> None:
        """One line, in the system's hands before this returns."""
        with io_errors(f"writing the record {self._path}"):
            self._file.write(json.dumps(value, allow_nan=False) + "\n")
            self._file.flush()

    def event(self, event: Event, at: int) -> None:
        """A round that began behind `at` committed tokens; prompt chunks are passed over."""
        if event.prefill or not event.tokens:
            return
        slots = [slot_line(decision) for decision in event.decisions]
        self.line({"round": self._rounds, "at": at, "slots": slots, "tokens": list(event.tokens)})
        self._rounds, self._tokens = self._rounds + 1, self._tokens + len(event.tokens)

    def end(self, finish: str) -> None:
        """The last line."""
        self.line({"end": finish, "rounds": self._rounds, "tokens": self._tokens})


@contextmanager
def recording(path: Path) -> Iterator[Recorder]:
    """A record of the given name. Raises EnvironmentFault where it cannot be written."""
    with io_errors(f"writing the record {path}"):
        file = path.open("w", encoding="ascii")
    with file:
        yield Recorder(file, path)


def head_line(
    name: str, info: Info, session: Session, request: Mapping[str, Any], ids: Sequence[int]
) -> dict[str, Any]:
    """The first line of a generation that has just begun."""
    from specc.runtime import Request

    certificate = info.certificate
    asked = asdict(Request(**request))
    asked["logit_bias"] = [[i, None if v == -np.inf else v] for i, v in asked["logit_bias"].items()]
    return {
        "record": FORMAT,
        "specc": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "bundle": {"name": name, "digest": info.digest, "engine_sha256": info.engine_sha256},
        "device": {
            "name": info.device,
            "fingerprint": info.fingerprint,
            "threads": info.threads,
            "backend": info.backend,
            "backend_version": info.backend_version,
        },
        "certificate": {"kind": certificate.kind, "law_width": certificate.law_width, "k": certificate.k},
        "seed": session.seed,
        "request": asked,
        "prompt": list(ids),
    }


def slot_line(decision: Decision) -> dict[str, Any]:
    """One decision; the whole q only where the residual needs it."""
    line = {
        "drafted": decision.drafted,
        "emitted": decision.emitted,
        "accepted": decision.accepted,
        "p": decision.p_drafted,
        "q": decision.q_drafted,
        "p_emitted": decision.p_emitted,
        "u": decision.u,
        "draw": decision.draw,
    }
    needed = decision.q is not None and decision.draw is not None
    return {**line, "q_row": pack_row(decision.q)} if needed and decision.q is not None else line


def pack_row(row: Row) -> str:
    """float64 [n] as text: base64 of its deflated little-endian bytes."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(row, "<f8").tobytes())).decode("ascii")


def unpack_row(text: str) -> Row:
    """The row behind pack_row's text. Raises ValueError or zlib.error for what is none."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), "<f8")


# ---------------------------------------------------------------------- reading


def read_recording(path: Path) -> Recording:
    """Read a record; the line that a crash cut off is left away. Raises InputError naming the line that is
    none.
    """
    lines = read_lines(path)
    head = parsed(path, 1, lines[0], head_of)
    rounds, finish = list[Round](), None
    for number, line in enumerate(lines[1:], 2):
        if finish is not None:
            raise InputError(f"{path} goes on behind its end, in line {number}; record the generation again")
        found = parsed(path, number, line, round_or_end)
        finish, rounds = (found, rounds) if isinstance(found, str) else (None, [*rounds, found])
    return Recording(path, head, tuple(rounds), finish)


def read_lines(path: Path) -> list[str]:
    """The whole lines of a record: at least its head."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read the record {path}: {error}; give a file of `specc run --record`"
        ) from None
    *lines, rest = text.split("\n")
    lines += [rest] if rest and is_json(rest) else []
    if not lines:
        raise InputError(f"{path} is no record: it has no whole line; give a file of `specc run --record`")
    return lines


def is_json(text: str) -> bool:
    """Whether a last line without its end is whole nevertheless."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def parsed(path: Path, number: int, line: str, make: Any) -> Any:
    """A line as `make` takes it, or a sentence that names the line."""
    try:
        return make(json.loads(line))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
        zlib.error,
    ) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path}, line {number}, is not of a record ({what}); record the generation again"
        ) from None


def head_of(line: Any) -> Head:
    """The first line."""
    if line["record"] != FORMAT:
        raise ValueError(f"format {line['record']!r}, this specc reads {FORMAT}")
    request = dict(line["request"])
    request["logit_bias"] = {int(i): -np.inf if v is None else float(v) for i, v in request["logit_bias"]}
    device, certificate = line["device"], line["certificate"]
    names = (
        str(line["bundle"]["digest"]),
        str(device["name"]),
        str(device["fingerprint"]),
        str(certificate["kind"]),
    )
    prompt = tuple(whole(i) for i in line["prompt"])
    return Head(*names, whole(certificate["law_width"]), whole(line["seed"]), request, prompt)


def round_or_end(line: Any) -> Round | str:
    """A later line."""
    if "end" in line:
        return str(line["end"])
    slots = tuple(slot_of(slot) for slot in line["slots"])
    return Round(whole(line["round"]), whole(line["at"]), slots, tuple(whole(i) for i in line["tokens"]))


def slot_of(line: Any) -> Slot:
    """One slot."""
    row = line.get("q_row")
    return Slot(
        None if line["drafted"] is None else whole(line["drafted"]),
        whole(line["emitted"]),
        bool(line["accepted"]),
        number(line["p"]),
        number(line["q"]),
        float(line["p_emitted"]),
        number(line["u"]),
        number(line["draw"]),
        None if row is None else unpack_row(row),
    )


def whole(value: Any) -> int:
    """A whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value


def number(value: Any) -> float | None:
    """A number or nothing."""
    return None if value is None else float(value)
