"""Each quantized product and embedding alone, against the weight that its codes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from specc.exporter.check import cpu_nodes
from specc.exporter.check.logits import StageError
from specc.exporter.check.single_node import SPECC, open_session, relative_norm
from specc.exporter.graph.graph import MICROSOFT, OPSETS, Graph
from specc.exporter.lower.blocks import Blocks, dequantize_blocks

ROWS = 3
OUTPUTS = 4096  # columns that are compared of a wide MatMulNBits
BOUND = 0.02  # norm of the difference over the norm; int8 activations per block of 32 give about 0.004


def check_nodes(graph: Graph, bound: float = BOUND) -> float:
    """Largest relative error of a quantized product or embedding. Raises StageError above the bound.

    `bound` is for MatMulNBits; specc's operators are held to cpu_nodes.BOUND where that is smaller.
    """
    rng, worst = np.random.default_rng(11), 0.0
    for node in graph.model.graph:
        measure = MEASURES.get((node.domain, node.op_type))
        if measure is None:
            continue
        limit = bound if node.domain == MICROSOFT else min(bound, cpu_nodes.BOUND)
        size = measure(node, rng)
        if not size <= limit:
            raise StageError(f"quantize {node.name}", 0, ROWS, size, limit, "of the result")
        worst = max(worst, size)
    return worst


def measure_product_error(node: ir.Node, rng: np.random.Generator) -> float:
    """Relative error of one MatMulNBits over random rows, against its dequantized weight."""
    blocks = read_blocks(node)
    x = rng.standard_normal((ROWS, blocks.k), dtype=np.float32)
    wanted = x @ dequantize_blocks(blocks).T
    got = open_product(blocks, int(node.attributes["accuracy_level"].as_int())).run(None, {"x": x})[0]
    return relative_norm(got - wanted, wanted)


def read_blocks(node: ir.Node) -> Blocks:
    """The node's weight; of a wide one the first OUTPUTS outputs."""
    arrays = [
        None if v is None or v.const_value is None else np.asarray(v.const_value.numpy())[:OUTPUTS]
        for v in node.inputs[1:4]
    ]
    codes, scales, zeros = (*arrays, None, None)[:3]
    assert codes is not None and scales is not None
    a = node.attributes
    return Blocks(
        codes, scales, zeros, int(a["bits"].as_int()), int(a["block_size"].as_int()), int(a["K"].as_int())
    )


def open_product(blocks: Blocks, level: int) -> ort.InferenceSession:
    """A session with one MatMulNBits, x [rows, k] -> y [rows, n]."""
    parts = {"codes": blocks.codes, "scales": blocks.scales, "zeros": blocks.zeros}
    weights = [make_constant(name, array) for name, array in parts.items() if array is not None]
    x = ir.Value(name="x", shape=ir.Shape(["rows", blocks.k]), type=ir.TensorType(ir.DataType.FLOAT))
    attributes: dict[str, Any] = {
        "K": blocks.k,
        "N": blocks.n,
        "bits": blocks.bits,
        "block_size": blocks.block,
    }
    node = ir.node(
        "MatMulNBits", [x, *weights], attributes={**attributes, "accuracy_level": level}, domain=MICROSOFT
    )
    y = node.outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["rows", blocks.n]), ir.TensorType(ir.DataType.FLOAT)
    inner = ir.Graph([x], [y], nodes=[node], initializers=weights, opset_imports=OPSETS, name="node")
    return open_session(inner)


def make_constant(name: str, array: np.ndarray) -> ir.Value:
    """An initializer."""
    tensor = ir.tensor(array, name=name)
    return ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


MEASURES = {
    (MICROSOFT, "MatMulNBits"): measure_product_error,
    (SPECC, "MatMul"): cpu_nodes.measure_product_error,
    (SPECC, "Embedding"): cpu_nodes.measure_embedding_error,
}
