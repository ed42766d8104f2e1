"""The `ort` dialect in half precision, for ONNX Runtime's CUDA provider.

That provider's GroupQueryAttention takes no fp32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.contracts.scheme import Scheme
from specc.exporter.graph.emitter import FLOAT, Emitter
from specc.exporter.graph.graph import (
    Graph,
    copy_graph,
    copy_type,
    drop_unused_weights,
    read_constant,
    remove_unused,
    replace_uses,
)
from specc.exporter.lower.half_products import Spellings, clip_to_type, lower_half_products, multiply
from specc.exporter.lower.ort import lower_ort

HALF = ir.DataType.FLOAT16
ROWS, TABLES = range(3), (7, 8)  # inputs of GroupQueryAttention: query, key, value; cos and sin


def lower_ort_half(graph: Graph, scheme: Scheme) -> Graph:
    """Fused float graph -> weights in the scheme.

    Products, attention and KV caches in fp16, the rest in fp32.
    """
    layers, lm_head = ("fp32" if kind == "fp16" else kind for kind in (scheme.layers, scheme.head))
    floats = Scheme(layers, lm_head, scheme.block)
    out = lower_half_products(lower_ort(graph, floats), HALF, Spellings(multiply, multiply))
    inner = out.model.graph
    for value in inner.inputs:
        if (value.name or "").startswith(("past_k.", "past_v.")):
            value.type = ir.TensorType(HALF)
    for node in list(inner):
        if node.op_type == "GroupQueryAttention":
            convert_attention(inner, node)
        elif node.op_type == "MatMulNBits":
            convert_product(inner, node)
    return drop_unused_weights(remove_unused(copy_graph(out))).noting(
        "products, attention and caches in fp16, the rest in fp32"
    )


def convert_attention(graph: ir.Graph, node: ir.Node) -> None:
    """Put rows, tables and caches of one attention into half precision."""
    emit = Emitter(graph, node, str(node.name))
    for slot in (*ROWS, *TABLES):
        value = node.inputs[slot] if slot < len(node.inputs) else None
        if value is not None:
            node.replace_input_with(slot, convert_input(emit, value))
    for output in node.outputs[1:]:
        output.type = ir.TensorType(HALF)
    widen_result(graph, node)


def convert_product(graph: ir.Graph, node: ir.Node) -> None:
    """Put rows and scales of one MatMulNBits into half precision."""
    emit = Emitter(graph, node, str(node.name))
    for slot in (0, 2):
        value = node.inputs[slot]
        assert value is not None
        node.replace_input_with(slot, convert_input(emit, value))
    widen_result(graph, node)


def convert_input(emit: Emitter, value: ir.Value) -> ir.Value:
    """The value in half precision: a rounded copy of a constant, a cast of a computed value."""
    array = read_constant(value)
    if array is not None:
        return emit.constant(f"{value.name}.half", clip_to_type(np.asarray(array), HALF))
    value.type = value.type or ir.TensorType(FLOAT)
    return emit.cast(value, HALF)


def widen_result(graph: ir.Graph, node: ir.Node) -> None:
    """The node's first result becomes half precision; its readers read a cast to fp32."""
    old = node.outputs[0]
    readers = [(use.node, use.idx) for use in old.uses()]
    cast = ir.node("Cast", [old], attributes={"to": int(FLOAT)}, name=f"{node.name}/wide")
    graph.insert_after(node, cast)
    copy_type(old, cast.outputs[0])
    cast.outputs[0].type = ir.TensorType(FLOAT)
    old.type = ir.TensorType(HALF)
    for reader, slot in readers:
        reader.replace_input_with(slot, cast.outputs[0])
    if old.is_graph_output():
        replace_uses(old, cast.outputs[0])
        cast.replace_input_with(0, old)
