"""Stage 8: TensorRT engines are built from the graphs where that is possible here; else the graphs ship."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.files import hash_file
from specc.contracts.plan import Plan
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.cache import CacheEntry, run_stage
from specc.pipeline.checkpoint import require_build_extra
from specc.pipeline.clock import Clock
from specc.pipeline.engine_parts import engine_part, graph_part, provider_part
from specc.pipeline.links import temporary_links
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash
from specc.progress import Progress
from specc.targets import Hardware

WHEELS = {
    "tensorrt-rtx": ("tensorrt-rtx-cu13-bindings", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    "tensorrt": ("tensorrt",),
}
"""Packages whose versions decide an engine."""
CODE = ("specc.exporter.tensorrt", "specc.pipeline.engines")


@dataclass(frozen=True)
class Engines:
    """What the bundle holds of its engines."""

    entries: tuple[CacheEntry, ...]
    """Whose files are packed."""
    paths: Mapping[str, list[str]]
    """Engine -> the files that it is made of."""
    parts: Mapping[str, dict[str, Any]]
    """Engine -> its further keys in the manifest."""


def finish_engines(planned: Planned, graphs: Mapping[str, CacheEntry], clock: Clock) -> Engines:
    """Engines in place of graphs where they are built here. Raises InputError, EnvironmentFault."""
    plan, paths = planned.plan, graph_paths(planned.plan, graphs)
    gpu = plan.hardware.gpu
    if gpu is None or plan.target.dialect == "ort":
        parts = {engine.name: provider_part(plan.hardware) for engine in plan.engines}
        return Engines(tuple(graphs.values()), paths, parts)
    check_operators(plan, graphs)
    if gpu.finish == "device":
        parts = {engine.name: graph_part(engine) for engine in plan.engines}
        return Engines(tuple(graphs.values()), paths, parts)
    built = {engine.name: build_here(plan, engine, graphs, clock) for engine in plan.engines}
    parts = {e.name: engine_part(e, graphs[e.name].key, built[e.name].facts) for e in plan.engines}
    files = {name: [file.path for file in entry.files] for name, entry in built.items()}
    return Engines(tuple(built.values()), files, parts)


def graph_paths(plan: Plan, graphs: Mapping[str, CacheEntry]) -> dict[str, list[str]]:
    """Files of each engine; a draft that shares weights has the target's weight file too."""
    paths = {name: [file.path for file in graph.files] for name, graph in graphs.items()}
    if plan.draft is not None and plan.draft.shares:
        paths["draft"] += [path for path in paths["target"] if path != "target.onnx"]
    return paths


def check_operators(plan: Plan, graphs: Mapping[str, CacheEntry]) -> None:
    """Raise InputError that lists what the target's TensorRT lacks, before a builder starts."""
    from specc.exporter.tensorrt.preflight import list_refusals

    gpu = plan.hardware.gpu
    assert gpu is not None
    for name, graph in graphs.items():
        missing = list_refusals(graph.folder / f"{name}.onnx", gpu.builder)
        if missing:
            version = f"TensorRT{'-RTX' if gpu.is_rtx else ''} {gpu.system.tensorrt} of {plan.hardware.name}"
            raise InputError(f"{version} lacks what the {name} graph has: {'; '.join(missing)}")


def build_here(plan: Plan, engine: EnginePlan, graphs: Mapping[str, CacheEntry], clock: Clock) -> CacheEntry:
    """One engine, from the cache where graph, library and device are the same."""
    gpu, library = plan.hardware.gpu, plan.hardware.backend
    assert gpu is not None
    inputs = {
        "graph": graphs[engine.name].key,
        "library": [library, *(cache.version_of(name) for name in WHEELS[library])],
        "sm": gpu.sm,
        "widths": engine.widths,
        "code": code_hash(*CODE),
        "scheme": engine.scheme.layers,
    }
    stage = f"engine {engine.name}"
    with clock.stage(stage) as hit:
        run = partial(write_engine, plan, engine, graphs, clock.progress(stage))
        entry = run_stage("plan", inputs, run)
        hit(entry.cached)
    return entry


def write_engine(
    plan: Plan, engine: EnginePlan, graphs: Mapping[str, CacheEntry], progress: Progress, folder: Path
) -> dict[str, Any]:
    """Build into `folder`, where the graphs lie meanwhile."""
    with temporary_links(graphs.values(), folder):
        return build_engine(engine, folder, plan.hardware, plan.hardware.backend, None, progress)


def build_engine(
    engine: EnginePlan, folder: Path, hardware: Hardware, library: str, sm: int | None, progress: Progress
) -> dict[str, Any]:
    """Build `NAME.plan` from `NAME.onnx` in `folder`; returns what the builder says of it, and its SHA-256.

    sm: compute capability to build for, None for the target's. Raises InputError, EnvironmentFault.
    """
    gpu = hardware.gpu
    assert gpu is not None
    with require_build_extra():
        from specc.exporter.tensorrt.engine import EngineJob
        from specc.exporter.tensorrt.engine import build_engine as run_builder
    timing = cache.root() / "timing" / f"{library}-sm{gpu.sm}"
    job = EngineJob(
        name=engine.name,
        graph=str((folder / f"{engine.name}.onnx").resolve()),
        plan=str((folder / f"{engine.name}.plan").resolve()),
        library=library,
        sm=(sm or gpu.sm) if library == "tensorrt-rtx" else None,
        widths=engine.widths,
        context=engine.context,
        capacity=engine.capacity,
        timing_cache=str(timing) if library == "tensorrt" else None,
        integrated=gpu.integrated and library == "tensorrt",
        scheme=engine.scheme.layers,
    )
    built = run_builder(job, progress)
    return {**asdict(built), "plan_sha256": hash_file(folder / f"{engine.name}.plan")}
