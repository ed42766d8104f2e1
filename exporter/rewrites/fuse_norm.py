"""RMSNorm: square, mean, square root and two products become one SimplifiedLayerNormalization."""

from __future__ import annotations

import onnx_ir as ir

from specc.exporter.graph.graph import (
    Graph,
    copy_graph,
    copy_type,
    find_producer,
    insert_before,
    read_constant,
    remove_unused,
    replace_uses,
)
from specc.exporter.graph.names import read_scope


def fuse_norm(graph: Graph) -> Graph:
    """Graph -> Graph; a norm in any other form is left as it is."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type == "Mul":
            replace_norm(out.model.graph, node)
    return remove_unused(out)


def replace_norm(graph: ir.Graph, scaled: ir.Node) -> None:
    """Replace `weight * (x * rsqrt(mean(x^2) + eps))` that ends in `scaled`."""
    for weight, normal in (scaled.inputs, scaled.inputs[::-1]):
        array = read_constant(weight)
        match = match_normal(normal)
        if weight is None or array is None or array.ndim != 1 or match is None:
            continue
        x, epsilon = match
        fused = ir.node(
            "SimplifiedLayerNormalization",
            [x, weight],
            attributes={"axis": -1, "epsilon": epsilon, "stash_type": 1},
        )
        fused.name = f"{read_scope(scaled) or scaled.name}/norm"
        insert_before(scaled, fused)
        copy_type(scaled.outputs[0], fused.outputs[0])
        replace_uses(scaled.outputs[0], fused.outputs[0])
        return


def match_normal(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, epsilon) when `value` is x * 1/sqrt(mean(x^2, -1) + epsilon)."""
    product = find_producer(value, "Mul")
    if product is None:
        return None
    for x, inverse in (product.inputs, product.inputs[::-1]):
        epsilon = match_inverse_root(inverse, x)
        if x is not None and epsilon is not None:
            return x, epsilon
    return None


def match_inverse_root(value: ir.Value | None, x: ir.Value | None) -> float | None:
    """Epsilon when `value` is 1/sqrt(mean(x^2, last axis) + epsilon)."""
    inverse = find_producer(value, "Reciprocal")
    root = find_producer(inverse.inputs[0], "Sqrt") if inverse else None
    added = find_producer(root.inputs[0], "Add") if root else None
    if added is None:
        return None
    for mean, bias in (added.inputs, added.inputs[::-1]):
        epsilon = read_constant(bias)
        if epsilon is not None and epsilon.size == 1 and is_mean_square(mean, x):
            return float(epsilon.reshape(()))
    return None


def is_mean_square(value: ir.Value | None, x: ir.Value | None) -> bool:
    """Whether `value` is the mean of x squared over the last axis, which stays as an axis of size one."""
    mean = find_producer(value, "ReduceMean")
    square = find_producer(mean.inputs[0], "Pow", "Mul") if mean else None
    if mean is None or square is None or len(mean.inputs) < 2:
        return False
    axes, keep = read_constant(mean.inputs[1]), mean.attributes.get("keepdims")
    last = axes is not None and axes.tolist() == [-1] and (keep is None or keep.as_int() == 1)
    if square.op_type == "Mul":
        return last and square.inputs[0] is x and square.inputs[1] is x
    power = read_constant(square.inputs[1])
    return last and square.inputs[0] is x and power is not None and float(power) == 2.0
