"""The gate: all judges in turn over one bundle on this device, and the certificate that their verdict goes into.

The old certificate stays in force until the last step: a gate that is cancelled or killed changes nothing.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specc.errors import InputError
from specc.gate import certificate as certify_judge
from specc.gate import equality, law, speed, stats
from specc.gate.checks import Check
from specc.runtime import Certificate, Model, device, engine_library

Progress = Callable[[str, int, int], Any]      # stage, done, total
TRIALS = 40000


@dataclass(frozen=True)
class GateResult:
    """What the gate found; `path` is the certificate that it wrote."""

    verdict: str                               # "passed" or "failed"
    checks: tuple[Check, ...]
    reasons: tuple[str, ...]                   # why speculation is off; empty: it is on
    certificate: Certificate
    path: Path
    report: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `specc gate`."""
        return {"verdict": self.verdict, "reasons": list(self.reasons), "checks": [asdict(c) for c in self.checks],
                "certificate": str(self.path), **self.report}


@dataclass(frozen=True)
class Opened:
    """A bundle under judgement."""

    folder: Path
    manifest: dict[str, Any]
    tokens: tuple[int, ...]                    # calibration ids
    model: Model
    threads: int


def judge(folder: str | Path, *, trials: int | None = None, seed: int = 0, threads: int = 0,
          certificates: str | Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """run_gate as JSON."""
    return run_gate(folder, trials=trials, seed=seed, threads=threads, certificates_out=certificates,
                    progress=progress).as_dict()


def run_gate(folder: str | Path, *, trials: int | None = None, seed: int = 0, threads: int = 0,
             certificates_out: str | Path | None = None, progress: Progress | None = None) -> GateResult:
    """Runs lint (from the manifest), certificate, law, equality and speed; writes the certificate at the end.

    trials: rounds of each law test; certificates_out: where the certificate goes, None for the bundle's own folder.
    """
    folder = Path(folder)
    manifest, tokens = read_manifest(folder), read_calibration(folder)
    with Model.open(folder, threads=threads) as model:
        opened = Opened(folder, manifest, tokens, model, threads or int(manifest["plan"]["threads"]))
        result = judge_opened(opened, trials or TRIALS, seed, progress or (lambda *_: None))
        out = Path(certificates_out) if certificates_out else folder / "certificates"
        path = model.save_certificate(result.certificate, out, result.report | {"checks": numbers(result.checks)})
    return replace(result, path=path)


def judge_opened(opened: Opened, trials: int, seed: int, progress: Progress) -> GateResult:
    """All judges; nothing is written."""
    findings = opened.manifest["lint"]["findings"]
    checks = [Check("lint: findings at build", 0.0, float(len(findings)), opened.manifest["lint"]["passed"])]
    certified = measure(opened, seed, progress)
    checks += [*certified.checks, certify_judge.sharpness(seed)]
    checks += law.judge_all(law.short_grid(), trials, seed, progress=stage(progress, "law"))
    report: dict[str, Any] = {"lint": findings, "seed": seed, "device": device()[0], "law": law_power(checks, trials)}
    certificate = certified.certificate
    if certified.exact and checks[0].passed and opened.model.info.drafter:
        opened.model.apply(certificate)
        checks += judge_equality(opened, certificate, seed, progress)
        classes = speed.prompt_classes(opened.tokens, opened.model.info.context, seed)
        found = speed.judge(opened.model, certificate, classes, stage(progress, "speed"))
        checks.append(found.check)
        report["speed"] = [row.as_dict() for row in found.rows]
        certificate = replace(certificate, k=found.k, draft_ms=found.draft_ms)
    reasons = reasons_of(checks)
    verdict = "passed" if all(check.passed for check in checks) else "failed"
    return GateResult(verdict, tuple(checks), reasons, replace(certificate, reasons=reasons), Path(), report)


def law_power(checks: Sequence[Check], trials: int) -> dict[str, Any]:
    """What the law tests can see: the total variation of a first token among four that is found 99 times of 100."""
    limits = [check.limit for check in checks if check.name.startswith("law:") and 0 < check.limit < 1]
    if not limits:
        return {"trials": trials}
    return {"trials": trials, "tests": len(limits), "family_error": law.FAMILY_ERROR,
            "smallest_tv": stats.smallest_tv(trials, 3, min(limits), 0.99)}


def measure(opened: Opened, seed: int, progress: Progress) -> certify_judge.Certified:
    """The certificate judge on the bundle's target."""
    limit = opened.manifest.get("gate", {}).get("allow_bounded")
    return certify_judge.certify(opened.model, opened.tokens, seed, limit, progress=stage(progress, "certificate"))


def judge_equality(opened: Opened, certificate: Certificate, seed: int, progress: Progress) -> list[Check]:
    """Equality only holds for bit-exact widths; a bounded bundle has its bound instead."""
    info = opened.model.info
    if certificate.kind != "bit-exact":
        return []
    work = equality.make_work(opened.tokens, info.context, seed)
    report = stage(progress, "equality")
    checks = equality.judge_bundle(opened.model, work, report)
    engine = equality.engine_of(opened.folder, opened.manifest, opened.threads, engine_library())
    if engine is not None:
        checks += equality.judge_drafters(engine, certificate, info.n_ids, info.context, info.k_max, work, report)
    return checks


def reasons_of(checks: Sequence[Check]) -> tuple[str, ...]:
    """Reason codes of failed checks: a wrong law or unequal text counts as numerics."""
    failed = {check.name.split(":")[0] for check in checks if not check.passed}
    named = {"numerics": {"certificate", "law", "equality"}, "lint": {"lint"}, "no-gain": {"speed"}}
    return tuple(reason for reason, judges in named.items() if failed & judges)


def numbers(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks worth keeping beside a certificate: everything but passed law tests, of which only the count."""
    return [asdict(check) for check in checks if not (check.passed and check.name.startswith("law:"))]


def stage(progress: Progress, name: str) -> Callable[[int, int], Any]:
    """Progress of one judge."""
    return lambda done, total: progress(name, done, total)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as JSON; its hashes are checked by Model.open."""
    try:
        found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is not a bundle: manifest.json cannot be read ({error}); build it again") from None
    return found


def read_calibration(folder: Path) -> tuple[int, ...]:
    """calibration.bin: "SPCT", u32 version, u32 n, i32 ids [n]."""
    try:
        data = (folder / "calibration.bin").read_bytes()
    except OSError as error:
        raise InputError(f"{folder} has no calibration ids ({error}); build it again") from None
    header = np.frombuffer(data[4:12], "<u4")
    if data[:4] != b"SPCT" or header.size < 2 or header[0] != 1 or len(data) != 12 + 4 * int(header[1]):
        raise InputError(f"{folder}/calibration.bin is damaged; build the bundle again")
    return tuple(np.frombuffer(data[12:], "<i4").tolist())
