"""`specc bench` from options to its JSON."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc import __version__
from specc.bench import compare, machine, measure, prompts, report
from specc.bench.measure import Setting, Task
from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
from specc.errors import EnvironmentFault
from specc.pipeline import cache
from specc.runtime import Model, Session, kernels

Json = dict[str, Any]
Tick = Callable[[int, int], Any]


@dataclass(frozen=True)
class Ask:
    """What the user asked for."""

    folder: Path
    against: Path | None = None  # a saved report; None: plain decoding alone
    prompts: Path | None = None  # None: those that come along
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
        """Each temperature with each rule; at temperature 0 the rules are one."""
        pairs = [(t, rule) for t in self.temperatures for rule in (self.rules if t > 0 else self.rules[:1])]
        return tuple(Setting(t, rule) for t, rule in dict.fromkeys(pairs))


def bench(ask: Ask, tick: Tick = lambda done, total: None) -> Json:
    """The JSON of `specc bench`. Raises as opening does, for unusable prompts and for other power modes."""
    if ask.folder.is_file():
        return compared(compare.load(ask.folder), ask.against)
    power = machine.power()
    refuse_against(power, ask.against)
    begin = time.perf_counter()
    bundle = verify_bundle(read_bundle(ask.folder), ask.trust)
    with Model.open(ask.folder, threads=ask.threads, certificates=ask.certificates, trust=True) as model:
        with model.session() as session:
            opened = time.perf_counter() - begin
            found = measured(ask, bundle, model, session, tick)
        found["environment"] = environment(ask, model, bundle, opened, power)
    refuse_change(power)
    return compared(found, ask.against)


def measured(ask: Ask, bundle: Bundle, model: Model, session: Session, tick: Tick) -> Json:
    """Rows and summary."""
    classes = prompts.from_file(ask.prompts) if ask.prompts else prompts.shipped(ask.split)
    chosen = prompts.fewer(classes, 2) if ask.quick else classes
    ids = prompts.encoded(bundle, chosen, model.info.context)
    base = {name: value for name, value in bundle.manifest["sampling"].items() if name not in OWN}
    repeats, new = (1, min(48, ask.max_new_tokens)) if ask.quick else (ask.repeats, ask.max_new_tokens)
    task = Task(ids, ask.settings(), repeats, new, ask.seed, {**base, **ask.options})
    rows = report.rows(measure.run(session, task, tick), model.info.certificate)
    return {"rows": rows, "summary": report.summary(rows), "task": described(task, ask)}


OWN = ("temperature", "rule", "seed", "max_new_tokens", "speculation")
"""What the bench sets itself, whatever the bundle's defaults are."""


def described(task: Task, ask: Ask) -> Json:
    """What was run, so that it can be run again."""
    counts = {name: len(ids) for name, ids in task.prompts.items()}
    source = str(ask.prompts) if ask.prompts else ask.split
    return {
        "prompts": source,
        "classes": counts,
        "repeats": task.repeats,
        "max_new_tokens": task.max_new_tokens,
        "seed": task.seed,
        "options": dict(task.options),
        "quick": ask.quick,
    }


def environment(ask: Ask, model: Model, bundle: Bundle, opened: float, power: Json) -> Json:
    """The machine, the software, the bundle; power, clocks and load as they were before the first generation."""
    info = model.info
    versions = {
        "specc": __version__,
        "python": platform.python_version(),
        info.backend or "backend": info.backend_version or cache.version_of("onnxruntime"),
    }
    found = info.certificate
    certificate = {
        "kind": found.kind,
        "k": found.k,
        "widths": found.classes,
        "break_even": report.break_even(found, info.k_max),
    }
    spec = {"enabled": info.enabled, "reasons": list(info.reasons), "drafter": info.drafter}
    return {
        "cpu": machine.processor(),
        "device": info.device,
        "cores": os.cpu_count(),
        "threads": info.threads,
        "kernels": kernels(),
        "versions": versions,
        "power": power,
        "temperature_after_c": machine.temperatures(),
        "load": machine.load(),
        "start_s": opened,
        "peak_mb": machine.peak_mb(),
        "bundle": bundle.digest,
        "name": bundle.manifest["name"],
        "context": info.context,
        "certificate": certificate,
        "speculation": spec,
    }


def refuse_against(power: Json, against: Path | None) -> None:
    """No minutes of measuring for a report that will not compare."""
    if against is not None:
        saved = compare.load(against)
        compare.refuse_other_mode(
            {"power": power, "name": "this run"}, {**saved["environment"], "name": saved["name"]}
        )


def refuse_change(before: Json) -> None:
    """A run over two power modes is a run of neither."""
    different = machine.different_modes(before, machine.power())
    if different:
        raise EnvironmentFault(
            f"the power mode changed while the bench ran ({different}); set one and run it again"
        )


def compared(found: Json, against: Path | None) -> Json:
    """The report, with the comparison where one was asked for."""
    if against is None:
        return found
    return {**found, "comparison": compare.compare({"name": "this run", **found}, compare.load(against))}
