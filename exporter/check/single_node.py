"""Run one node alone, to compare an operator with plain arithmetic."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from specc.exporter.graph.graph import OPSETS
from specc.exporter.graph.session import make_session_options

SPECC = "specc"


def run_node(node: ir.Node, arrays: list[np.ndarray | None]) -> np.ndarray:
    """The node's first output for these inputs; None stands for an input that is not given."""
    values = [None if array is None else make_input(f"in{i}", array) for i, array in enumerate(arrays)]
    twin = ir.node(node.op_type, values, attributes=dict(node.attributes), domain=node.domain)
    y = twin.outputs[0]
    y.name, y.type = "y", ir.TensorType(ir.DataType.FLOAT)
    inputs = [value for value in values if value is not None]
    inner = ir.Graph(inputs, [y], nodes=[twin], opset_imports={**OPSETS, SPECC: 1}, name="node")
    feeds = {f"in{i}": array for i, array in enumerate(arrays) if array is not None}
    return np.asarray(open_session(inner).run(None, feeds)[0])


def make_input(name: str, array: np.ndarray) -> ir.Value:
    """A graph input with the type and the shape of an array."""
    return ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype))
    )


def relative_norm(difference: np.ndarray, wanted: np.ndarray) -> float:
    """Norm of the difference over the norm of `wanted`."""
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(wanted)), 1e-30))


def open_session(inner: ir.Graph) -> ort.InferenceSession:
    """A session over a graph of one node."""
    proto = ir.to_proto(ir.Model(inner, ir_version=10))
    return ort.InferenceSession(
        proto.SerializeToString(), make_session_options(2), providers=["CPUExecutionProvider"]
    )
