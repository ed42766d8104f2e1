"""The same graph with bfloat16 computed in fp32: what ONNX Runtime's CPU can run where it has no bfloat16 operators."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.emitter import FLOAT
from specc.exporter.graph.graph import Graph, copy_graph

BF16 = ir.DataType.BFLOAT16


def make_float_twin(graph: Graph) -> Graph:
    """Graph -> Graph: weights keep their bfloat16 numbers, casts and caches become fp32.

    Only the roundings of activations are missing, so the twin shows that the graph says the right thing, not its noise.
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
