"""What each group of layers costs: the distance to the float module when that group alone is quantized."""

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
    """`group`, `kl` (nats a token) and `top1` of each group, in the order of the layers, on held-out text."""
    from specc.exporter import trace
    from specc.exporter.check import quality
    from specc.exporter.check.held_out_text import encode_held_out
    from specc.exporter.check.logits import compute_logits
    from specc.exporter.lower.dialects import lower_graph
    from specc.exporter.rewrites.fuse import fuse_graph

    progress = progress or no_progress
    progress("trace", 0.0)
    model = checkpoint.load()
    ids = encode_held_out(checkpoint.tokens, plan.context, plan.spec.vocab, plan.spec.bos)
    wanted = compute_logits(model, ids)
    graph = fuse_graph(trace.trace_graph(model, plan))
    del model
    groups, found = group_layers(plan.layers), list[dict[str, Any]]()
    for i, (name, layers) in enumerate(groups.items()):
        progress(name, 0.2 + 0.8 * i / len(groups))
        numbers = quality.measure_quality(
            lower_graph(hide_other_layers(graph, layers), plan, checkpoint), wanted, ids, plan.chunk
        )
        found.append({"group": name, "kl": numbers["kl"], "top1": numbers["top1"]})
    return found


def group_layers(layers: int) -> dict[str, frozenset[int | None]]:
    """Name -> layers of a group; None stands for the embedding and the head."""
    size = math.ceil(layers / MOST_GROUPS)
    groups: dict[str, frozenset[int | None]] = {EMBEDDING_AND_LM_HEAD: frozenset([None])}
    for first in range(0, layers, size):
        last = min(first + size, layers) - 1
        groups[f"layer {first}" if first == last else f"layers {first}-{last}"] = frozenset(
            range(first, last + 1)
        )
    return groups


def parse_layer(weight: str) -> int | None:
    """The layer that a weight belongs to by its name, None for embedding and head."""
    found = re.search(r"\blayers\.(\d+)\.", weight)
    return int(found[1]) if found else None


def hide_other_layers(graph: Graph, layers: frozenset[int | None]) -> Graph:
    """The same graph in which products of other layers read their weight through an Identity.

    No scheme quantizes a weight that it does not see as a constant, so that only `layers` are; what is computed stays.
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
        same = ir.node("Identity", [weight])
        insert_before(node, same)
        copy_type(weight, same.outputs[0])
        node.replace_input_with(place, same.outputs[0])
    return out
