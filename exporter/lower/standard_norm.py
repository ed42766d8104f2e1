"""Norms in standard operators, always in fp32: the square of 256 overflows half precision."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.emitter import FLOAT, Emitter
from specc.exporter.graph.graph import Graph, copy_graph, copy_type, remove_unused, replace_uses

NORMS = ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")


def lower_norms(graph: Graph, has_operator: bool) -> Graph:
    """Graph -> Graph: RMSNormalization (opset 23) where `has_operator`, else its parts."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type in NORMS:
            replace_norm(out.model.graph, node, has_operator)
    return remove_unused(out)


def replace_norm(graph: ir.Graph, node: ir.Node, has_operator: bool) -> None:
    """Replace one norm, and the sum before it where it has one."""
    emit, skips = Emitter(graph, node, str(node.name)), node.op_type.startswith("Skip")
    x, weight = node.inputs[0], node.inputs[2 if skips else 1]
    assert x is not None and weight is not None
    if skips:
        x = emit.op("Add", x, node.inputs[1])
        copy_type(node.outputs[0], x)
    epsilon = node.attributes["epsilon"].as_float()
    normal = (
        write_operator(emit, x, weight, epsilon) if has_operator else write_parts(emit, x, weight, epsilon)
    )
    copy_type(node.outputs[0], normal)
    replace_uses(node.outputs[0], normal)
    if skips and len(node.outputs) > 3:
        replace_uses(node.outputs[3], x)


def write_operator(emit: Emitter, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    """RMSNormalization of opset 23."""
    return emit.op("RMSNormalization", x, weight, axis=-1, epsilon=epsilon, stash_type=int(FLOAT))


def write_parts(emit: Emitter, x: ir.Value, weight: ir.Value, epsilon: float) -> ir.Value:
    """x / sqrt(mean(x^2) + epsilon) * weight."""
    mean = emit.op("ReduceMean", emit.op("Mul", x, x), emit.ints(-1), keepdims=1)
    small = emit.constant(f"epsilon_{epsilon:.6g}", np.array(epsilon, np.float32))
    return emit.op("Mul", emit.op("Div", x, emit.op("Sqrt", emit.op("Add", mean, small))), weight)
