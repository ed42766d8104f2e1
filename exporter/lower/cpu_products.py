"""Products of the `specc-cpu` dialect: MatMul, bias, gate, norm and residual become specc::MatMul."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.checkpoint.codes import KINDS, Codes
from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    copy_type,
    find_producer,
    find_sole_reader,
    insert_before,
    is_transposed,
    read_constant,
    remove_unused,
    replace_uses,
)
from specc.exporter.lower.cpu_layout import GATED, LAYOUT, interleave, pack
from specc.exporter.lower.cpu_weights import CpuWeights

SPECC = "specc"
X, WEIGHTS, NORM, BIAS, RESIDUAL = range(5)


def lower_products(graph: Graph, weights: CpuWeights) -> Graph:
    """Graph -> Graph: gated pairs first, then every other product, then the nodes around them."""
    out = copy_graph(graph)
    inner = out.model.graph
    for rewrite in (lower_gated_pair, lower_product):
        for node in list(inner):
            rewrite(inner, node, weights)
    remove_unused(out)  # replaced nodes no longer count as readers
    for absorb in (absorb_bias, absorb_skip_norm, absorb_norm, absorb_residual):
        for product in filter(is_product, inner):
            product.resize_inputs(RESIDUAL + 1)
        for node in list(inner):
            absorb(inner, node)
        remove_unused(out)
    return out


def find_codes(node: ir.Node | None, weights: CpuWeights) -> Codes | None:
    """Codes of a MatMul or Gemm with a constant fp32 weight.

    None for other nodes and where the scheme is fp32.
    """
    if node is None or node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
        return None
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return None
    array = np.asarray(weight.const_value.numpy())
    by_output = array if is_transposed(node) else np.ascontiguousarray(array.T)
    return weights.codes(str(weight.name), by_output, is_lm_head=node.op_type == "Gemm")


def make_product(graph: ir.Graph, x: ir.Value, codes: Codes, weight: str, name: str, gate: bool) -> ir.Node:
    """A specc::MatMul called `name` over the packed weight `weight`, without norm, bias and residual."""
    n = codes.shape[0]
    packed = add_initializer(graph, f"{weight}.packed", pack(codes))
    kept = n // 2 if gate else n
    attributes = {
        "layout": LAYOUT,
        "kind": KINDS.index(codes.kind),
        "outputs": n,
        "kept": kept,
        "gate": int(gate),
        "epsilon": 0.0,
    }
    return ir.node("MatMul", [x, packed, None, None, None], attributes=attributes, domain=SPECC, name=name)


def weight_stem(value: ir.Value | None) -> str:
    """The module of a weight, such as `model.layers.0.mlp.up_proj`."""
    assert value is not None
    return str(value.name).removesuffix(".weight")


def replace_result(old: ir.Value, before: ir.Node, new: ir.Node) -> None:
    """Insert the node `new` before `before`; its result replaces `old`."""
    insert_before(before, new)
    copy_type(old, new.outputs[0])
    replace_uses(old, new.outputs[0])


def lower_product(graph: ir.Graph, node: ir.Node, weights: CpuWeights) -> None:
    """Replace one product."""
    codes = find_codes(node, weights)
    if codes is not None and node.inputs[0] is not None:
        new = make_product(
            graph, node.inputs[0], codes, weight_stem(node.inputs[1]), str(node.name), gate=False
        )
        replace_result(node.outputs[0], node, new)


def lower_gated_pair(graph: ir.Graph, node: ir.Node, weights: CpuWeights) -> None:
    """Replace x W_gate * sigmoid(x W_gate) * (x W_up), where nothing else reads the two products."""
    if node.op_type != "Mul":
        return
    for left, right in (node.inputs, node.inputs[::-1]):
        gate, up = match_silu(left), find_producer(right, "MatMul")
        if (
            gate is None
            or up is None
            or gate.inputs[0] is not up.inputs[0]
            or find_sole_reader(up.outputs[0]) is not node
        ):
            continue
        codes = find_codes(gate, weights), find_codes(up, weights)
        if (
            codes[0] is None
            or codes[1] is None
            or codes[0].kind != codes[1].kind
            or codes[0].shape[0] % GATED
        ):
            return
        assert up.inputs[0] is not None
        name = str(gate.name).replace("gate_proj", "gate_up")
        both = make_product(graph, up.inputs[0], interleave(codes[0], codes[1]), name, name, gate=True)
        replace_result(node.outputs[0], node, both)
        return


def match_silu(value: ir.Value | None) -> ir.Node | None:
    """The MatMul that computes g of g * sigmoid(g), when nothing else reads g and the sigmoid."""
    node = find_producer(value, "Mul")
    if node is None or value is None or len(value.uses()) != 1:
        return None
    for g, s in (node.inputs, node.inputs[::-1]):
        sigmoid, product = find_producer(s, "Sigmoid"), find_producer(g, "MatMul")
        if (
            sigmoid is not None
            and product is not None
            and sigmoid.inputs[0] is g
            and g is not None
            and len(g.uses()) == 2
        ):
            return product
    return None


def is_product(node: ir.Node | None) -> bool:
    """Whether a node is a specc::MatMul."""
    return node is not None and node.op_type == "MatMul" and node.domain == SPECC


def match_open_product(value: ir.Value | None, reader: ir.Node, slot: int) -> ir.Node | None:
    """The specc::MatMul without a gate whose only reader is `reader` and whose inputs from `slot` on are
    unused.
    """
    node = None if value is None else value.producer()
    if node is None or not is_product(node) or find_sole_reader(value) is not reader:
        return None
    return (
        node
        if all(node.inputs[i] is None for i in range(slot, RESIDUAL + 1))
        and not node.attributes["gate"].as_int()
        else None
    )


def absorb_bias(graph: ir.Graph, node: ir.Node) -> None:
    """Absorb product + constant [n]."""
    if node.op_type != "Add":
        return
    for value, bias in (node.inputs, node.inputs[::-1]):
        product, array = match_open_product(value, node, BIAS), read_constant(bias)
        if (
            product is not None
            and array is not None
            and array.shape == (product.attributes["kept"].as_int(),)
        ):
            product.replace_input_with(BIAS, bias)
            replace_uses(node.outputs[0], product.outputs[0])
            return


def add_residual(reader: ir.Node, first: ir.Value | None, second: ir.Value | None) -> ir.Value | None:
    """The product that computes one addend adds the other; returns its result, or None when there is none."""
    for other, value in ((first, second), (second, first)):
        product = match_open_product(value, reader, RESIDUAL)
        if product is not None:
            product.replace_input_with(RESIDUAL, other)
            return product.outputs[0]
    return None


def absorb_skip_norm(graph: ir.Graph, node: ir.Node) -> None:
    """Absorb product + residual before a norm: the sum moves into the product, the norm is left to
    absorb_norm.
    """
    if node.op_type != "SkipSimplifiedLayerNormalization":
        return
    total = add_residual(node, node.inputs[0], node.inputs[1])
    if total is None:
        return
    attributes = {"axis": -1, "epsilon": node.attributes["epsilon"].as_float(), "stash_type": 1}
    norm = ir.node(
        "SimplifiedLayerNormalization",
        [total, node.inputs[2]],
        attributes=attributes,
        name=f"{node.name}_norm",
    )
    replace_result(node.outputs[0], node, norm)
    if len(node.outputs) > 3:
        replace_uses(node.outputs[3], total)


def absorb_norm(graph: ir.Graph, node: ir.Node) -> None:
    """A norm that only specc::MatMul nodes read (through a Squeeze at most) moves into each of them."""
    if node.op_type != "SimplifiedLayerNormalization":
        return
    readers = [(use.node, use.idx) for use in node.outputs[0].uses()]
    if len(readers) == 1 and readers[0][0].op_type == "Squeeze":
        squeeze = readers[0][0]
        squeeze.replace_input_with(0, node.inputs[0])
        readers, source = [(use.node, use.idx) for use in squeeze.outputs[0].uses()], squeeze.outputs[0]
    else:
        squeeze, source = None, node.inputs[0]  # type: ignore[assignment]
    if not readers or not all(
        is_product(reader) and slot == X and reader.inputs[NORM] is None for reader, slot in readers
    ):
        if squeeze is not None:
            squeeze.replace_input_with(0, node.outputs[0])
        return
    for reader, _ in readers:
        reader.replace_input_with(X, source)
        reader.replace_input_with(NORM, node.inputs[1])
        reader.attributes["epsilon"] = ir.AttrFloat32("epsilon", node.attributes["epsilon"].as_float())


def absorb_residual(graph: ir.Graph, node: ir.Node) -> None:
    """Absorb product + residual without a norm after it."""
    if node.op_type != "Add":
        return
    total = add_residual(node, node.inputs[0], node.inputs[1])
    if total is not None:
        replace_uses(node.outputs[0], total)
