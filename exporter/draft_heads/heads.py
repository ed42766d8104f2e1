"""From a head file to a draft graph: trace, fuse, quantize, lower, each stage checked against the module."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.plan import EnginePlan

if TYPE_CHECKING:
    from specc.exporter import Exported
    from specc.exporter.checkpoint.checkpoint import Checkpoint

Progress = Callable[[str, float], Any]


def export_head(
    path: Path, plan: EnginePlan, target: Checkpoint, folder: Path, progress: Progress | None = None
) -> Exported:
    """Write `<plan.name>.onnx` (and its data file) of the head at `path`, trained for `target`.

    Weights that lie in the target's data file in `folder` already are read from there where the plan shares it.
    Raises InputError for a file that is no head or does not fit, StageError when a stage changed its results.
    """
    from specc.exporter import Exported, fuse, lower_graph
    from specc.exporter.check.check_head import check_head, head_reference
    from specc.exporter.draft_heads.head_module import FeatureHead, MedusaHead, build_head, load_head
    from specc.exporter.draft_heads.trace_head import trace_feature, trace_medusa
    from specc.exporter.graph import save

    started, tell = time.monotonic(), progress or (lambda stage, part: None)
    tell("load", 0.0)
    head = build_head(load_head(path), target.load())
    if isinstance(head, MedusaHead):
        head.cut(plan.widths[0])
    tell("trace", 0.2)
    expected = head_reference(head, plan)
    graph = trace_feature(head, plan) if isinstance(head, FeatureHead) else trace_medusa(head, plan.name)
    errors = {"trace": check_head(graph, expected, "trace")}
    tell("fuse", 0.6)
    graph = fuse(graph)
    errors["fuse"] = check_head(graph, expected, "fuse")
    tell("quantize", 0.75)
    graph = lower_graph(graph, plan, target)
    errors["quantize"] = check_head(graph, expected, "quantize", plan.scheme)
    tell("save", 0.95)
    shares = folder / f"{plan.shares}.onnx" if plan.shares else None
    files = save.save(graph, folder, plan.name, shares)
    tell("save", 1.0)
    return Exported(files, graph.node_count, errors, {}, graph.notes, time.monotonic() - started)
