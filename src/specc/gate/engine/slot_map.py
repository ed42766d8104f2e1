"""The bit-equality map: each slot of each width against the same position computed alone at the law's width.

It is measured independently of the certificate, through the runtime's public calls, and drawn in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.runtime import Certificate, Model, Session

FAR = 512
"""Cache entries before the farthest window, where the context has that many."""
Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SlotRow:
    """One width: rows compared and rows with another bit, slot by slot."""

    width: int
    compared: tuple[int, ...]
    different: tuple[int, ...]
    largest: float
    """Largest difference of a logit."""


@dataclass(frozen=True)
class SlotMap:
    """All widths of an engine."""

    law_width: int
    pasts: tuple[int, ...]
    """Cache entries before each window."""
    rows: tuple[SlotRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return asdict(self)


def measure_slots(model: Model, certificate: Certificate, tokens: Sequence[int]) -> SlotMap:
    """Compares each width once in each of three windows: at the start, in the middle and far behind."""
    info, widest = model.info, certificate.widths[-1]
    last = max(0, min(info.context - widest, FAR))
    pasts = tuple(sorted({0, last // 4, last}))
    text = (list(tokens) * (1 + (last + widest) // max(len(tokens), 1)))[: last + widest]
    tallies = {width: np.zeros((3, width)) for width in certificate.widths}
    with model.session() as session:
        for past in pasts:
            read_text(session, text[:past], info.chunk)
            law = compute_alone(session, text, past, min(widest, info.context - past), certificate.law_width)
            for width, counts in tallies.items():
                n = min(width, len(law))
                add_rows(counts, session.rows(text[past : past + n], past, width), law[:n])
    rows = tuple(SlotRow(w, as_ints(c[0]), as_ints(c[1]), float(c[2].max())) for w, c in tallies.items())
    return SlotMap(certificate.law_width, pasts, rows)


def read_text(session: Session, text: Sequence[int], chunk: int) -> None:
    """Reads text into an empty cache."""
    for at in range(0, len(text), chunk):
        session.rows(text[at : at + chunk], at, chunk, wanted=False)


def compute_alone(session: Session, text: Sequence[int], past: int, n: int, width: int) -> Rows:
    """Logits [n, vocab] of places past, past + 1, ..., each as the first row of its own call."""
    return np.concatenate([session.rows(text[at : at + 1], at, width) for at in range(past, past + n)])


def add_rows(counts: npt.NDArray[np.float64], rows: Rows, law: Rows) -> None:
    """Adds one call's rows to counts [3, width]: compared, different, largest difference."""
    n = len(rows)
    differ = (rows.view(np.uint32) != law.view(np.uint32)).any(1)
    counts[0, :n] += 1
    counts[1, :n] += differ
    with np.errstate(invalid="ignore"):
        counts[2, :n] = np.maximum(counts[2, :n], np.nan_to_num(np.abs(rows - law).max(1), nan=np.inf))


def as_ints(row: npt.NDArray[np.float64]) -> tuple[int, ...]:
    """Counts as whole numbers."""
    return tuple(int(value) for value in row)
