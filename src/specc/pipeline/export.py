"""Stage 5: each engine's graph: traced, fused, quantized, checked against transformers, and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import list_modules
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.files import describe_file
from specc.pipeline.cache import CacheEntry, tool_versions
from specc.pipeline.checkpoint import CheckpointRecord, require_build_extra
from specc.pipeline.clock import Clock
from specc.pipeline.draft_files import exit_norm_file, head_file
from specc.pipeline.identity import run_reading_stage
from specc.pipeline.links import temporary_links
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash
from specc.progress import Progress

if TYPE_CHECKING:
    from specc.exporter.export import ExportResult

GRAPH_CODE = ("specc.exporter.export", "specc.exporter.checkpoint.checkpoint", "specc.pipeline.export")
"""What decides the graph of a model, with all that it imports: trace, graph, rewrites, lower, check. Not the
TensorRT builder, not draft heads; static scales have a key of their own."""
NORM_CODE = ("specc.exporter.draft_heads.file",)
"""And of an early exit with a norm of its own."""
HEAD_CODE = (*GRAPH_CODE, "specc.exporter.draft_heads.export", *list_modules("build_head", "trace_head"))
"""What decides the graph of a trained draft head."""


def export_graphs(
    planned: Planned, ranges: Mapping[str, CacheEntry], clock: Clock
) -> Mapping[str, CacheEntry]:
    """The graph of each engine, the target's first. Raises InputError, StageError, EnvironmentFault."""
    graphs: dict[str, CacheEntry] = {}
    for engine in planned.plan.engines:
        stage = f"export {engine.name}"
        with clock.stage(stage) as hit:
            shared = graphs["target"] if engine.shares else None
            if engine.name == "draft" and planned.plan.head is not None:
                graph = export_head(planned, engine, shared, clock.progress(stage))
            else:
                graph = export_model(planned, engine, shared, ranges.get(engine.name), clock.progress(stage))
            graphs[engine.name] = graph
            hit(graph.cached)
    return graphs


# ---------------------------------------------------------------------- a model's engine


def export_model(
    planned: Planned,
    engine: EnginePlan,
    shared: CacheEntry | None,
    ranges: CacheEntry | None,
    progress: Progress,
) -> CacheEntry:
    """The graph of the target or of a draft model.

    shared: the entry whose weight file it reads too; ranges: that of its static scales.
    """
    norm = exit_norm_file(planned.plan) if engine.name == "draft" else None
    inputs = {
        "engine": asdict(engine),
        "shared": shared.key if shared else None,
        **({"ranges": ranges.key} if ranges else {}),
        **({"norm": describe_file(norm.parent, norm.name).sha256} if norm else {}),
        "code": code_hash(*GRAPH_CODE, *(NORM_CODE if norm else ())),
        "tools": tool_versions(),
    }
    checkpoint = planned.checkpoint_of(engine)
    run = partial(write_model, checkpoint, engine, shared, ranges, norm, progress)
    return run_reading_stage("engine", inputs, [checkpoint.identity], run)


def write_model(
    checkpoint: CheckpointRecord,
    engine: EnginePlan,
    shared: CacheEntry | None,
    ranges: CacheEntry | None,
    norm: Path | None,
    progress: Progress,
    folder: Path,
) -> dict[str, Any]:
    """Export into `folder`, where the files of the shared entry lie meanwhile. norm: of an early exit."""
    with require_build_extra():
        from specc.exporter.export import export_graph

        further: dict[str, Any] = scale_arguments(ranges)
        if norm is not None:
            from specc.exporter.draft_heads.file import load_exit_norm

            further["prepare"] = load_exit_norm(norm)
        with temporary_links([shared] if shared else [], folder):
            exported = export_graph(checkpoint.open(), engine, folder, progress, **further)
    facts = facts_of(exported)
    return {**facts, "range_errors": ranges.facts["errors"]} if ranges else facts


def scale_arguments(ranges: CacheEntry | None) -> dict[str, Any]:
    """Arguments of `exporter.export` for static scales; none where the scheme needs no ranges."""
    if ranges is None:
        return {}
    from specc.calib.scales import apply_shifts

    return {"ranges": ranges.facts["ranges"], "prepare": partial(apply_shifts, shifts=ranges.facts["shifts"])}


# ---------------------------------------------------------------------- a draft head's engine


def export_head(
    planned: Planned, engine: EnginePlan, shared: CacheEntry | None, progress: Progress
) -> CacheEntry:
    """The graph of a trained draft head; shared: the target's entry where it reads the
    target's weights too.
    """
    assert planned.plan.head is not None
    inputs = {
        "engine": asdict(engine),
        "head": planned.plan.head.sha256,
        "shared": shared.key if shared else None,
        "code": code_hash(*HEAD_CODE),
        "tools": tool_versions(),
    }
    run = partial(write_head, planned, engine, shared, progress)
    return run_reading_stage("head", inputs, [planned.target.identity], run)


def write_head(
    planned: Planned, engine: EnginePlan, shared: CacheEntry | None, progress: Progress, folder: Path
) -> dict[str, Any]:
    """Export the head into `folder`, where the files of the shared entry lie meanwhile."""
    with require_build_extra():
        from specc.exporter.draft_heads.export import export_draft_head

        with temporary_links([shared] if shared else [], folder):
            exported = export_draft_head(
                head_file(planned.plan), engine, planned.target.open(), folder, progress
            )
    return facts_of(exported)


def facts_of(exported: ExportResult) -> dict[str, Any]:
    """What the bundle's manifest keeps of an export."""
    return {
        "nodes": exported.node_count,
        "stage_errors": {name: float(error) for name, error in exported.stage_errors.items()},
        "quality": dict(exported.quality),
        "notes": list(exported.notes),
    }
