"""From a checkpoint to a graph file: trace, fuse, lower and write, with a check after each stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.engine_plan import EnginePlan
from specc.progress import Progress, no_progress

if TYPE_CHECKING:
    import numpy as np

    from specc.exporter.check.logits import Reference
    from specc.exporter.checkpoint.checkpoint import Checkpoint
    from specc.exporter.graph.graph import Graph
    from specc.exporter.lower.dialects import Ranges


@dataclass(frozen=True)
class ExportResult:
    """What one export wrote and measured."""

    files: tuple[Path, ...]
    node_count: int
    stage_errors: dict[str, float]
    """Largest error after each stage: relative for float stages and for nodes, nats a row after quantizing.
    """
    quality: dict[str, float]
    """The written graph against the float module on held-out text (measure_quality).

    Empty for an early exit.
    """
    notes: tuple[str, ...]
    seconds: float


def export_graph(
    checkpoint: Checkpoint,
    plan: EnginePlan,
    folder: Path,
    progress: Progress | None = None,
    ranges: Ranges | None = None,
    prepare: Callable[[Any], None] | None = None,
) -> ExportResult:
    """Write `<plan.name>.onnx` (and its `.onnx.data`) into `folder`.

    `ranges`: activation ranges of the products, for schemes with static scales (int8, fp8). `prepare` may
    change the module before it is traced. An engine that shares weights reads them from the
    `target.onnx.data` that already lies in `folder`. Raises InputError for a checkpoint that cannot be read,
    StageError when a stage changed the model's results.
    """
    from specc.exporter.check.held_out_text import encode_held_out
    from specc.exporter.check.logits import check_stage, compute_logits, compute_reference
    from specc.exporter.graph.files import write_graph
    from specc.exporter.lower.dialects import lower_graph
    from specc.exporter.rewrites.fuse import fuse_graph
    from specc.exporter.trace import trace_graph

    started, progress = time.monotonic(), progress or no_progress
    progress("load", 0.0)
    model, window = load_module(checkpoint, plan, prepare)
    progress("trace", 0.15)
    expected = compute_reference(model, plan, checkpoint.tokens, window)
    held_out = encode_held_out(checkpoint.tokens, plan.context, plan.spec.vocab, plan.spec.bos)
    float_logits = compute_logits(model, held_out) if plan.layers == plan.spec.layers else None
    graph = trace_graph(model, plan)
    del model  # the graph has its own copies of the products' weights
    errors = {"trace": check_stage(graph, expected, plan, "trace")}
    progress("fuse", 0.6)
    graph = fuse_graph(graph)
    errors["fuse"] = check_stage(graph, expected, plan, "fuse")
    progress("quantize", 0.75)
    graph = lower_graph(graph, plan, checkpoint, ranges).noting(*checkpoint.notes())
    lowered_errors, quality = check_lowered(graph, plan, expected, float_logits, held_out)
    errors |= lowered_errors
    progress("save", 0.95)
    files = write_graph(graph, folder, plan.name, folder / f"{plan.shares}.onnx" if plan.shares else None)
    progress("save", 1.0)
    return ExportResult(files, graph.node_count, errors, quality, graph.notes, time.monotonic() - started)


def load_module(
    checkpoint: Checkpoint, plan: EnginePlan, prepare: Callable[[Any], None] | None
) -> tuple[Any, int]:
    """The float module, changed by `prepare`, and the largest window of its attention that matters.

    Raises InputError for attention that a graph does not carry over.
    """
    from specc.exporter.probe import check_attention

    model = checkpoint.load()
    window = check_attention(model, plan)
    if prepare is not None:
        prepare(model)
    return model, window


def check_lowered(
    graph: Graph, plan: EnginePlan, expected: Reference, float_logits: np.ndarray | None, held_out: np.ndarray
) -> tuple[dict[str, float], dict[str, float]]:
    """(errors of nodes and of the lowered graph, its quality). Raises StageError above a bound.

    `expected`: the module's logits of the checked calls; `float_logits`: fp32 [n, vocab], those of `held_out`
    int64 [n], or None where the quality is not measured.
    """
    from specc.exporter.check.float_twin import make_float_twin
    from specc.exporter.check.logits import check_stage
    from specc.exporter.check.nodes import check_nodes
    from specc.exporter.check.quality import measure_quality

    errors = {"nodes": check_nodes(graph)}
    runnable = make_float_twin(graph) if plan.dtype == "bf16" else graph
    errors["quantize"] = check_stage(runnable, expected, plan, "quantize", plan.scheme)
    if float_logits is None:
        return errors, {}
    return errors, measure_quality(runnable, float_logits, held_out, plan.chunk)
