"""Residual and norm: Add and SimplifiedLayerNormalization become SkipSimplifiedLayerNormalization."""

from __future__ import annotations

import onnx_ir as ir

from specc.exporter.graph.graph import (
    MICROSOFT,
    Graph,
    copy_graph,
    copy_type,
    find_producer,
    insert_before,
    read_shape,
    remove_unused,
    replace_uses,
)


def fuse_skip_norm(graph: Graph) -> Graph:
    """Graph -> Graph; the sum is the fused node's fourth output."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type == "SimplifiedLayerNormalization":
            replace_sum_and_norm(node)
    return remove_unused(out)


def replace_sum_and_norm(norm: ir.Node) -> None:
    """Fuse one norm with the residual sum that it reads.

    Both addends have the full shape (no broadcasting).
    """
    added = find_producer(norm.inputs[0], "Add")
    if added is None:
        return
    shapes = [read_shape(value) for value in added.inputs if value is not None]
    if (
        len(shapes) != 2
        or len(shapes[0]) != 3
        or len(shapes[0]) != len(shapes[1])
        or shapes[0][-1] != shapes[1][-1]
    ):
        return
    fused = ir.node(
        "SkipSimplifiedLayerNormalization",
        [*added.inputs, norm.inputs[1]],
        attributes={"epsilon": norm.attributes["epsilon"].as_float()},
        domain=MICROSOFT,
        num_outputs=4,
    )
    fused.name = f"{norm.name}_skip"
    for unused in fused.outputs[1:3]:
        unused.name = ""
    insert_before(added, fused)
    for old, new in ((norm.outputs[0], fused.outputs[0]), (added.outputs[0], fused.outputs[3])):
        copy_type(old, new)
        replace_uses(old, new)
