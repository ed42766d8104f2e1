"""Name weights and nodes after the modules they were traced from, so that two graphs of one model agree."""

from __future__ import annotations

import ast

import onnx_ir as ir

from specc.exporter.graph.graph import Graph, copy_graph

SCOPES = "pkg.torch.onnx.name_scopes"
PRODUCTS = ("MatMul", "Gemm", "Gather", "Transpose")


def name_weights(graph: Graph) -> Graph:
    """Graph -> Graph: `val_24` becomes `model.layers.0.self_attn.q_proj.weight`; the computation is
    unchanged.

    A product takes the name of its module. Nodes are named by their position, never by their weights: the
    tracer stores equal weights once, so two norms whose weights are all ones share one weight.
    """
    out = copy_graph(graph)
    taken = {node.name for node in out.model.graph}
    for node in out.model.graph:
        scope = read_scope(node)
        if node.op_type in PRODUCTS and scope:
            for value in node.inputs:
                rename_weight(out.model.graph, value, f"{scope}.weight")
        if node.op_type == "MatMul" and scope and scope not in taken:
            node.name = scope
            taken.add(scope)
    for name, value in list(out.model.graph.initializers.items()):
        rename_weight(
            out.model.graph, value, name.replace("model.model.", "model.").replace("norm.norm.", "norm.")
        )
    return out


def read_scope(node: ir.Node) -> str:
    """The module a node was traced in, such as `model.layers.0.mlp.up_proj`.

    Empty when the tracer gives none.
    """
    text = node.metadata_props.get(SCOPES)
    scopes = [s for s in ast.literal_eval(text) if s] if text else []
    # The traced wrapper adds one level ("model."), and the last entry is the call, not a module.
    return str(scopes[-2]).removeprefix("model.") if len(scopes) > 1 else ""


def rename_weight(graph: ir.Graph, value: ir.Value | None, name: str) -> None:
    """Rename a float weight of at least one dimension; a name that is in use is left alone."""
    if value is None or value.name not in graph.initializers or name in graph.initializers:
        return
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 1:
        return
    del graph.initializers[str(value.name)]
    value.name = name
    graph.register_initializer(value)
