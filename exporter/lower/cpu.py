"""The `specc-cpu` dialect: attention, products and embedding become specc's operators.

Their rows have the same bits for any number of rows in a call.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.contracts.scheme import Scheme
from specc.exporter.checkpoint.codes import KINDS
from specc.exporter.checkpoint.gguf_codes import GgufCodes
from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    copy_type,
    drop_unused_weights,
    insert_before,
    remove_unused,
    replace_uses,
)
from specc.exporter.lower.cpu_layout import LAYOUT, pack
from specc.exporter.lower.cpu_products import SPECC, lower_products, replace_result
from specc.exporter.lower.cpu_weights import CpuWeights
from specc.exporter.lower.scheme import check_scheme


def lower_cpu(graph: Graph, scheme: Scheme, stored: GgufCodes | None) -> Graph:
    """Fused float graph -> graph over packed weights; `stored` are the checkpoint's own quantized blocks, if
    any.

    Raises InputError for an unknown scheme. A node without a specc operator is left as it is and noted.
    """
    check_scheme(scheme)
    weights = CpuWeights(scheme, stored)
    out = lower_embedding(lower_attention(lower_products(graph, weights)), weights)
    out.model.graph.opset_imports[SPECC] = 1
    left = sorted(
        {
            node.op_type
            for node in out.model.graph
            if node.op_type in ("GroupQueryAttention", "MatMul", "Gemm") and node.domain != SPECC
        }
    )
    notes = [weights.note()] + [f"left as they are, so widths may differ: {', '.join(left)}"] * bool(left)
    return sort_weights_by_use(drop_unused_weights(remove_unused(out))).noting(*notes)


def sort_weights_by_use(graph: Graph) -> Graph:
    """Sort the weights by their last use in a call: memory is then read ahead from one product into the
    next.
    """
    inner = graph.model.graph
    last = {value.name: i for i, node in enumerate(inner) for value in node.inputs if value is not None}
    for name in sorted(inner.initializers, key=lambda name: last.get(name, -1)):
        value = inner.initializers.pop(name)
        inner.initializers[name] = value
    return graph


def lower_attention(graph: Graph) -> Graph:
    """GroupQueryAttention -> specc::Attention, which reads query, key and value packed."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type == "GroupQueryAttention":
            replace_attention(out.model.graph, node)
    return remove_unused(out)


def replace_attention(graph: ir.Graph, node: ir.Node) -> None:
    """One layer's attention; query, key and value that were not fused are joined, and are turned already."""
    inputs = {str(value.name): value for value in graph.inputs}
    packed, key, value, past_k, past_v = node.inputs[:5]
    if len(node.inputs) > 9:
        cos, sin, position = node.inputs[7:10]
    else:
        no_angles = np.zeros((1, 0), np.float32)
        cos, sin = (add_initializer(graph, f"no_{name}", no_angles) for name in ("cos", "sin"))
        position = inputs["position"]
    if key is not None:
        name, operands = f"{node.name}/qkv", [packed, key, value]
        joined = ir.node("Concat", operands, attributes={"axis": -1}, name=name)
        insert_before(node, joined)
        packed = joined.outputs[0]
    a = node.attributes
    attributes = {
        "heads": a["num_heads"].as_int(),
        "kv_heads": a["kv_num_heads"].as_int(),
        "scale": a["scale"].as_float(),
        "window": max(a["local_window_size"].as_int(), 0) if "local_window_size" in a else 0,
        "soft_cap": a["softcap"].as_float() if "softcap" in a else 0.0,
    }
    operands = [packed, past_k, past_v, inputs["past_len"], position, cos, sin]
    fused = ir.node("Attention", operands, attributes=attributes, domain=SPECC, num_outputs=3, name=node.name)
    insert_before(node, fused)
    for old, new in zip(node.outputs, fused.outputs, strict=True):
        copy_type(old, new)
        replace_uses(old, new)


def lower_embedding(graph: Graph, weights: CpuWeights) -> Graph:
    """Gather of the fp32 embedding -> specc::Embedding, which reads the lm_head's bytes when the two are
    tied.
    """
    out = copy_graph(graph)
    inner = out.model.graph
    for node in list(inner):
        table = node.inputs[0] if node.op_type == "Gather" else None
        if (
            table is None
            or table.const_value is None
            or table.const_value.dtype != ir.DataType.FLOAT
            or len(table.const_value.shape) != 2
        ):
            continue
        codes = weights.codes(str(table.name), np.asarray(table.const_value.numpy()), is_lm_head=True)
        if codes is None:
            continue
        stem = str(table.name).removesuffix(".weight")
        n, k = codes.shape
        packed = add_initializer(inner, f"{stem}.packed", pack(codes))
        attributes = {"layout": LAYOUT, "kind": KINDS.index(codes.kind), "outputs": n, "inputs": k}
        replace_result(
            node.outputs[0],
            node,
            ir.node(
                "Embedding",
                [node.inputs[1], packed],
                attributes=attributes,
                domain=SPECC,
                name=f"{stem}/embedding",
            ),
        )
    return remove_unused(out)
