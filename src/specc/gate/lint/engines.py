"""Where an engine would deviate from the graph: types without kernels, operators that it does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specc.gate.lint.findings import Finding, make_finding
from specc.gate.lint.shapes import MICROSOFT, operator_name, read_attribute
from specc.gate.lint.specc_ops import DOMAIN

ENGINES = ("auto", "ort", "cuda", "tensorrt")
KNOWN_DOMAINS = {
    "ort": ("", "ai.onnx", MICROSOFT, DOMAIN),
    "cuda": ("", "ai.onnx", MICROSOFT),
    "tensorrt": ("", "ai.onnx"),
}
NOT_IN_TENSORRT = (
    "Bernoulli",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "CenterCropPad",
    "Col2Im",
    "ConvInteger",
    "DFT",
    "Det",
    "DynamicQuantizeLinear",
    "MatMulInteger",
    "MaxUnpool",
    "Multinomial",
    "Optional",
    "QLinearConv",
    "QLinearMatMul",
    "SequenceAt",
    "SequenceMap",
    "STFT",
    "StringNormalizer",
    "TfIdfVectorizer",
    "Unique",
)
CARRIED = (
    "Cast",
    "CastLike",
    "Reshape",
    "Transpose",
    "Gather",
    "Concat",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "Identity",
    "Constant",
    "Shape",
    "Size",
    "DequantizeLinear",
    "QuantizeLinear",
    "TensorScatter",
    "Pad",
)


def judge_engine(model: Any, engine: str) -> Iterator[Finding]:
    """Findings for the engine, or for the one that the graph is made for."""
    engine = detect_engine(model) if engine == "auto" else engine
    yield from find_foreign_operators(model.graph, engine)
    if engine == "ort":
        yield from find_narrow_types(model.graph)


def detect_engine(model: Any) -> str:
    """`tensorrt` for standard operators with an attention of opset 23 or later, else `ort`."""
    keys = {operator_name(node) for node in model.graph.node}
    return "tensorrt" if "Attention" in keys and not any("::" in name for name in keys) else "ort"


def find_foreign_operators(graph: Any, engine: str) -> Iterator[Finding]:
    """Operators that the engine lacks: it would refuse them or hand them to another one."""
    for node in graph.node:
        lacks = engine == "tensorrt" and node.op_type in NOT_IN_TENSORRT
        if node.domain not in KNOWN_DOMAINS[engine] or lacks:
            why = (
                f"the engine {engine} has no operator {operator_name(node)}: "
                "it would be refused or run by another engine"
            )
            yield make_finding(node, why, "express it in operators of the engine")


def find_narrow_types(graph: Any) -> Iterator[Finding]:
    """bfloat16 has no kernels on the CPU engine, float16 few: one finding for each operator that computes in
    them.
    """
    from onnx import TensorProto

    names: dict[int, str] = {TensorProto.BFLOAT16: "bfloat16", TensorProto.FLOAT16: "float16"}
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {v.name: v.type.tensor_type.elem_type for v in [*graph.value_info, *graph.input, *graph.output]}
    reported = set()
    for node in graph.node:
        kind = next((types[name] for name in node.input if types.get(name) in names), 0)
        to = read_attribute(node, "to", 0) if node.op_type == "Cast" else 0
        for name in node.output:
            types.setdefault(name, to or kind)
        half = to == TensorProto.BFLOAT16 or (kind in names and node.op_type not in CARRIED)
        if half and (node.op_type, to or kind) not in reported:
            reported.add((node.op_type, to or kind))
            why = f"{names[to or kind]} is written, and this CPU engine runs it in float32 or not at all"
            yield make_finding(node, why, "export this part in float32")
