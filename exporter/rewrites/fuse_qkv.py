"""Query, key and value: three products over one input become one with a packed result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    find_producer,
    insert_before,
    read_constant,
    remove_unused,
)
from specc.exporter.graph.names import read_scope


@dataclass(frozen=True)
class Projection:
    """One linear map: x [1, R, in] times weight [in, out] plus bias [out] (None without)."""

    x: ir.Value
    weight: ir.Value
    bias: np.ndarray | None


def fuse_qkv(graph: Graph) -> Graph:
    """Graph -> Graph; only where the attention rotates its input itself: a packed input cannot be rotated."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type == "GroupQueryAttention" and node.inputs[1] is not None and len(node.inputs) > 7:
            pack_projections(out.model.graph, node)
    return remove_unused(out)


def pack_projections(graph: ir.Graph, attention: ir.Node) -> None:
    """Pack one layer's three projections, when they read the same rows and all or none have a bias."""
    parts = [match_projection(skip_reshapes(attention.inputs[slot])) for slot in range(3)]
    q, k, v = parts
    if q is None or k is None or v is None or not (q.x is k.x is v.x):
        return
    if len({part.bias is None for part in (q, k, v)}) != 1:
        return
    stem = f"{read_scope(attention) or attention.name}.qkv_proj"
    packed = np.concatenate([np.asarray(p.weight.const_value.numpy()) for p in (q, k, v)], axis=1)  # type: ignore[union-attr]
    nodes = [ir.node("MatMul", [q.x, add_initializer(graph, f"{stem}.weight", packed)], name=stem)]
    if q.bias is not None:
        bias = np.concatenate([np.asarray(p.bias) for p in (q, k, v)])
        added = [nodes[0].outputs[0], add_initializer(graph, f"{stem}.bias", bias)]
        nodes.append(ir.node("Add", added, name=f"{stem}.add"))
    insert_before(attention, *nodes)
    attention.replace_input_with(0, nodes[-1].outputs[0])
    attention.replace_input_with(1, None)
    attention.replace_input_with(2, None)


def skip_reshapes(value: ir.Value | None) -> ir.Value | None:
    """Skip reshapes that split heads and join them again, [1, R, n * d] -> [1, R, n, d] -> [1, R, n * d]."""
    join = find_producer(value, "Reshape")
    split = find_producer(join.inputs[0], "Reshape") if join else None
    if split is None:
        second = find_producer(join.inputs[0], "Transpose") if join else None
        first = find_producer(second.inputs[0], "Transpose") if second else None
        split = find_producer(first.inputs[0], "Reshape") if first else None
    return split.inputs[0] if split is not None else value


def match_projection(value: ir.Value | None) -> Projection | None:
    """The product (and bias) that computes `value`; None for anything else."""
    added = find_producer(value, "Add")
    if added is not None:
        for product, bias in (added.inputs, added.inputs[::-1]):
            inner, array = match_projection_without_bias(product), read_constant(bias)
            if inner is not None and array is not None and array.ndim == 1:
                return Projection(inner.x, inner.weight, array)
    return match_projection_without_bias(value)


def match_projection_without_bias(value: ir.Value | None) -> Projection | None:
    """The MatMul with a constant right side that computes `value`; None for anything else."""
    product = find_producer(value, "MatMul")
    if product is None:
        return None
    x, weight = product.inputs
    return (
        Projection(x, weight, None)
        if x is not None and weight is not None and weight.const_value is not None
        else None
    )
