"""The certificate judge: measures by `Model.certify` which widths of the engine agree bit for bit.

Nothing is sampled and no statistics are involved: rows are compared bit for bit, and the verdict is exact for
the rows that were compared. `check_sharpness` shows that one wrong bit in CALLS calls would be found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specc.gate.checks import Check
from specc.progress import Progress, no_progress
from specc.runtime import Certificate, Library, Model, Options, Table, Wrapped, library

CALLS = 1000
"""Calls of `check_sharpness`, one of which has one wrong bit."""
LEAST_ROWS = 1000


@dataclass(frozen=True)
class CertificateResult:
    """What was measured, and whether speculation may use it."""

    certificate: Certificate
    usable: bool
    """The needed widths agree bit for bit, or differ by less than the recipe allows."""
    checks: tuple[Check, ...]


def judge_certificate(
    model: Model,
    tokens: Sequence[int],
    seed: int,
    allow_bounded: float | None = None,
    window: int = 0,
    progress: Progress = no_progress,
    invariant: bool = False,
    sampling: Options | None = None,
    bounded_rows: int = 0,
) -> CertificateResult:
    """Measures the target over calibration ids; `allow_bounded` is the recipe's limit for the mean total
    variation.

    progress: called with "certificate"; invariant: the engine promises the same bits at every width, so that
    one row is the law; sampling: the recipe's options, under which rows that differ are compared.
    """
    certificate = model.certify(
        tokens,
        window=window,
        seed=seed,
        progress=lambda done, total: progress("certificate", done / max(total, 1)),
        sampling=sampling,
        bounded=invariant or allow_bounded is not None,
        bounded_rows=bounded_rows,
    )
    checks = [check_rows(certificate), check_repeatable(certificate, seed)]
    if invariant:
        certificate, check = check_one_row(certificate, seed)
        checks.append(check)
    checks += check_widths(certificate, list_verify_widths(certificate, model.info.k_max), seed)
    if certificate.kind == "bit-exact" and all(check.passed for check in checks):
        return CertificateResult(replace(certificate, tv_mean=0.0, tv_max=0.0), True, tuple(checks))
    certificate = replace(certificate, kind="bounded", reasons=(), law_width=find_cheapest_width(certificate))
    return judge_bound(certificate, checks, allow_bounded, seed)


def judge_bound(
    certificate: Certificate, checks: list[Check], allow_bounded: float | None, seed: int
) -> CertificateResult:
    """Bits differ: within the recipe's limit speculation is approximate and says so, otherwise it is off.

    The limit is held against `tv_mean`, an upper confidence bound of the mean total variation between the
    rows of plain and of speculative decoding.
    """
    repeatable = all(check.passed for check in checks[:2])
    bounded = (
        allow_bounded is not None
        and repeatable
        and certificate.tv_rows > 0
        and certificate.tv_mean <= allow_bounded
    )
    if allow_bounded is not None:
        name = "certificate: mean total variation, upper bound"
        checks = [*checks[:2], Check(name, allow_bounded, certificate.tv_mean, bounded, seed)]
    certificate = certificate if bounded else replace(certificate, reasons=("numerics",))
    return CertificateResult(certificate, bounded, tuple(checks))


def check_rows(certificate: Certificate) -> Check:
    """At least LEAST_ROWS rows were compared."""
    rows = certificate.rows_compared
    return Check("certificate: rows compared", float(LEAST_ROWS), float(rows), rows >= LEAST_ROWS)


def check_repeatable(certificate: Certificate, seed: int) -> Check:
    """The same call gives the same bits again; an engine for which that fails has no law at all."""
    calls = certificate.unrepeatable
    return Check("certificate: calls that did not repeat themselves", 0.0, float(calls), calls == 0, seed)


def check_one_row(certificate: Certificate, seed: int) -> tuple[Certificate, Check]:
    """All widths agree with width 1, as the dialect promises; the certificate's law is then width 1."""
    differing = [w for w, c in zip(certificate.widths, certificate.width_class, strict=True) if c != 0]
    label = "certificate: widths unlike width 1 (the dialect promises none)"
    check = Check(label, 0.0, float(len(differing)), not differing, seed)
    return (certificate if differing else replace(certificate, law_width=certificate.widths[0])), check


def find_cheapest_width(certificate: Certificate) -> int:
    """The width whose call is fastest; the law's own width where nothing was timed."""
    timed = list(zip(certificate.call_ms, certificate.widths, strict=False))
    return min(timed)[1] if timed else certificate.law_width


def list_verify_widths(certificate: Certificate, k_max: int) -> tuple[int, ...]:
    """Widths that hold the K_max + 1 rows of the largest round."""
    return tuple(width for width in certificate.widths if width > k_max)


def check_widths(certificate: Certificate, verify_widths: tuple[int, ...], seed: int) -> list[Check]:
    """One of `verify_widths` is in the law's class, and the law's width agrees with itself from slot
    to slot.
    """
    measured = zip(certificate.widths, certificate.width_class, certificate.rows_different, strict=True)
    by_width = {width: (width_class, different) for width, width_class, different in measured}
    law_width, law_class = certificate.law_width, by_width[certificate.law_width][0]
    agreeing = [width for width in verify_widths if by_width[width][0] == law_class and law_class >= 0]
    verify = agreeing[0] if agreeing else verify_widths[0]
    label = f"certificate: rows of width {verify} unlike width {law_width}"
    at_odds = float(law_class < 0)
    return [
        Check(label, 0.0, float(by_width[verify][1]), bool(agreeing), seed),
        Check(f"certificate: width {law_width} at odds with itself", 0.0, at_odds, at_odds == 0, seed),
    ]


class FlippedBit(Wrapped):
    """A table engine with one bit of one row of one call flipped: the smallest fault there is.

    Only calls that ask for all rows count: those that read a prompt are judged by what follows from them. The
    first CALLS of these are all compared; the calls that are only timed come last.
    """

    def __init__(self, inner: Any, loaded: Library, at: int) -> None:
        super().__init__(inner, loaded)
        self.calls, self.at = 0, at

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        """The inner call; call number `at` of those that count gets the lowest bit of its first logit
        flipped.
        """
        super().run(cache, rows, n_logits)
        self.calls += n_logits == rows
        if self.calls == self.at and n_logits == rows:
            cache[2].logits[0].view(np.uint32)[0] ^= 1


def check_sharpness(seed: int, loaded: Library | None = None) -> Check:
    """One flipped bit in one row of CALLS calls costs its width its class; without it all widths are one
    class.
    """
    loaded = loaded or library()
    certificate, calls = certify_flipped(seed, 0, loaded)
    broken, _ = certify_flipped(seed, 1 + (seed + 700) % CALLS, loaded)
    found = calls >= CALLS and len(certificate.classes) == 1 and -1 in broken.width_class
    return Check(f"certificate: one flipped bit in {calls} calls is found", 1.0, float(found), found, seed)


def certify_flipped(seed: int, at: int, loaded: Library) -> tuple[Certificate, int]:
    """Certificate of a small table engine whose call number `at` is wrong (0: none), and the number
    of calls.
    """
    rng = np.random.default_rng(3)
    table = Table(rng.normal(size=(64, 8)).astype(np.float32), 2, 128 + 32, (1, 2, 3, 4, 5, 32))
    engine = FlippedBit(table, loaded, at)
    with Model.from_parts(engine, n_ids=8, context=128, k_max=4, loaded=loaded) as model:
        certificate = model.certify(rng.integers(0, 8, 200), seed=seed)
    return certificate, engine.calls
