"""A bfloat16 graph computed in fp32, which ONNX Runtime runs on a CPU: it has no bfloat16 operators there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.emitter import FLOAT
from specc.exporter.graph.graph import Graph, copy_graph

BF16 = ir.DataType.BFLOAT16


def make_float_twin(graph: Graph) -> Graph:
    """Graph -> Graph: weights keep their bfloat16 values, casts and KV caches become fp32.

    Activations are not rounded, so the twin checks the graph's structure, not its rounding errors.
    """
    out = copy_graph(graph)
    inner = out.model.graph
    for value in inner.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == BF16:
            value.const_value = ir.tensor(np.asarray(tensor.numpy()).astype(np.float32), name=value.name)
            value.type = ir.TensorType(FLOAT)
    for node in inner:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == int(BF16):
            node.attributes["to"] = ir.AttrInt64("to", int(FLOAT))
    for value in (*inner.inputs, *(output for node in inner for output in node.outputs)):
        if value.dtype == BF16:
            value.type = ir.TensorType(FLOAT)
    return out
