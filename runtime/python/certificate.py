"""A certificate: what was measured for one engine on one device (struct specc_certificate)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specc.errors import InputError
from specc.runtime._ffi import Library, ffi, text_of

SCALARS = (
    "law_width",
    "threads",
    "k",
    "tv_mean",
    "tv_max",
    "draft_ms",
    "draft_call_ms",
    "rows_compared",
    "calls",
    "law_hash",
    "tv_rows",
    "flips",
    "flip_margin",
    "unrepeatable",
)
KINDS = ("none", "bounded", "bit-exact")


@dataclass(frozen=True)
class Certificate:
    """Field for field specc_certificate; per-width tuples have one entry for each of `widths`."""

    kind: str  # one of KINDS, of the widths that the runtime uses
    law_width: int
    widths: tuple[int, ...]
    width_class: tuple[int, ...]  # class number of each width, -1: its rows disagree with each other
    threads: int
    k: int  # K that pays best, 0 unknown
    reasons: tuple[str, ...]  # why speculation is off; empty: it may be on
    tv_mean: float = 0.0  # upper bound of the mean total variation, plain against verify
    tv_max: float = 0.0
    max_abs_diff: tuple[float, ...] = ()  # logits, from the law width
    call_ms: tuple[float, ...] = ()  # median milliseconds
    draft_ms: float = 0.0  # of a proposal of K tokens
    draft_call_ms: float = 0.0  # of one call of the draft's engine
    rows_compared: int = 0
    rows_different: tuple[int, ...] = ()
    calls: int = 0
    law_hash: int = 0  # of all rows at the law width
    tv_rows: int = 0  # positions behind tv_mean and flips
    flips: int = 0  # of those, whose most probable id changes with the width
    flip_margin: float = 0.0  # largest lead of the first id over the second among them, in logits
    unrepeatable: int = 0  # calls that gave other bits when they were repeated as they were
    evidence: str = ""  # the gravest thing seen, in words

    @property
    def flips_per_10k(self) -> float:
        """Greedy choices that change with the width, per 10,000 positions."""
        return 1e4 * self.flips / self.tv_rows if self.tv_rows else 0.0

    @property
    def words(self) -> str:
        """What every surface says of the law that speculation keeps."""
        if self.kind == "bounded":
            return f"approximate, mean TV <= {self.tv_mean:.4g}"
        return {"bit-exact": "exact, bit for bit"}.get(self.kind, "not certified")

    def as_dict(self) -> dict[str, Any]:
        """What every report says of it; numbers of widths by width."""
        by_width = ("rows_different", "max_abs_diff", "call_ms", "width_class")
        columns = {
            name: dict(zip(map(str, self.widths), getattr(self, name), strict=False)) for name in by_width
        }
        plain = (
            "kind",
            "tv_max",
            "tv_rows",
            "flips_per_10k",
            "flip_margin",
            "evidence",
            "law_width",
            "k",
            "threads",
            "rows_compared",
            "calls",
            "draft_ms",
            "draft_call_ms",
        )
        bound = {"bit-exact": 0.0, "bounded": self.tv_mean}.get(self.kind)
        return {
            **{name: getattr(self, name) for name in plain},
            **columns,
            "widths": self.classes,
            "tv_bound": bound,
            "law": self.words,
            "law_hash": f"{self.law_hash:016x}",
            "reasons": list(self.reasons),
        }

    @property
    def classes(self) -> list[list[int]]:
        """Groups of widths that agree bit for bit; a width whose own rows disagree is in none."""
        numbers = sorted({number for number in self.width_class if number >= 0})
        groups = [
            [w for w, c in zip(self.widths, self.width_class, strict=True) if c == number]
            for number in numbers
        ]
        return sorted(groups)


def reason_names(library: Library, bits: int) -> tuple[str, ...]:
    """Names of the SPECC_R_ bits, in the order of the bits."""
    found = (text_of(library.c.specc_reason_name(1 << i)) for i in range(32) if bits >> i & 1)
    return tuple(name for name in found if name)


def reason_bits(library: Library, names: tuple[str, ...]) -> int:
    """SPECC_R_ bits of the names; InputError for a name that is none."""
    known = {text_of(library.c.specc_reason_name(1 << i)): 1 << i for i in range(9)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"{unknown[0]!r} is no reason code; allowed are {', '.join(known)}")
    return sum(known[name] for name in set(names))


def from_struct(library: Library, c: Any) -> Certificate:
    """Copies a specc_certificate."""

    def per_width(array: Any) -> tuple[Any, ...]:
        return tuple(array[i] for i in range(c.n_widths))

    return Certificate(
        kind=KINDS[c.kind],
        law_width=c.law_width,
        widths=per_width(c.widths),
        width_class=per_width(c.width_class),
        threads=c.threads,
        k=c.k,
        reasons=reason_names(library, c.reasons),
        tv_mean=c.tv_mean,
        tv_max=c.tv_max,
        max_abs_diff=per_width(c.max_abs_diff),
        call_ms=per_width(c.call_ms),
        draft_ms=c.draft_ms,
        draft_call_ms=c.draft_call_ms,
        rows_compared=c.rows_compared,
        rows_different=per_width(c.rows_different),
        calls=c.calls,
        law_hash=c.law_hash,
        tv_rows=c.tv_rows,
        flips=c.flips,
        flip_margin=c.flip_margin,
        unrepeatable=c.unrepeatable,
        evidence=text_of(c.evidence),
    )


def to_struct(library: Library, certificate: Certificate) -> Any:
    """A specc_certificate * with the same content."""
    out = ffi.new("specc_certificate *")
    out.kind, out.n_widths = KINDS.index(certificate.kind), len(certificate.widths)
    for name in SCALARS:
        setattr(out, name, getattr(certificate, name))
    for name in ("widths", "width_class", "max_abs_diff", "call_ms", "rows_different"):
        values = getattr(certificate, name)
        getattr(out, name)[0 : len(values)] = list(values)
    out.reasons = reason_bits(library, certificate.reasons)
    out.evidence = certificate.evidence.encode()[:199]
    return out
