"""The `ort` dialect: products by MatMulNBits, the embedding by GatherBlockQuantized."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.contracts.scheme import Scheme
from specc.exporter.graph.graph import (
    MICROSOFT,
    Graph,
    add_initializer,
    copy_graph,
    copy_type,
    drop_unused_weights,
    insert_before,
    is_transposed,
    remove_unused,
    replace_uses,
)
from specc.exporter.lower.blocks import Blocks, quantize_blocks
from specc.exporter.lower.scheme import check_scheme

BITS = {"w8": 8, "w4": 4}
ACCURACY_LEVEL = 4  # activations are rounded to int8 per block of 32, as in every fast kernel


def lower_ort(graph: Graph, scheme: Scheme) -> Graph:
    """Graph -> Graph in the scheme; fp32 leaves the weights as they are.

    A tied embedding shares the weight of a w8 or fp32 lm_head; beside a w4 lm_head it is stored in 8 bits.
    Raises InputError for an unknown scheme.
    """
    check_scheme(scheme)
    if scheme.layers == "dynamic-int8":
        from specc.exporter.lower.ort_dynamic import lower_ort_dynamic

        return lower_ort_dynamic(graph)
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type in ("MatMul", "Gemm"):
            quantize_product(out.model.graph, node, scheme)
    for node in list(out.model.graph):
        if node.op_type == "Gather":
            quantize_embedding(out.model.graph, node, scheme)
    return drop_unused_weights(remove_unused(out)).noting(
        f"weights: layers {scheme.layers}, head {scheme.head}, block {scheme.block}"
    )


def quantize_product(graph: ir.Graph, node: ir.Node, scheme: Scheme) -> None:
    """Replace one product with a constant weight by MatMulNBits, unless its scheme is fp32."""
    is_lm_head = node.op_type == "Gemm"
    bits = BITS.get(scheme.head if is_lm_head else scheme.layers)
    weight = node.inputs[1]
    if (
        bits is None
        or weight is None
        or weight.const_value is None
        or weight.const_value.dtype != ir.DataType.FLOAT
    ):
        return
    array = np.asarray(weight.const_value.numpy())
    blocks = quantize_blocks(array if is_transposed(node) else array.T, bits, scheme.block)
    inputs = [node.inputs[0], *add_blocks(graph, str(weight.name), blocks)]
    fused = ir.node(
        "MatMulNBits", inputs, attributes=make_attributes(blocks), domain=MICROSOFT, name=node.name
    )
    fused.metadata_props["specc.weight"] = str(weight.name)
    insert_before(node, fused)
    copy_type(node.outputs[0], fused.outputs[0])
    replace_uses(node.outputs[0], fused.outputs[0])


def make_attributes(blocks: Blocks) -> dict[str, int]:
    """The attributes of a MatMulNBits over these blocks."""
    return {
        "K": blocks.k,
        "N": blocks.n,
        "bits": blocks.bits,
        "block_size": blocks.block,
        "accuracy_level": ACCURACY_LEVEL,
    }


def add_blocks(graph: ir.Graph, name: str, blocks: Blocks) -> list[ir.Value]:
    """Add the weight's parts as initializers: codes, scales and zeros (if any)."""
    stem = name.removesuffix(".weight")
    parts = [(f"{stem}.codes", blocks.codes), (f"{stem}.scales", blocks.scales)]
    if blocks.zeros is not None:
        parts.append((f"{stem}.zeros", blocks.zeros))
    return [add_initializer(graph, part, array) for part, array in parts]


def quantize_embedding(graph: ir.Graph, node: ir.Node, scheme: Scheme) -> None:
    """Read the embedding from 8-bit blocks: those of the lm_head when the two are tied.

    The codes of the lm_head are [vocab, blocks, 32], of the embedding [vocab, hidden]: the same bytes under
    two shapes, which the graph file stores once.
    """
    weight = node.inputs[0]
    if weight is None or weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return
    hidden = weight.const_value.shape[-1]
    if (
        scheme.head not in BITS
        or len(weight.const_value.shape) != 2
        or not isinstance(hidden, int)
        or hidden % scheme.block
    ):
        return
    shared, stem = (
        find_lm_head_blocks(graph, str(weight.name), scheme),
        str(weight.name).removesuffix(".weight"),
    )
    blocks = shared or quantize_blocks(np.asarray(weight.const_value.numpy()), 8, scheme.block)
    codes = add_initializer(graph, f"{stem}.rows", blocks.codes.reshape(blocks.n, -1))
    scales = add_initializer(graph, f"{stem}.scales" if shared else f"{stem}.rows_scales", blocks.scales)
    fused = ir.node(
        "GatherBlockQuantized",
        [codes, node.inputs[1], scales],
        attributes={"gather_axis": 0, "quantize_axis": 1, "block_size": blocks.block, "bits": blocks.bits},
        domain=MICROSOFT,
        name=f"{stem}/gather",
    )
    fused.metadata_props["specc.weight"] = str(weight.name)
    insert_before(node, fused)
    copy_type(node.outputs[0], fused.outputs[0])
    replace_uses(node.outputs[0], fused.outputs[0])


def find_lm_head_blocks(graph: ir.Graph, name: str, scheme: Scheme) -> Blocks | None:
    """The 8-bit blocks that the lm_head stored for the same weight; None when it stored none."""
    stem = name.removesuffix(".weight")
    codes, scales = graph.initializers.get(f"{stem}.codes"), graph.initializers.get(f"{stem}.scales")
    if (
        scheme.head != "w8"
        or codes is None
        or scales is None
        or codes.const_value is None
        or scales.const_value is None
    ):
        return None
    array = np.asarray(codes.const_value.numpy())
    return Blocks(
        array, np.asarray(scales.const_value.numpy()), None, 8, scheme.block, array.shape[1] * array.shape[2]
    )
