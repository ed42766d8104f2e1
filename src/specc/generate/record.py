"""Records of generations, as `specc run --record` keeps them and `specc gate --replay` judges them again.

One JSON value a line: a header (bundle, device, seed, request, prompt ids), a line for each round with
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
class Header:
    """The request of a generation, and the bundle and device that answered it."""

    digest: str
    device: str
    fingerprint: str
    kind: str
    law_width: int
    seed: int
    request: dict[str, Any]
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """A record as it was read from its file."""

    path: Path
    header: Header
    rounds: tuple[Round, ...]
    finish: str | None
    """How it ended; None: the file is cut off."""


# ---------------------------------------------------------------------- writing


class Recorder:
    """Writes one record; made by `open_record`."""

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
        slots = [make_slot(decision) for decision in event.decisions]
        self.line({"round": self._rounds, "at": at, "slots": slots, "tokens": list(event.tokens)})
        self._rounds, self._tokens = self._rounds + 1, self._tokens + len(event.tokens)

    def end(self, finish: str) -> None:
        """The last line."""
        self.line({"end": finish, "rounds": self._rounds, "tokens": self._tokens})


@contextmanager
def open_record(path: Path) -> Iterator[Recorder]:
    """A record of the given name. Raises EnvironmentFault where it cannot be written."""
    with io_errors(f"writing the record {path}"):
        file = path.open("w", encoding="ascii")
    with file:
        yield Recorder(file, path)


def make_header(
    name: str, info: Info, session: Session, request: Mapping[str, Any], ids: Sequence[int]
) -> dict[str, Any]:
    """The first line of a generation that has just begun."""
    from specc.runtime import Request

    certificate = info.certificate
    fields = asdict(Request(**request))
    fields["logit_bias"] = [[i, None if v == -np.inf else v] for i, v in fields["logit_bias"].items()]
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
        "request": fields,
        "prompt": list(ids),
    }


def make_slot(decision: Decision) -> dict[str, Any]:
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


def read_record(path: Path) -> Record:
    """Read a record; the line that a crash cut off is left away. Raises InputError naming the line that is
    none.
    """
    lines = read_lines(path)
    header = parse_line(path, 1, lines[0], parse_header)
    rounds, finish = list[Round](), None
    for number, line in enumerate(lines[1:], 2):
        if finish is not None:
            raise InputError(f"{path} goes on behind its end, in line {number}; record the generation again")
        item = parse_line(path, number, line, parse_round)
        if isinstance(item, str):
            finish = item
        else:
            rounds.append(item)
    return Record(path, header, tuple(rounds), finish)


def read_lines(path: Path) -> list[str]:
    """The whole lines of a record: at least its header."""
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


def parse_line(path: Path, number: int, line: str, parse: Any) -> Any:
    """What `parse` makes of a line. Raises InputError that names the line."""
    try:
        return parse(json.loads(line))
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


def parse_header(line: Any) -> Header:
    """The first line. Raises ValueError, KeyError or TypeError for another line."""
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
    prompt = tuple(parse_count(i) for i in line["prompt"])
    return Header(*names, parse_count(certificate["law_width"]), parse_count(line["seed"]), request, prompt)


def parse_round(line: Any) -> Round | str:
    """A later line: a round, or how the generation ended."""
    if "end" in line:
        return str(line["end"])
    slots = tuple(parse_slot(slot) for slot in line["slots"])
    return Round(
        parse_count(line["round"]),
        parse_count(line["at"]),
        slots,
        tuple(parse_count(i) for i in line["tokens"]),
    )


def parse_slot(line: Any) -> Slot:
    """One slot of a round."""
    row = line.get("q_row")
    return Slot(
        None if line["drafted"] is None else parse_count(line["drafted"]),
        parse_count(line["emitted"]),
        bool(line["accepted"]),
        parse_number(line["p"]),
        parse_number(line["q"]),
        float(line["p_emitted"]),
        parse_number(line["u"]),
        parse_number(line["draw"]),
        None if row is None else unpack_row(row),
    )


def parse_count(value: Any) -> int:
    """A whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value


def parse_number(value: Any) -> float | None:
    """A number or nothing."""
    return None if value is None else float(value)
