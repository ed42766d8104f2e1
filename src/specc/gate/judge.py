"""The gate: all judges in turn over one bundle on this device, and the certificate that their verdict goes into.

The old certificate stays in force until the last step: a gate that is cancelled or killed changes nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specc.atomic import io_errors
from specc.contracts.bundle.manifest import PARTS, check_parts
from specc.errors import InputError
from specc.gate import certificate as certify_judge
from specc.gate import equality, law, speed, stats, twosample
from specc.gate.checks import Check
from specc.gate.report import Asked, compose
from specc.gate.report import write as write_report
from specc.runtime import Certificate, Model, Options, controls, engine_library, library

Progress = Callable[[str, int, int], Any]  # stage, done, total
TESTS = 600  # p-values of the gate's own law tests, rounded up
INVARIANT = ("specc-cpu",)  # dialects whose rows do not depend on the width
CONTROLS_LIBRARY = "libspecc_controls.so"
READ = ("lint.passed", "lint.findings", "plan.threads", "engines.target.backend")  # of the manifest


@dataclass(frozen=True)
class GateResult:
    """What the gate found; `path` is the certificate that it wrote."""

    verdict: str  # "passed" or "failed"
    checks: tuple[Check, ...]
    reasons: tuple[str, ...]  # why speculation is off; empty: it is on
    certificate: Certificate
    path: Path
    report: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `specc gate`."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "checks": [asdict(c) for c in self.checks],
            "certificate": str(self.path),
            **self.report,
        }


@dataclass(frozen=True)
class Opened:
    """A bundle under judgement."""

    folder: Path
    manifest: dict[str, Any]
    tokens: tuple[int, ...]  # calibration ids
    model: Model
    threads: int


@dataclass(frozen=True)
class Laws:
    """The law judge's part: it knows no bundle, only the library."""

    checks: tuple[Check, ...]
    report: dict[str, Any]


def judge(
    folder: str | Path,
    *,
    trials: int | None = None,
    seed: int = 0,
    threads: int | Sequence[int] = 0,
    certificates: str | Path | None = None,
    report: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """run_gate as JSON."""
    return run_gate(
        folder,
        trials=trials,
        seed=seed,
        threads=threads,
        certificates_out=certificates,
        report_out=report,
        progress=progress,
    ).as_dict()


def run_gate(
    folder: str | Path,
    *,
    trials: int | None = None,
    seed: int = 0,
    threads: int | Sequence[int] = 0,
    certificates_out: str | Path | None = None,
    report_out: str | Path | None = None,
    progress: Progress | None = None,
) -> GateResult:
    """Runs lint (from the manifest), law, certificate, equality, two-sample and speed; then writes the certificate.

    trials: rounds of each law test, None for what the stated power needs; threads: 0 for the plan's, or several counts,
    each of which gets a certificate of its own; certificates_out: where they go, None for the bundle's own folder;
    report_out: where their reports go, None for beside them.
    """
    folder, progress = Path(folder), progress or (lambda *_: None)
    manifest, tokens = read_manifest(folder), read_calibration(folder)
    out = Path(certificates_out) if certificates_out else folder / "certificates"
    check_writable(out)
    reports = Path(report_out) if report_out else out
    check_writable(reports, "a report")
    laws, results = judge_laws(trials, seed, progress), list[GateResult]()
    for count in [threads] if isinstance(threads, int) else threads or [0]:
        with Model.open(folder, threads=count) as model:
            opened = Opened(folder, manifest, tokens, model, count or int(manifest["plan"]["threads"]))
            result = judge_opened(opened, laws, seed, progress)
            asked = Asked(seed, trials, opened.threads)
            told_all = compose(
                folder,
                manifest,
                tokens,
                model,
                result.certificate,
                result.checks,
                result.report,
                result.verdict,
                asked,
            )
            path = model.save_certificate(
                result.certificate, out, result.report | {"checks": numbers(result.checks)}
            )
        files = [str(file) for file in write_report(told_all, path, reports)]
        results.append(replace(result, path=path, report=result.report | {"reports": files}))
    return results[0] if len(results) == 1 else together(results)


def check_writable(out: Path, what: str = "a certificate") -> None:
    """Make the folder of the certificates and try it, before hours of judging end in a folder without rights."""
    with io_errors(f"writing {what} into {out}"):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"specc")


def judge_laws(trials: int | None, seed: int, progress: Progress) -> Laws:
    """Laws of the shipped library on table models, and the negative controls where their library is installed."""
    cases = law.short_grid()
    trials = trials or law.trials_for(TESTS)
    checks = law.judge_all(cases, trials, seed, progress=stage(progress, "law"))
    limits = [check.limit for check in checks if 0 < check.limit < 1]
    report: dict[str, Any] = {"trials": trials, "tests": len(limits), "family_error": law.FAMILY_ERROR}
    if limits:
        report["smallest_tv"] = stats.smallest_tv(trials, 3, min(limits), law.POWER)
    there = library().path.with_name(CONTROLS_LIBRARY).is_file()
    report["negative_controls"] = (
        len(law.CONTROLS) if there else f"not run: {CONTROLS_LIBRARY} is not installed"
    )
    return Laws((*checks, *(law.judge_controls(controls(), seed) if there else ())), report)


def judge_opened(opened: Opened, laws: Laws, seed: int, progress: Progress) -> GateResult:
    """All judges of one engine at one thread count; nothing is written."""
    findings, passed = opened.manifest["lint"]["findings"], opened.manifest["lint"]["passed"]
    certified = measure(opened, seed, progress)
    certificate = certified.certificate
    checks = [
        Check("lint: findings at build", 0.0, float(len(findings)), passed),
        *certified.checks,
        certify_judge.sharpness(seed),
        *laws.checks,
    ]
    report: dict[str, Any] = {
        "lint": findings,
        "seed": seed,
        "device": opened.model.info.device,
        "law": laws.report,
        "threads": [threads_row(certificate)],
        "certify": certify_part(listed(opened)),
    }
    if certified.exact and passed and opened.model.info.drafter:
        opened.model.apply(certificate)
        classes = speed.prompt_classes(opened.tokens, opened.model.info.context, seed)
        more, report["two_sample"] = judge_text(opened, certificate, classes["copy"].prompts, seed, progress)
        kinds = speed.classes_of(opened.folder, opened.tokens, opened.model.info.context, seed)
        found = speed.judge(opened.model, certificate, kinds, stage(progress, "speed"))
        checks += [*more, found.check]
        report["speed"] = found.as_dict()
        certificate = replace(
            certificate, k=found.k, draft_ms=found.draft_ms, draft_call_ms=found.draft_call_ms
        )
    reasons = reasons_of(checks)
    verdict = "passed" if all(check.passed for check in checks) else "failed"
    return GateResult(verdict, tuple(checks), reasons, replace(certificate, reasons=reasons), Path(), report)


def together(results: Sequence[GateResult]) -> GateResult:
    """One answer for several thread counts: the first one's certificate, everybody's checks, and whose bits agree."""
    rows = [row for result in results for row in result.report["threads"]]
    checks = [
        replace(check, name=f"{check.name}, threads {result.certificate.threads}")
        for result in results
        for check in result.checks
        if not check.name.startswith(("law:", "lint:"))
    ]
    common = [check for check in results[0].checks if check.name.startswith(("law:", "lint:"))]
    reasons = tuple(dict.fromkeys(reason for result in results for reason in result.reasons))
    verdict = "passed" if all(result.verdict == "passed" for result in results) else "failed"
    report = {
        **results[0].report,
        "threads": rows,
        "threads_agree": len({row["law_hash"] for row in rows}) == 1,
        "certificates": [str(result.path) for result in results],
        "reports": [file for result in results for file in result.report["reports"]],
    }
    return replace(results[0], verdict=verdict, checks=(*common, *checks), reasons=reasons, report=report)


def threads_row(certificate: Certificate) -> dict[str, Any]:
    """What a thread count's certificate says; equal hashes: the same bits, so the same text for a seed."""
    return {
        "threads": certificate.threads,
        "kind": certificate.kind,
        "law_width": certificate.law_width,
        "law_hash": f"{certificate.law_hash:016x}",
    }


def listed(opened: Opened) -> tuple[str, ...]:
    """Options of the recipe's `certify` list."""
    return tuple(opened.manifest.get("certify", {}).get("options", ()))


def certify_part(asked: Sequence[str]) -> dict[str, Any]:
    """Which options were judged on the built engine because the recipe lists them, and which were not. The latter are
    sampled by the same code, whose laws are judged on table models for all options; none is refused."""
    known = tuple(Options.__dataclass_fields__)
    return {
        "listed": [name for name in known if name in asked],
        "not_certified": [n for n in known if n not in asked],
    }


def measure(opened: Opened, seed: int, progress: Progress) -> certify_judge.Certified:
    """The certificate judge on the bundle's target."""
    limit = opened.manifest.get("gate", {}).get("allow_bounded")
    invariant = opened.manifest["plan"].get("dialect") in INVARIANT
    return certify_judge.certify(
        opened.model,
        opened.tokens,
        seed,
        limit,
        progress=stage(progress, "certificate"),
        invariant=invariant,
        sampling=Options(**opened.manifest.get("sampling", {})),
    )


def judge_text(
    opened: Opened, certificate: Certificate, prompts: Sequence[Sequence[int]], seed: int, progress: Progress
) -> tuple[list[Check], dict[str, Any]]:
    """Equality and two-sample tests, which only hold for bit-exact widths; a bounded bundle has its bound instead."""
    if certificate.kind != "bit-exact":
        return [], {}
    work = replace(
        equality.make_work(opened.tokens, opened.model.info.context, seed),
        modes=equality.modes_of(listed(opened)),
    )
    engine = equality.engine_of(opened.folder, opened.manifest, opened.threads, engine_library())
    checks = equality.judge_bundle(opened.model, engine, certificate, work, stage(progress, "equality"))
    more, report = twosample.judge(
        opened.model, certificate, prompts[:2], seed, stage(progress, "two-sample")
    )
    return [*checks, *more], report


def reasons_of(checks: Sequence[Check]) -> tuple[str, ...]:
    """Reason codes of failed checks: a wrong law or unequal text counts as numerics."""
    failed = {check.name.split(":")[0] for check in checks if not check.passed}
    named = {
        "numerics": {"certificate", "law", "equality", "two-sample"},
        "lint": {"lint"},
        "no-gain": {"speed"},
    }
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
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{folder} is not a bundle: manifest.json cannot be read ({error}); build it again"
        ) from None
    check_parts(found, folder / "manifest.json", {name: PARTS[name] for name in READ})
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
