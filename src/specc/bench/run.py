"""`specc bench` from options to its JSON."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc.bench import compare, generations, machine, prompts, report
from specc.bench.generations import Setting, Task
from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
from specc.errors import EnvironmentFault
from specc.pipeline import cache
from specc.progress import Progress, no_progress
from specc.runtime import Model, Session, kernels
from specc.version import __version__

Json = dict[str, Any]


@dataclass(frozen=True)
class BenchRequest:
    """The options of `specc bench`."""

    folder: Path
    against: Path | None = None
    """A saved report; None: plain decoding alone."""
    prompts: Path | None = None
    """None: the prompts that ship with the package."""
    split: str = "held-out"
    temperatures: tuple[float, ...] = (0.0, 0.8)
    rules: tuple[str, ...] = ("rejection",)
    max_new_tokens: int = 96
    repeats: int = 3
    quick: bool = False
    seed: int = 0
    threads: int = 0
    certificates: Path | None = None
    trust: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> tuple[Setting, ...]:
        """Each temperature with each rule; at temperature 0 all rules decode alike, so the first stands for
        all.
        """
        pairs = [(t, rule) for t in self.temperatures for rule in (self.rules if t > 0 else self.rules[:1])]
        return tuple(Setting(t, rule) for t, rule in dict.fromkeys(pairs))


def bench(request: BenchRequest, progress: Progress = no_progress) -> Json:
    """The JSON of `specc bench`. Raises what opening a bundle raises, InputError for unusable prompts
    and for a saved report of another power mode, EnvironmentFault where the power mode changes meanwhile.
    """
    if request.folder.is_file():
        return add_comparison(compare.load_report(request.folder), request.against)
    power = machine.read_power()
    refuse_against(power, request.against)
    begin = time.perf_counter()
    bundle = verify_bundle(read_bundle(request.folder), request.trust)
    with Model.open(
        request.folder, threads=request.threads, certificates=request.certificates, trust=True
    ) as model:
        with model.session() as session:
            opened = time.perf_counter() - begin
            found = measure_bundle(request, bundle, model, session, progress)
        found["environment"] = describe_environment(request, model, bundle, opened, power)
    refuse_change(power)
    return add_comparison(found, request.against)


def measure_bundle(
    request: BenchRequest, bundle: Bundle, model: Model, session: Session, progress: Progress
) -> Json:
    """Rows, summary and what was run."""
    classes = prompts.read_file(request.prompts) if request.prompts else prompts.load_shipped(request.split)
    selected = prompts.select_prompts(classes, 2) if request.quick else classes
    ids = prompts.encode_prompts(bundle, selected, model.info.context)
    base = {name: value for name, value in bundle.manifest["sampling"].items() if name not in OWN}
    repeats, new = (
        (1, min(48, request.max_new_tokens)) if request.quick else (request.repeats, request.max_new_tokens)
    )
    task = Task(ids, request.settings(), repeats, new, request.seed, {**base, **request.options})
    rows = report.make_rows(generations.measure_generations(session, task, progress), model.info.certificate)
    return {"rows": rows, "summary": report.summarize_rows(rows), "task": describe_task(task, request)}


OWN = ("temperature", "rule", "seed", "max_new_tokens", "speculation")
"""What the bench sets itself, whatever the bundle's defaults are."""


def describe_task(task: Task, request: BenchRequest) -> Json:
    """What was run, so that it can be run again."""
    counts = {name: len(ids) for name, ids in task.prompts.items()}
    source = str(request.prompts) if request.prompts else request.split
    return {
        "prompts": source,
        "classes": counts,
        "repeats": task.repeats,
        "max_new_tokens": task.max_new_tokens,
        "seed": task.seed,
        "options": dict(task.options),
        "quick": request.quick,
    }


def describe_environment(
    request: BenchRequest, model: Model, bundle: Bundle, opened: float, power: Json
) -> Json:
    """The machine, the software, the bundle; power, clocks and load as they were before the first
    generation.
    """
    info = model.info
    versions = {
        "specc": __version__,
        "python": platform.python_version(),
        info.backend or "backend": info.backend_version or cache.version_of("onnxruntime"),
    }
    certificate = {
        "kind": info.certificate.kind,
        "k": info.certificate.k,
        "widths": info.certificate.classes,
        "break_even": report.compute_break_even(info.certificate, info.k_max),
    }
    spec = {"enabled": info.enabled, "reasons": list(info.reasons), "drafter": info.drafter}
    return {
        "cpu": machine.name_processor(),
        "device": info.device,
        "cores": os.cpu_count(),
        "threads": info.threads,
        "kernels": kernels(),
        "versions": versions,
        "power": power,
        "temperature_after_c": machine.read_temperatures(),
        "load": machine.read_load(),
        "start_s": opened,
        "peak_mb": machine.read_peak_mb(),
        "bundle": bundle.digest,
        "name": bundle.manifest["name"],
        "context": info.context,
        "certificate": certificate,
        "speculation": spec,
    }


def refuse_against(power: Json, against: Path | None) -> None:
    """Raises InputError before anything is measured where the saved report has another power mode."""
    if against is not None:
        saved = compare.load_report(against)
        compare.refuse_other_mode(
            {"power": power, "name": "this run"}, {**saved["environment"], "name": saved["name"]}
        )


def refuse_change(before: Json) -> None:
    """Raises EnvironmentFault where the power mode changed while the bench ran."""
    different = machine.compare_modes(before, machine.read_power())
    if different:
        raise EnvironmentFault(
            f"the power mode changed while the bench ran ({different}); set one and run it again"
        )


def add_comparison(found: Json, against: Path | None) -> Json:
    """The report, with the comparison where one was asked for."""
    if against is None:
        return found
    return {
        **found,
        "comparison": compare.compare_reports({"name": "this run", **found}, compare.load_report(against)),
    }
