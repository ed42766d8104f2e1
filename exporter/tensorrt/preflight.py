"""What of a graph file a TensorRT's parser does not take: domains, operators, results, opset, types."""

from __future__ import annotations

from pathlib import Path

import onnx

from specc.errors import InputError
from specc.targets.tensorrt import Builder

BLOCKS_FROM = 21
"""Opset in which DequantizeLinear got blocks, and int4."""
ONE_RESULT = ("Attention",)
UNKNOWN_ATTRIBUTES = {"Attention": ("softcap", "softmax_precision", "qk_matmul_output_mode")}
CACHE_INPUTS = {"Attention": slice(4, None)}
"""Inputs that no TensorRT takes: Attention's own past and its lengths."""


def list_refusals(path: Path, builder: Builder) -> list[str]:
    """One entry for each thing that the builder would refuse; no weights are read. Raises InputError: no graph."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # what protobuf raises has no base of its own
        raise InputError(f"{path} is no ONNX graph ({error}); build the bundle again") from error
    return [
        *find_foreign_operators(model),
        *find_unsupported_operators(model, builder),
        *find_opset_faults(model, builder),
        *find_unsupported_forms(model),
    ]


def find_foreign_operators(model: onnx.ModelProto) -> list[str]:
    """Operators outside the standard."""
    names = {
        f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")
    }
    return [f"{name} (no standard operator; use dialect onnx24)" for name in sorted(names)]


def find_unsupported_operators(model: onnx.ModelProto, builder: Builder) -> list[str]:
    """Standard operators that came later, or never."""
    return builder.list_refused({node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")})


def find_opset_faults(model: onnx.ModelProto, builder: Builder) -> list[str]:
    """An opset that is too high, or too low for blocks."""
    have = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    wrong = []
    blocks = [node for node in model.graph.node if any(a.name == "block_size" for a in node.attribute)]
    if blocks and have < BLOCKS_FROM:
        wrong.append(f"blocks of {blocks[0].op_type} at opset {have} (they need {BLOCKS_FROM})")
    if have > max(builder.opset, BLOCKS_FROM):
        wrong.append(f"opset {have} (it documents {builder.opset})")
    return wrong


def find_unsupported_forms(model: onnx.ModelProto) -> list[str]:
    """Operators in a form that no parser takes."""
    wrong = set()
    for node in model.graph.node:
        if node.op_type in ONE_RESULT and sum(map(bool, node.output)) > 1:
            wrong.add(f"{node.op_type} with {len(node.output)} results (only the first is taken)")
        if any(node.input[CACHE_INPUTS.get(node.op_type, slice(0, 0))]):
            wrong.add(f"{node.op_type} with a past of its own (TensorScatter writes the cache)")
        names = {a.name for a in node.attribute} & set(UNKNOWN_ATTRIBUTES.get(node.op_type, ()))
        wrong |= {f"{node.op_type} with {name}" for name in names}
    return sorted(wrong)
