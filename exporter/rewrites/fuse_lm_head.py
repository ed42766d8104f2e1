"""lm_head: one Gemm over the wanted rows, so that the lm_head and a tied embedding read one tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    copy_type,
    find_producer,
    insert_before,
    read_constant,
    read_shape,
    remove_unused,
    replace_uses,
)

LM_HEAD = "lm_head"


def fuse_lm_head(graph: Graph) -> Graph:
    """Graph -> Graph; an lm_head of more than one product (scaling, soft caps) is left as it is."""
    out = copy_graph(graph)
    logits = next(value for value in out.model.graph.outputs if value.name == "logits")
    first = find_producer(logits, "Gather", "Squeeze")
    product = find_producer(first.inputs[0], "MatMul") if first and is_first_element(first) else None
    if first is not None and product is not None:
        replace_lm_head(out.model.graph, product, first)
    return remove_unused(out)


def replace_lm_head(graph: ir.Graph, product: ir.Node, first: ir.Node) -> None:
    """(x [1, m, K] @ W)[0] -> Gemm(x[0], W), with transB when W is a transposed weight."""
    x, right = product.inputs
    transpose = find_producer(right, "Transpose")
    weight = transpose.inputs[0] if transpose is not None else right
    if x is None or weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
        return
    rows = ir.node(
        "Squeeze", [x, add_initializer(graph, "axis_0", np.array([0], np.int64))], name=f"{LM_HEAD}.rows"
    )
    rows.outputs[0].shape, rows.outputs[0].type = (
        ir.Shape(list(x.shape)[1:]) if x.shape is not None else None,
        x.type,
    )
    fused = ir.node(
        "Gemm", [rows.outputs[0], weight], attributes={"transB": int(transpose is not None)}, name=LM_HEAD
    )
    insert_before(first, rows, fused)
    copy_type(first.outputs[0], fused.outputs[0])
    replace_uses(first.outputs[0], fused.outputs[0])


def is_first_element(node: ir.Node) -> bool:
    """Whether a node is `value[0]` of a value whose first axis has one element."""
    value = node.inputs[0]
    if value is None or len(read_shape(value)) != 3 or read_shape(value)[0] != 1:
        return False
    index = read_constant(node.inputs[1])
    return index is not None and index.size == 1 and int(index.reshape(())) == 0
