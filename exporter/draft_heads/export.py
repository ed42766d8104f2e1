"""From a draft head file to a draft graph: trace, fuse, lower, write, with a check after each stage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.draft_kinds import KINDS, import_function
from specc.contracts.engine_plan import EnginePlan
from specc.exporter.export import ExportResult
from specc.progress import Progress, no_progress

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint


def export_draft_head(
    path: Path, plan: EnginePlan, target: Checkpoint, folder: Path, progress: Progress | None = None
) -> ExportResult:
    """Write `<plan.name>.onnx` (and its data file) of the draft head at `path`, trained for `target`.

    Weights that lie in the target's data file in `folder` already are read from there where the plan shares
    it. Raises InputError for a file that is no head or does not fit, StageError when a stage changed its
    results.
    """
    from specc.exporter.draft_heads.build import build_draft_head
    from specc.exporter.draft_heads.check import check_draft_head, compute_draft_reference
    from specc.exporter.draft_heads.file import load_draft_head
    from specc.exporter.graph.files import write_graph
    from specc.exporter.lower.dialects import lower_graph
    from specc.exporter.rewrites.fuse import fuse_graph

    started, progress = time.monotonic(), progress or no_progress
    progress("load", 0.0)
    file = load_draft_head(path)
    kind = KINDS[file.kind]
    head: Any = build_draft_head(file, target.load())
    if kind.is_parallel:
        head.cut(plan.widths[0])
    progress("trace", 0.2)
    expected = compute_draft_reference(head, plan)
    graph = import_function(kind.trace_head)(head, plan)
    errors = {"trace": check_draft_head(graph, expected, "trace")}
    progress("fuse", 0.6)
    graph = fuse_graph(graph)
    errors["fuse"] = check_draft_head(graph, expected, "fuse")
    progress("quantize", 0.75)
    graph = lower_graph(graph, plan, target)
    errors["quantize"] = check_draft_head(graph, expected, "quantize", plan.scheme)
    progress("save", 0.95)
    shares = folder / f"{plan.shares}.onnx" if plan.shares else None
    files = write_graph(graph, folder, plan.name, shares)
    progress("save", 1.0)
    return ExportResult(files, graph.node_count, errors, {}, graph.notes, time.monotonic() - started)
