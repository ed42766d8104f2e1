"""From a checkpoint to a graph file: trace, fuse, quantize, each stage checked against the Hugging Face module."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.plan import EnginePlan

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint
    from specc.exporter.graph.graph import Graph

Ranges = dict[str, float]
"""Largest magnitude that counts of each product's input, by the name of the product's module."""
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Exported:
    """What one export wrote and measured."""

    files: tuple[Path, ...]
    node_count: int
    stage_errors: dict[str, float]
    """Largest error after each stage: relative for float stages and for nodes, nats a row after quantizing."""
    quality: dict[str, float]
    """The shipped graph against the float module on held-out text (quality.measure); empty for an early exit."""
    notes: tuple[str, ...]
    seconds: float


def export(
    checkpoint: Checkpoint,
    plan: EnginePlan,
    folder: Path,
    progress: Progress | None = None,
    ranges: Ranges | None = None,
    prepare: Callable[[Any], None] | None = None,
) -> Exported:
    """Write `<plan.name>.onnx` (and its `.onnx.data`) into `folder`; `progress` hears (stage, part done 0..1).

    `ranges`: activation ranges of the products, for schemes with static scales (int8, fp8); `prepare` may change the
    module before it is traced, so that what it computes stays. An engine that shares
    weights reads them from the `target.onnx.data` that already lies in `folder`. Raises InputError for a checkpoint
    that cannot be read, StageError when a stage changed the model's results.
    """
    from specc.exporter import trace
    from specc.exporter.check import check, check_nodes, quality
    from specc.exporter.check.float_twin import float_twin
    from specc.exporter.check.held_out import held_out_ids
    from specc.exporter.graph import save

    started, tell = time.monotonic(), progress or (lambda stage, part: None)
    tell("load", 0.0)
    model = checkpoint.load()
    if prepare is not None:
        prepare(model)
    tell("trace", 0.15)
    expected = check.reference(model, plan, checkpoint.tokens)
    held_out = held_out_ids(checkpoint.tokens, plan.context, plan.spec.vocab, plan.spec.bos)
    wanted = check.all_logits(model, held_out) if plan.layers == plan.spec.layers else None
    graph = trace.trace(model, plan)
    del model  # the graph has its own copies of the products' weights
    errors = {"trace": check.check(graph, expected, plan, "trace")}
    tell("fuse", 0.6)
    graph = fuse(graph)
    errors["fuse"] = check.check(graph, expected, plan, "fuse")
    tell("quantize", 0.75)
    graph = lower_graph(graph, plan, checkpoint, ranges).noting(*checkpoint.notes())
    errors["nodes"] = check_nodes.check_nodes(graph)
    twin = float_twin(graph) if plan.dtype == "bf16" else graph
    errors["quantize"] = check.check(twin, expected, plan, "quantize", plan.scheme)
    judged = {} if wanted is None else quality.measure(twin, wanted, held_out, plan.chunk)
    tell("save", 0.95)
    shares = folder / f"{plan.shares}.onnx" if plan.shares else None
    files = save.save(graph, folder, plan.name, shares)
    tell("save", 1.0)
    return Exported(files, graph.node_count, errors, judged, graph.notes, time.monotonic() - started)


def lower_graph(graph: Graph, plan: EnginePlan, checkpoint: Checkpoint, ranges: Ranges | None = None) -> Graph:
    """Weights in the plan's scheme, read by the operators of its dialect."""
    if plan.dialect == "ort":
        from specc.exporter.lower.half_ort import half_ort
        from specc.exporter.lower.quantize import quantize

        return half_ort(graph, plan.scheme) if plan.dtype == "fp16" else quantize(graph, plan.scheme)
    from specc.exporter.checkpoint.gguf_codes import GgufCodes
    from specc.exporter.lower.lower_cpu import lower_cpu
    from specc.exporter.lower.lower_onnx24 import lower_onnx24

    stored = GgufCodes(checkpoint.source.path, checkpoint.header) if checkpoint.header is not None else None
    if plan.dialect == "onnx24":
        return lower_onnx24(graph, plan.scheme, plan.dtype, plan.opset24, stored, ranges, plan.cache)
    return lower_cpu(graph, plan.scheme, stored)


def fuse(graph: Graph) -> Graph:
    """All rewrites in their order; each leaves alone what it does not know."""
    from specc.exporter.graph.names import name_weights
    from specc.exporter.rewrites.drop_reshape import drop_reshape
    from specc.exporter.rewrites.fuse_head import fuse_head
    from specc.exporter.rewrites.fuse_norm import fuse_norm
    from specc.exporter.rewrites.fuse_qkv import fuse_qkv
    from specc.exporter.rewrites.fuse_rotary import fuse_rotary
    from specc.exporter.rewrites.fuse_skip_norm import fuse_skip_norm

    for rewrite in (name_weights, fuse_norm, fuse_skip_norm, fuse_rotary, fuse_qkv, fuse_head, drop_reshape):
        graph = rewrite(graph)
    return graph
