"""The gate: all judges in turn over one bundle on this device, and the certificate that their verdict goes
into.

The old certificate stays in force until the last step: a gate that is cancelled or killed changes nothing.
Progress is reported with the name of the judge at work: "law", "certificate", "equality", "two-sample",
"speed".
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specc.atomic import io_errors
from specc.contracts.bundle.manifest import PARTS, check_parts
from specc.contracts.bundle.tables import decode_calibration
from specc.errors import InputError
from specc.gate import law, stats
from specc.gate.checks import Check
from specc.gate.engine import equality, speed, two_sample
from specc.gate.engine.certificate import CertificateResult, check_sharpness, judge_certificate
from specc.gate.report import GateRequest, compose_report, write_report
from specc.progress import Progress, no_progress
from specc.runtime import Certificate, Model, Options, controls, engine_library, library

TESTS = 600
"""p-values of the gate's own law tests, rounded up; sets the number of trials."""
INVARIANT = ("specc-cpu",)
"""Dialects whose rows do not depend on the width."""
CONTROLS_LIBRARY = "libspecc_controls.so"
MANIFEST_KEYS = ("lint.passed", "lint.findings", "plan.threads", "engines.target.backend")
"""Keys of the manifest that the gate needs."""


@dataclass(frozen=True)
class GateResult:
    """What the gate found; `path` is the certificate that it wrote."""

    verdict: str
    """`passed` or `failed`."""
    checks: tuple[Check, ...]
    reasons: tuple[str, ...]
    """Why speculation is off; empty: it is on."""
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
class OpenBundle:
    """A bundle with its engine at one thread count."""

    folder: Path
    manifest: dict[str, Any]
    tokens: tuple[int, ...]
    """Calibration ids."""
    model: Model
    threads: int


@dataclass(frozen=True)
class LawVerdict:
    """The law judge's part, which depends on the library and not on the bundle."""

    checks: tuple[Check, ...]
    report: dict[str, Any]


def judge_bundle(
    folder: str | Path,
    *,
    trials: int | None = None,
    seed: int = 0,
    threads: int | Sequence[int] = 0,
    certificates: str | Path | None = None,
    report: str | Path | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """The JSON of `specc gate`: run_gate's result as a dictionary."""
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
    progress: Progress = no_progress,
) -> GateResult:
    """Runs lint (from the manifest), law, certificate, equality, two-sample and speed; then writes the
    certificate.

    trials: rounds of each law test, None for what the stated power needs; threads: 0 for the plan's, or
    several counts, each of which gets a certificate of its own; certificates_out: where they go, None for the
    bundle's own folder; report_out: where their reports go, None for beside them. Raises InputError for a
    folder that is no bundle, EnvironmentFault where a certificate or a report cannot be written.
    """
    folder = Path(folder)
    manifest, tokens = read_manifest(folder), read_calibration_ids(folder)
    certificates = Path(certificates_out) if certificates_out else folder / "certificates"
    check_writable(certificates)
    reports = Path(report_out) if report_out else certificates
    check_writable(reports, "a report")
    laws, results = judge_laws(trials, seed, progress), list[GateResult]()
    for count in [threads] if isinstance(threads, int) else threads or [0]:
        with Model.open(folder, threads=count) as model:
            bundle = OpenBundle(folder, manifest, tokens, model, count or int(manifest["plan"]["threads"]))
            request = GateRequest(seed, trials, bundle.threads)
            result = judge_engine(bundle, laws, seed, progress)
            results.append(write_result(bundle, result, request, certificates, reports))
    return results[0] if len(results) == 1 else merge_results(results)


def write_result(
    bundle: OpenBundle, result: GateResult, request: GateRequest, certificates: Path, reports: Path
) -> GateResult:
    """Writes the certificate, then its report; the result names both."""
    model = bundle.model
    report = compose_report(
        bundle.folder,
        bundle.manifest,
        bundle.tokens,
        model,
        result.certificate,
        result.checks,
        result.report,
        result.verdict,
        request,
    )
    evidence = result.report | {"checks": select_checks(result.checks)}
    path = model.save_certificate(result.certificate, certificates, evidence)
    files = [str(file) for file in write_report(report, path, reports)]
    return replace(result, path=path, report=result.report | {"reports": files})


def check_writable(out: Path, what: str = "a certificate") -> None:
    """Make the folder of the certificates and try it, before hours of judging end in a folder without
    rights.
    """
    with io_errors(f"writing {what} into {out}"):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as probe:
            probe.write(b"specc")


def judge_laws(trials: int | None, seed: int, progress: Progress) -> LawVerdict:
    """The law tests of the shipped library, and the negative controls where their library is installed."""
    cases = law.make_short_grid()
    trials = trials or law.trials_for(TESTS)
    checks = law.judge_law(cases, trials, seed, progress=progress)
    limits = [check.limit for check in checks if 0 < check.limit < 1]
    report: dict[str, Any] = {"trials": trials, "tests": len(limits), "family_error": law.FAMILY_ERROR}
    if limits:
        report["smallest_tv"] = stats.smallest_tv(trials, 3, min(limits), law.POWER)
    if library().path.with_name(CONTROLS_LIBRARY).is_file():
        report["negative_controls"] = len(law.CONTROLS)
        checks += law.judge_controls(controls(), seed)
    else:
        report["negative_controls"] = f"not run: {CONTROLS_LIBRARY} is not installed"
    return LawVerdict(tuple(checks), report)


def judge_engine(bundle: OpenBundle, laws: LawVerdict, seed: int, progress: Progress) -> GateResult:
    """All judges of one engine at one thread count; nothing is written."""
    findings, passed = bundle.manifest["lint"]["findings"], bundle.manifest["lint"]["passed"]
    measured = measure_certificate(bundle, seed, progress)
    certificate = measured.certificate
    checks = [
        Check("lint: findings at build", 0.0, float(len(findings)), passed),
        *measured.checks,
        check_sharpness(seed),
        *laws.checks,
    ]
    report: dict[str, Any] = {
        "lint": findings,
        "seed": seed,
        "device": bundle.model.info.device,
        "law": laws.report,
        "threads": [describe_threads(certificate)],
        "certify": describe_options(read_certify_list(bundle)),
    }
    if measured.usable and passed and bundle.model.info.drafter:
        bundle.model.apply(certificate)
        text_checks, report["two_sample"] = judge_text(bundle, certificate, seed, progress)
        context = bundle.model.info.context
        classes = speed.load_prompt_classes(bundle.folder, bundle.tokens, context, seed)
        verdict = speed.judge_speed(bundle.model, certificate, classes, progress)
        checks += [*text_checks, verdict.check]
        report["speed"] = verdict.as_dict()
        certificate = replace(
            certificate, k=verdict.k, draft_ms=verdict.draft_ms, draft_call_ms=verdict.draft_call_ms
        )
    reasons = derive_reasons(checks)
    passed_all = "passed" if all(check.passed for check in checks) else "failed"
    return GateResult(
        passed_all, tuple(checks), reasons, replace(certificate, reasons=reasons), Path(), report
    )


def merge_results(results: Sequence[GateResult]) -> GateResult:
    """One result for several thread counts: the first one's certificate, all checks, and whether the bits
    agree.
    """
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


def describe_threads(certificate: Certificate) -> dict[str, Any]:
    """What a thread count's certificate says; equal hashes: the same bits, so the same text for a seed."""
    return {
        "threads": certificate.threads,
        "kind": certificate.kind,
        "law_width": certificate.law_width,
        "law_hash": f"{certificate.law_hash:016x}",
    }


def read_certify_list(bundle: OpenBundle) -> tuple[str, ...]:
    """Options of the recipe's `certify` list."""
    return tuple(bundle.manifest.get("certify", {}).get("options", ()))


def describe_options(certify: Sequence[str]) -> dict[str, Any]:
    """Which options are judged on the built engine because the recipe lists them, and which are not. The
    latter are sampled by the same code, whose laws are judged on table models for all options; none is
    refused.
    """
    names = tuple(Options.__dataclass_fields__)
    return {
        "listed": [name for name in names if name in certify],
        "not_certified": [name for name in names if name not in certify],
    }


def measure_certificate(bundle: OpenBundle, seed: int, progress: Progress) -> CertificateResult:
    """The certificate judge on the bundle's target."""
    return judge_certificate(
        bundle.model,
        bundle.tokens,
        seed,
        bundle.manifest.get("gate", {}).get("allow_bounded"),
        progress=progress,
        invariant=bundle.manifest["plan"].get("dialect") in INVARIANT,
        sampling=Options(**bundle.manifest.get("sampling", {})),
    )


def judge_text(
    bundle: OpenBundle, certificate: Certificate, seed: int, progress: Progress
) -> tuple[list[Check], dict[str, Any]]:
    """Equality and two-sample tests, which only hold for bit-exact widths; a bounded bundle has its bound
    instead.
    """
    if certificate.kind != "bit-exact":
        return [], {}
    context = bundle.model.info.context
    modes = equality.select_modes(read_certify_list(bundle))
    work = replace(equality.make_work(bundle.tokens, context, seed), modes=modes)
    engine = equality.open_target_engine(bundle.folder, bundle.manifest, bundle.threads, engine_library())
    checks = equality.judge_equality(bundle.model, engine, certificate, work, progress)
    prompts = speed.make_prompt_classes(bundle.tokens, context, seed)["copy"].prompts[:2]
    more, report = two_sample.judge_two_sample(bundle.model, certificate, prompts, seed, progress)
    return [*checks, *more], report


def derive_reasons(checks: Sequence[Check]) -> tuple[str, ...]:
    """Reason codes of failed checks: a wrong law or unequal text counts as numerics."""
    failed = {check.name.split(":")[0] for check in checks if not check.passed}
    named = {
        "numerics": {"certificate", "law", "equality", "two-sample"},
        "lint": {"lint"},
        "no-gain": {"speed"},
    }
    return tuple(reason for reason, judges in named.items() if failed & judges)


def select_checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks that are kept beside a certificate: all but passed law tests, whose number the
    report has.
    """
    return [asdict(check) for check in checks if not (check.passed and check.name.startswith("law:"))]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest as JSON; its hashes are checked by Model.open. Raises InputError for what is no
    manifest.
    """
    path = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{folder} is not a bundle: manifest.json cannot be read ({error}); build it again"
        ) from None
    parts = {name: PARTS[name] for name in MANIFEST_KEYS}
    check_parts(manifest, path, parts)
    return manifest


def read_calibration_ids(folder: Path) -> tuple[int, ...]:
    """The ids of the bundle's calibration.bin. Raises InputError where it is missing or damaged."""
    try:
        data = (folder / "calibration.bin").read_bytes()
    except OSError as error:
        raise InputError(f"{folder} has no calibration ids ({error}); build it again") from None
    try:
        return tuple(decode_calibration(data))
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
