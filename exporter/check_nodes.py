"""Each quantized product by itself: the operator's result against the weight that its codes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from specc.exporter.blocks import Blocks, dequantize
from specc.exporter.check import StageError
from specc.exporter.graph import MICROSOFT, OPSETS, Graph
from specc.exporter.session import session_options

ROWS = 3
OUTPUTS = 4096  # columns compared of a wide product
BOUND = 0.02  # norm of the difference over the norm; activations of int8 a block of 32 give about 0.004


def check_nodes(graph: Graph, bound: float = BOUND) -> float:
    """Largest relative error of a quantized product in the graph; raises StageError above the bound."""
    rng, worst = np.random.default_rng(11), 0.0
    for node in graph.model.graph:
        if node.op_type == "MatMulNBits":
            size = product_error(node, rng)
            if not size <= bound:
                raise StageError(f"quantize {node.name}", 0, ROWS, size, bound, "of the result")
            worst = max(worst, size)
    return worst


def product_error(node: ir.Node, rng: np.random.Generator) -> float:
    """Relative error of one MatMulNBits over random rows, against its dequantized weight."""
    blocks = blocks_of(node)
    x = rng.standard_normal((ROWS, blocks.k), dtype=np.float32)
    wanted = x @ dequantize(blocks).T
    got = single_node(blocks, int(node.attributes["accuracy_level"].as_int())).run(None, {"x": x})[0]
    return float(np.linalg.norm(got - wanted) / max(float(np.linalg.norm(wanted)), 1e-30))


def blocks_of(node: ir.Node) -> Blocks:
    """The node's weight, its first outputs only when there are many."""
    arrays = [
        None if v is None or v.const_value is None else np.asarray(v.const_value.numpy())[:OUTPUTS]
        for v in node.inputs[1:4]
    ]
    codes, scales, zeros = (*arrays, None, None)[:3]
    assert codes is not None and scales is not None
    a = node.attributes
    return Blocks(codes, scales, zeros, int(a["bits"].as_int()), int(a["block_size"].as_int()), int(a["K"].as_int()))


def single_node(blocks: Blocks, level: int) -> ort.InferenceSession:
    """A session with one MatMulNBits, x [rows, k] -> y [rows, n]."""
    parts = {"codes": blocks.codes, "scales": blocks.scales, "zeros": blocks.zeros}
    weights = [constant_value(name, array) for name, array in parts.items() if array is not None]
    x = ir.Value(name="x", shape=ir.Shape(["rows", blocks.k]), type=ir.TensorType(ir.DataType.FLOAT))
    attributes: dict[str, Any] = {"K": blocks.k, "N": blocks.n, "bits": blocks.bits, "block_size": blocks.block}
    node = ir.node("MatMulNBits", [x, *weights], attributes={**attributes, "accuracy_level": level}, domain=MICROSOFT)
    y = node.outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["rows", blocks.n]), ir.TensorType(ir.DataType.FLOAT)
    inner = ir.Graph([x], [y], nodes=[node], initializers=weights, opset_imports=OPSETS, name="node")
    proto = ir.to_proto(ir.Model(inner, ir_version=10))
    return ort.InferenceSession(proto.SerializeToString(), session_options(2), providers=["CPUExecutionProvider"])


def constant_value(name: str, array: np.ndarray) -> ir.Value:
    """An initializer."""
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
