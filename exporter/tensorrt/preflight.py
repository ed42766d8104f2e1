"""Preflight: what in a graph file the parser of a TensorRT refuses: domains, operators, results, opset,
types.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from specc.errors import InputError
from specc.targets.tensorrt import Builder

BLOCKS_FROM = 21
"""First opset in which DequantizeLinear has blocks and int4."""
ONE_RESULT = ("Attention",)
UNKNOWN_ATTRIBUTES = {"Attention": ("softcap", "softmax_precision", "qk_matmul_output_mode")}
CACHE_INPUTS = {"Attention": slice(4, None)}
"""Inputs that no TensorRT takes: the past of Attention and its lengths."""


def list_refusals(path: Path, builder: Builder) -> list[str]:
    """One text for each thing that the builder would refuse; weights are not read.

    Raises InputError: no graph.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's exceptions have no common base
        raise InputError(f"{path} is no ONNX graph ({error}); build the bundle again") from error
    return [
        *find_foreign_operators(model),
        *find_unsupported_operators(model, builder),
        *find_opset_faults(model, builder),
        *find_unsupported_forms(model),
    ]


def find_foreign_operators(model: onnx.ModelProto) -> list[str]:
    """Operators that are not in the ONNX standard."""
    names = {
        f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")
    }
    return [f"{name} (no standard operator; use dialect onnx24)" for name in sorted(names)]


def find_unsupported_operators(model: onnx.ModelProto, builder: Builder) -> list[str]:
    """Standard operators that this TensorRT does not have."""
    return builder.list_refused({node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")})


def find_opset_faults(model: onnx.ModelProto, builder: Builder) -> list[str]:
    """An opset that is too high, or too low for blocks."""
    have = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    faults = []
    blocks = [node for node in model.graph.node if any(a.name == "block_size" for a in node.attribute)]
    if blocks and have < BLOCKS_FROM:
        faults.append(f"blocks of {blocks[0].op_type} at opset {have} (they need {BLOCKS_FROM})")
    if have > max(builder.opset, BLOCKS_FROM):
        faults.append(f"opset {have} (it documents {builder.opset})")
    return faults


def find_unsupported_forms(model: onnx.ModelProto) -> list[str]:
    """Operators in a form that no parser accepts."""
    faults = set()
    for node in model.graph.node:
        if node.op_type in ONE_RESULT and sum(map(bool, node.output)) > 1:
            faults.add(f"{node.op_type} with {len(node.output)} results (only the first is taken)")
        if any(node.input[CACHE_INPUTS.get(node.op_type, slice(0, 0))]):
            faults.add(f"{node.op_type} with a past of its own (TensorScatter writes the cache)")
        names = {a.name for a in node.attribute} & set(UNKNOWN_ATTRIBUTES.get(node.op_type, ()))
        faults |= {f"{node.op_type} with {name}" for name in names}
    return sorted(faults)
