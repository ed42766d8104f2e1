"""Remove reshapes that change nothing, such as joining attention heads that are joined already."""

from __future__ import annotations

import onnx_ir as ir

from specc.exporter.graph.graph import Graph, copy_graph, read_constant, remove_unused, replace_uses


def drop_reshape(graph: Graph) -> Graph:
    """Graph -> Graph; a reshape goes where its input and output have the same shape, symbols included."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        value = node.inputs[0] if node.inputs else None
        if node.op_type == "Reshape" and value is not None and is_identity(value, node):
            replace_uses(node.outputs[0], value)
    return remove_unused(out)


def is_identity(value: ir.Value, node: ir.Node) -> bool:
    """Whether a Reshape keeps the shape of its input; a vector reshaped to [-1] is such a case."""
    result = node.outputs[0]
    wanted = read_constant(node.inputs[1])
    if value.is_graph_input() and result.is_graph_output() or value.shape is None:
        return False
    if wanted is not None and wanted.tolist() == [-1]:
        return len(value.shape) == 1
    return result.shape is not None and len(value.shape) > 0 and list(value.shape) == list(result.shape)
