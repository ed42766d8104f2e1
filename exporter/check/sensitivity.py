"""Sensitivity of each group of layers: the distance to the float module when only that group is quantized."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from specc.contracts.engine_plan import EnginePlan
from specc.progress import Progress, no_progress

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint
    from specc.exporter.graph.graph import Graph

MOST_GROUPS = 16  # of layers; more layers than that share a group with their neighbours
EMBEDDING_AND_LM_HEAD = "embedding and head"
WEIGHT_INPUT = {"MatMul": 1, "Gemm": 1, "Gather": 0}


def measure_sensitivity(
    checkpoint: Checkpoint, plan: EnginePlan, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """`group`, `kl` (nats per token) and `top1` of each group on held-out text, in order of the layers."""
    from specc.exporter.check.held_out_text import encode_held_out
    from specc.exporter.check.logits import compute_logits
    from specc.exporter.check.quality import measure_quality
    from specc.exporter.lower.dialects import lower_graph
    from specc.exporter.rewrites.fuse import fuse_graph
    from specc.exporter.trace import trace_graph

    progress = progress or no_progress
    progress("trace", 0.0)
    model = checkpoint.load()
    ids = encode_held_out(checkpoint.tokens, plan.context, plan.spec.vocab, plan.spec.bos)
    float_logits = compute_logits(model, ids)
    graph = fuse_graph(trace_graph(model, plan))
    del model
    groups, costs = group_layers(plan.layers), list[dict[str, Any]]()
    for i, (name, layers) in enumerate(groups.items()):
        progress(name, 0.2 + 0.8 * i / len(groups))
        lowered = lower_graph(hide_other_layers(graph, layers), plan, checkpoint)
        quality = measure_quality(lowered, float_logits, ids, plan.chunk)
        costs.append({"group": name, "kl": quality["kl"], "top1": quality["top1"]})
    return costs


def group_layers(layers: int) -> dict[str, frozenset[int | None]]:
    """Name -> layers of a group; None stands for the embedding and the lm_head."""
    size = math.ceil(layers / MOST_GROUPS)
    groups: dict[str, frozenset[int | None]] = {EMBEDDING_AND_LM_HEAD: frozenset([None])}
    for first in range(0, layers, size):
        last = min(first + size, layers) - 1
        groups[f"layer {first}" if first == last else f"layers {first}-{last}"] = frozenset(
            range(first, last + 1)
        )
    return groups


def parse_layer(weight: str) -> int | None:
    """The layer that a weight belongs to, from its name; None for embedding and lm_head."""
    match = re.search(r"\blayers\.(\d+)\.", weight)
    return int(match[1]) if match else None


def hide_other_layers(graph: Graph, layers: frozenset[int | None]) -> Graph:
    """The same graph, in which products outside `layers` read their weight through an Identity.

    A scheme quantizes only constant weights, so only those of `layers`; the computation is unchanged.
    """
    import onnx_ir as ir

    from specc.exporter.graph.graph import copy_graph, copy_type, insert_before

    out = copy_graph(graph)
    for node in list(out.model.graph):
        place = WEIGHT_INPUT.get(node.op_type, -1)
        weight = node.inputs[place] if 0 <= place < len(node.inputs) else None
        if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        if parse_layer(str(weight.name)) in layers:
            continue
        identity = ir.node("Identity", [weight])
        insert_before(node, identity)
        copy_type(weight, identity.outputs[0])
        node.replace_input_with(place, identity.outputs[0])
    return out
