"""Each specc::MatMul and specc::Embedding alone, against the float weight that its packed bytes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from specc.exporter.check.single_node import relative_norm, run_node
from specc.exporter.checkpoint.codes import BLOCK, KINDS, dequantize_codes
from specc.exporter.graph.graph import read_constant
from specc.exporter.lower.cpu_layout import GATED, GROUP, count_inputs, unpack

ROWS = 3
OUTPUTS = 4096  # outputs unpacked at a time, to bound memory
BOUND = 2e-3  # the reference rounds activations as the operator does; only the order of sums differs


def measure_product_error(node: ir.Node, rng: np.random.Generator) -> float:
    """Relative error of one specc::MatMul over random rows, with its norm, bias, gate and residual."""
    packed, norm, bias, residual = (read_constant(value) for value in (*node.inputs, None, None, None)[1:5])
    assert packed is not None
    has_residual = len(node.inputs) > 4 and node.inputs[4] is not None
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    x = rng.standard_normal(
        (ROWS, count_inputs(packed.size, KINDS[a["kind"]], a["outputs"])), dtype=np.float32
    )
    residual = rng.standard_normal((ROWS, a["kept"]), dtype=np.float32) if has_residual else None
    got = run_node(node, [x, packed, norm, bias, residual])
    product = compute_product(round_activations(apply_norm(x, norm, a["epsilon"])), packed, a)
    wanted = product + (0 if bias is None else bias) + (0 if residual is None else residual)
    return relative_norm(got - wanted, product)


def apply_norm(x: np.ndarray, weight: np.ndarray | None, epsilon: float) -> np.ndarray:
    """RMSNorm of the rows [r, k]; x itself without a weight."""
    if weight is None:
        return x
    scale = 1 / np.sqrt(np.square(x, dtype=np.float64).mean(-1, keepdims=True) + epsilon)
    return np.asarray(x * scale * weight, np.float32)


def round_activations(x: np.ndarray) -> np.ndarray:
    """Rows [r, k] rounded as the operators round them: int8 per block of 32, the largest value at 127."""
    blocks = x.reshape(x.shape[0], -1, BLOCK).astype(np.float64)
    step = np.abs(blocks).max(-1, keepdims=True) / 127
    return np.asarray(np.rint(blocks / np.where(step == 0, 1, step)) * step, np.float32).reshape(x.shape)


def compute_product(x: np.ndarray, packed: np.ndarray, attributes: Any) -> np.ndarray:
    """x [r, k] times the unpacked weight, with the gate of a gated node; fp32 [r, kept]."""
    kind, n = KINDS[attributes["kind"]], attributes["outputs"]
    groups = packed.reshape(-(-n // GROUP), -1)
    step = OUTPUTS // GROUP
    parts = [
        x @ dequantize_codes(unpack(part.reshape(-1), kind, len(part) * GROUP, x.shape[1])).T
        for part in (groups[i : i + step] for i in range(0, len(groups), step))
    ]
    y = np.concatenate(parts, axis=1)[:, :n]
    return apply_gate(y) if attributes["gate"] else y


def apply_gate(y: np.ndarray) -> np.ndarray:
    """silu(gate) * up, of columns in alternating runs of 8: fp32 [r, 2 n] -> [r, n]."""
    runs = y.reshape(y.shape[0], -1, 2, GATED)
    gate, up = runs[:, :, 0].reshape(y.shape[0], -1), runs[:, :, 1].reshape(y.shape[0], -1)
    return np.asarray(gate / (1 + np.exp(-gate.astype(np.float64))) * up, np.float32)


def measure_embedding_error(node: ir.Node, rng: np.random.Generator) -> float:
    """Relative error of one specc::Embedding over the first id, the last id and 62 random ones."""
    packed = read_constant(node.inputs[1])
    assert packed is not None
    a = {name: attribute.value for name, attribute in node.attributes.items()}
    ids = np.concatenate([[0, a["outputs"] - 1], rng.integers(0, a["outputs"], 62)]).astype(np.int64)
    groups = packed.reshape(-(-a["outputs"] // GROUP), -1)[ids // GROUP]
    rows = dequantize_codes(unpack(groups.reshape(-1), KINDS[a["kind"]], len(ids) * GROUP, a["inputs"]))
    wanted = rows[np.arange(len(ids)) * GROUP + ids % GROUP]
    return relative_norm(run_node(node, [ids, packed]) - wanted, wanted)
