"""The certificate judge: Model.certify, driven with progress, and its numbers as checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specc.gate.checks import Check
from specc.runtime import Certificate, Library, Model, Options, Table, Wrapped, library

Progress = Callable[[int, int], Any]
CALLS = 1000  # of which one may have one wrong bit


@dataclass(frozen=True)
class Certified:
    """What was measured, and whether the widths that the runtime needs agree."""

    certificate: Certificate
    exact: bool
    checks: tuple[Check, ...]


def certify(
    model: Model,
    tokens: Sequence[int],
    seed: int,
    allow_bounded: float | None = None,
    window: int = 0,
    progress: Progress | None = None,
    invariant: bool = False,
    sampling: Options | None = None,
    bounded_rows: int = 0,
) -> Certified:
    """Measures the target over calibration ids; `allow_bounded` is the recipe's limit for the mean total variation.

    invariant: the engine promises the same bits at every width, so that one row is the law; sampling: the recipe's
    options, under which rows that differ are compared.
    """
    certificate = model.certify(
        tokens,
        window=window,
        seed=seed,
        progress=progress,
        sampling=sampling,
        bounded=invariant or allow_bounded is not None,
        bounded_rows=bounded_rows,
    )
    checks = [compared(certificate), repeatable(certificate, seed)]
    if invariant:
        certificate, check = at_one_row(certificate, seed)
        checks.append(check)
    checks += width_checks(certificate, needed_widths(certificate, model.info.k_max), seed)
    if certificate.kind == "bit-exact" and all(check.passed for check in checks):
        return Certified(replace(certificate, tv_mean=0.0, tv_max=0.0), True, tuple(checks))
    certificate = replace(certificate, kind="bounded", reasons=(), law_width=cheapest(certificate))
    return apart(certificate, checks, allow_bounded, seed)


def apart(certificate: Certificate, checks: list[Check], allow_bounded: float | None, seed: int) -> Certified:
    """Bits differ: within the recipe's limit speculation is approximate and says so, else it is off."""
    steady = all(check.passed for check in checks[:2])
    bounded = (
        allow_bounded is not None
        and steady
        and certificate.tv_rows > 0
        and certificate.tv_mean <= allow_bounded
    )
    if allow_bounded is not None:
        name = "certificate: mean total variation, upper bound"
        checks = [*checks[:2], Check(name, allow_bounded, certificate.tv_mean, bounded, seed)]
    return Certified(
        certificate if bounded else replace(certificate, reasons=("numerics",)), bounded, tuple(checks)
    )


def repeatable(certificate: Certificate, seed: int) -> Check:
    """An engine that answers the same call otherwise when it is repeated has no law at all."""
    calls = certificate.unrepeatable
    return Check("certificate: calls that did not repeat themselves", 0.0, float(calls), calls == 0, seed)


def at_one_row(certificate: Certificate, seed: int) -> tuple[Certificate, Check]:
    """The law at width 1, whatever the clock said of its neighbours, where all widths keep the promise."""
    alone = [w for w, c in zip(certificate.widths, certificate.width_class, strict=True) if c != 0]
    label = "certificate: widths unlike width 1 (the dialect promises none)"
    check = Check(label, 0.0, float(len(alone)), not alone, seed)
    return (certificate if alone else replace(certificate, law_width=certificate.widths[0])), check


def cheapest(certificate: Certificate) -> int:
    """Where bits differ plain decoding need not pay for rows that it does not use."""
    timed = list(zip(certificate.call_ms, certificate.widths, strict=False))
    return min(timed)[1] if timed else certificate.law_width


def needed_widths(certificate: Certificate, k_max: int) -> tuple[int, ...]:
    """For each K = 1..K_max the widths that hold K + 1 rows, of which one must agree with the law; the largest K's."""
    return tuple(width for width in certificate.widths if width > k_max)


def compared(certificate: Certificate) -> Check:
    """Enough rows were compared to say anything."""
    rows = certificate.rows_compared
    return Check("certificate: rows compared", 1000.0, float(rows), rows >= 1000)


def width_checks(certificate: Certificate, needed: tuple[int, ...], seed: int) -> list[Check]:
    """Rows that differ in the best width for K_max + 1 rows, and in the law's own width."""
    found = zip(certificate.widths, certificate.width_class, certificate.rows_different, strict=True)
    rows = {width: (number, different) for width, number, different in found}
    law = rows[certificate.law_width][0]
    agreeing = [width for width in needed if rows[width][0] == law and law >= 0]
    verify = agreeing[0] if agreeing else needed[0]
    checks = [
        Check(
            f"certificate: rows of width {verify} unlike width {certificate.law_width}",
            0.0,
            float(rows[verify][1]),
            bool(agreeing),
            seed,
        )
    ]
    own = float(law < 0)
    return [
        *checks,
        Check(f"certificate: width {certificate.law_width} at odds with itself", 0.0, own, own == 0, seed),
    ]


class FlippedBit(Wrapped):
    """A table engine with one bit of one row of one call turned over: the smallest fault there is.

    Only calls whose rows are all asked for count: those that read a prompt are judged by what follows from them. The
    first CALLS of these are all compared; the clock's own calls come last.
    """

    def __init__(self, inner: Any, loaded: Library, at: int) -> None:
        super().__init__(inner, loaded)
        self.calls, self.at = 0, at

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        """The inner call; judged call number `at` gets the lowest bit of its first logit flipped."""
        super().run(cache, rows, n_logits)
        self.calls += n_logits == rows
        if self.calls == self.at and n_logits == rows:
            cache[2].logits[0].view(np.uint32)[0] ^= 1


def sharpness(seed: int, loaded: Library | None = None) -> Check:
    """Proof that the judge can see: one changed bit in one row of a thousand calls costs its width its class."""
    loaded = loaded or library()
    certificate, calls = flipped(seed, 0, loaded)
    broken, _ = flipped(seed, 1 + (seed + 700) % CALLS, loaded)
    found = calls >= CALLS and len(certificate.classes) == 1 and -1 in broken.width_class
    return Check(f"certificate: one flipped bit in {calls} calls is found", 1.0, float(found), found, seed)


def flipped(seed: int, at: int, loaded: Library) -> tuple[Certificate, int]:
    """Certificate of a small table engine whose judged call number `at` is wrong (0: none), and how many there are."""
    rng = np.random.default_rng(3)
    table = Table(rng.normal(size=(64, 8)).astype(np.float32), 2, 128 + 32, (1, 2, 3, 4, 5, 32))
    engine = FlippedBit(table, loaded, at)
    with Model.from_parts(engine, n_ids=8, context=128, k_max=4, loaded=loaded) as model:
        certificate = model.certify(rng.integers(0, 8, 200), seed=seed)
    return certificate, engine.calls
