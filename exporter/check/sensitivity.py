"""What each group of layers costs: the distance to the float module when that group alone is quantized."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specc.contracts.plan import EnginePlan

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint
    from specc.exporter.graph.graph import Graph

MOST_GROUPS = 16  # of layers; more layers than that share a group with their neighbours
HEAD = "embedding and head"
WEIGHT_INPUT = {"MatMul": 1, "Gemm": 1, "Gather": 0}
Progress = Callable[[str, float], None]


def sensitivity(
    checkpoint: Checkpoint, plan: EnginePlan, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """`group`, `kl` (nats a token) and `top1` of each group, in the order of the layers, on held-out text."""
    from specc.exporter import fuse, lower_graph, trace
    from specc.exporter.check import check, quality
    from specc.exporter.check.held_out import held_out_ids

    tell = progress or (lambda stage, part: None)
    tell("trace", 0.0)
    model = checkpoint.load()
    ids = held_out_ids(checkpoint.tokens, plan.context, plan.spec.vocab, plan.spec.bos)
    wanted = check.all_logits(model, ids)
    graph = fuse(trace.trace(model, plan))
    del model
    groups, found = groups_of(plan.layers), list[dict[str, Any]]()
    for i, (name, layers) in enumerate(groups.items()):
        tell(name, 0.2 + 0.8 * i / len(groups))
        numbers = quality.measure(
            lower_graph(others_hidden(graph, layers), plan, checkpoint), wanted, ids, plan.chunk
        )
        found.append({"group": name, "kl": numbers["kl"], "top1": numbers["top1"]})
    return found


def groups_of(layers: int) -> dict[str, frozenset[int | None]]:
    """Name -> layers of a group; None stands for the embedding and the head."""
    size = math.ceil(layers / MOST_GROUPS)
    groups: dict[str, frozenset[int | None]] = {HEAD: frozenset([None])}
    for first in range(0, layers, size):
        last = min(first + size, layers) - 1
        groups[f"layer {first}" if first == last else f"layers {first}-{last}"] = frozenset(
            range(first, last + 1)
        )
    return groups


def layer_of(weight: str) -> int | None:
    """The layer that a weight belongs to by its name, None for embedding and head."""
    found = re.search(r"\blayers\.(\d+)\.", weight)
    return int(found[1]) if found else None


def others_hidden(graph: Graph, layers: frozenset[int | None]) -> Graph:
    """The same graph in which products of other layers read their weight through an Identity.

    No scheme quantizes a weight that it does not see as a constant, so that only `layers` are; what is computed stays.
    """
    import onnx_ir as ir

    from specc.exporter.graph.graph import copy_of, insert
    from specc.exporter.rewrites.fuse_norm import move_type

    out = copy_of(graph)
    for node in list(out.model.graph):
        place = WEIGHT_INPUT.get(node.op_type, -1)
        weight = node.inputs[place] if 0 <= place < len(node.inputs) else None
        if weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        if layer_of(str(weight.name)) in layers:
            continue
        same = ir.node("Identity", [weight])
        insert(node, same)
        move_type(weight, same.outputs[0])
        node.replace_input_with(place, same.outputs[0])
    return out
