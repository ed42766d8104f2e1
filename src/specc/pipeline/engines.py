"""From graphs to what a bundle ships: engines where a builder finishes them here, else graphs for `specc finalize`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.plan import Plan
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.cache import Stage, code_hash, stage
from specc.pipeline.checkpoint import build_extra
from specc.pipeline.clock import Clock, Steps
from specc.targets import Hardware

TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
WHEELS = {
    "tensorrt-rtx": ("tensorrt-rtx-cu13-bindings", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
    "tensorrt": ("tensorrt",),
}
CUDA_OPTIONS = {
    "use_tf32": "0",
    "arena_extend_strategy": "kSameAsRequested",
    "cudnn_conv_use_max_workspace": "0",
}
"""Options of ONNX Runtime's CUDA provider: plain fp32 sums, no memory beyond what is asked for."""


@dataclass(frozen=True)
class Shipped:
    """What goes into the bundle: stages with files, the paths of each engine, and its further keys in the manifest."""

    stages: tuple[Stage, ...]
    paths: dict[str, list[str]]
    parts: dict[str, dict[str, Any]]


def ship(plan: Plan, graphs: Mapping[str, Stage], clock: Clock) -> Shipped:
    """Engines in place of graphs where they are finished here. Raises InputError, EnvironmentFault."""
    paths = graph_paths(plan, graphs)
    gpu = plan.hardware.gpu
    if gpu is None or plan.target.dialect == "ort":
        parts = {engine.name: provider(plan.hardware) for engine in plan.engines}
        return Shipped(tuple(graphs.values()), paths, parts)
    check_operators(plan, graphs)
    if gpu.finish == "device":
        parts = {engine.name: unfinished(engine) for engine in plan.engines}
        return Shipped(tuple(graphs.values()), paths, parts)
    made = {engine.name: plan_stage(plan, engine, graphs, clock) for engine in plan.engines}
    parts = {e.name: finished(e, graphs[e.name].key, made[e.name].facts) for e in plan.engines}
    names = {name: [file.path for file in item.files] for name, item in made.items()}
    return Shipped(tuple(made.values()), names, parts)


def graph_paths(plan: Plan, graphs: Mapping[str, Stage]) -> dict[str, list[str]]:
    """Paths that each engine is made of; a draft that shares weights is made of the target's weight file too."""
    paths = {name: [file.path for file in item.files] for name, item in graphs.items()}
    if plan.draft is not None and plan.draft.shares:
        paths["draft"] += [path for path in paths["target"] if path != "target.onnx"]
    return paths


# ---------------------------------------------------------------------- the manifest's keys


def provider(hardware: Hardware) -> dict[str, Any]:
    """A graph for ONNX Runtime; on a GPU with the provider that runs it, whose options are passed on as they are."""
    if hardware.gpu is None:
        return {}
    cuda = {"name": "CUDAExecutionProvider", "options": dict(CUDA_OPTIONS)}
    return {"backend": "ort", "cache_dtype": "float16", "provider": cuda}


def unfinished(engine: EnginePlan) -> dict[str, Any]:
    """A graph that becomes an engine on the device."""
    return {**caches(engine), "file": f"{engine.name}.onnx", "finalize": True}


def finished(engine: EnginePlan, graph: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """An engine: what built it, for which device, and the hash of its plan (a rebuild is another engine)."""
    kept = {key: made[key] for key in ("tensorrt", "sm", "platform", "stripped", "plan_sha256", "types")}
    return {
        **caches(engine),
        "file": f"{engine.name}.plan",
        "backend": made["library"],
        "graph_sha256": graph,
        **kept,
    }


def caches(engine: EnginePlan) -> dict[str, Any]:
    """Type of the caches, and who writes them."""
    update = "in-place" if engine.opset24 else "rows"
    return {"cache_dtype": TYPES[engine.cache or engine.dtype], "cache_update": update}


# ---------------------------------------------------------------------- preflight and builders


def check_operators(plan: Plan, graphs: Mapping[str, Stage]) -> None:
    """Raise InputError that lists what the target's TensorRT lacks, before a builder starts."""
    from specc.exporter.tensorrt.preflight import list_refusals

    gpu = plan.hardware.gpu
    assert gpu is not None
    for name, item in graphs.items():
        wrong = list_refusals(item.folder / f"{name}.onnx", gpu.builder)
        if wrong:
            version = f"TensorRT{'-RTX' if gpu.is_rtx else ''} {gpu.system.tensorrt} of {plan.hardware.name}"
            raise InputError(f"{version} lacks what the {name} graph has: {'; '.join(wrong)}")


def plan_stage(plan: Plan, engine: EnginePlan, graphs: Mapping[str, Stage], clock: Clock) -> Stage:
    """One finished engine, from the cache where graph, library and device are the same."""
    gpu, library = plan.hardware.gpu, plan.hardware.backend
    assert gpu is not None
    inputs = {
        "graph": graphs[engine.name].key,
        "library": [library, *(cache.version_of(name) for name in WHEELS[library])],
        "sm": gpu.sm,
        "widths": engine.widths,
        "code": code_hash("specc.exporter.tensorrt"),
        "scheme": engine.scheme.layers,
    }
    with clock.stage(f"engine {engine.name}") as hit:
        steps = clock.steps(f"engine {engine.name}")
        made = stage("plan", inputs, partial(write_plan, plan, engine, graphs, steps))
        hit(made.cached)
    return made


def write_plan(
    plan: Plan, engine: EnginePlan, graphs: Mapping[str, Stage], steps: Steps, folder: Path
) -> dict[str, Any]:
    """Build into `folder`, where the graphs lie meanwhile."""
    lent = [path for item in graphs.values() for path in lend(item, folder)]
    facts = build_plan(engine, folder, plan.hardware, plan.hardware.backend, None, steps)
    for path in lent:
        path.unlink()
    return facts


def build_plan(
    engine: EnginePlan, folder: Path, hardware: Hardware, library: str, sm: int | None, steps: Steps
) -> dict[str, Any]:
    """`NAME.plan` beside `NAME.onnx` in `folder`; what the builder says of it, and its hash."""
    from specc.contracts.files import hash_file

    gpu = hardware.gpu
    assert gpu is not None
    with build_extra():
        from specc.exporter.tensorrt.engine import EngineJob, build_engine
    job = EngineJob(
        name=engine.name,
        graph=str((folder / f"{engine.name}.onnx").resolve()),
        plan=str((folder / f"{engine.name}.plan").resolve()),
        library=library,
        sm=(sm or gpu.sm) if library == "tensorrt-rtx" else None,
        widths=engine.widths,
        context=engine.context,
        capacity=engine.capacity,
        timing_cache=str(cache.root() / "timing" / f"{library}-sm{gpu.sm}")
        if library == "tensorrt"
        else None,
        integrated=gpu.integrated and library == "tensorrt",
        scheme=engine.scheme.layers,
    )
    parts = ("load", "parse", "build", "write")
    made = build_engine(job, lambda name: steps(name, parts.index(name) / len(parts)))
    return {**asdict(made), "plan_sha256": hash_file(folder / f"{engine.name}.plan")}


def lend(lender: Stage, folder: Path) -> list[Path]:
    """Put another stage's files into the folder."""
    return lend_files(lender.folder, [file.path for file in lender.files], folder)


def lend_files(lender: Path, names: Iterable[str], folder: Path) -> list[Path]:
    """Put files of another folder into this one, as links where the file system has them."""
    paths = []
    for name in names:
        paths.append(folder / name)
        try:
            os.link(lender / name, paths[-1])
        except OSError:
            shutil.copyfile(lender / name, paths[-1])
    return paths
