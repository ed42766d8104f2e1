"""Shapes of the outputs of each known operator from those of its inputs; operators are keyed by domain and
name.
"""

from __future__ import annotations

from typing import Any

from specc.gate.lint import specc_ops
from specc.gate.lint.einsum import infer_einsum
from specc.gate.lint.movement import MOVES
from specc.gate.lint.shapes import (
    CONTEXT,
    MICROSOFT,
    Dim,
    Facts,
    Rule,
    Shape,
    broadcast,
    read_attribute,
    read_axes,
)


def infer_same(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[0]] * len(node.output)


def infer_elementwise(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [broadcast([shape for name, shape in zip(node.input, ins, strict=True) if name])] * len(
        node.output
    )


def infer_reduce(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    axes = read_axes(node, facts, len(shape)) if shape is not None else None
    if shape is None or axes is None:
        return [None]
    if read_attribute(node, "keepdims", 1):
        return [tuple(Dim() if i in axes else d for i, d in enumerate(shape))]
    return [tuple(d for i, d in enumerate(shape) if i not in axes)]


def infer_arg_reduce(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axis = read_attribute(node, "axis", 0) % len(shape)
    kept = (Dim(),) if read_attribute(node, "keepdims", 1) else ()
    return [(*shape[:axis], *kept, *shape[axis + 1 :])]


def infer_matmul(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    a, b = ins[0], ins[1]
    if a is None or b is None or not a or not b:
        return [None]
    if len(b) == 1:
        return [a[:-1]]
    batch = broadcast([a[:-2], b[:-2]])
    return [(batch or ()) + a[-2:-1] + b[-1:]]


def infer_gemm(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    a, b = ins[0], ins[1]
    if a is None or b is None:
        return [None]
    return [
        (
            a[1] if read_attribute(node, "transA", 0) else a[0],
            b[0] if read_attribute(node, "transB", 0) else b[1],
        )
    ]


def infer_packed_matmul(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (*ins[0][:-1], Dim(read_attribute(node, "N", 1)))]


def infer_transpose(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    return [tuple(shape[i] for i in read_attribute(node, "perm", list(range(len(shape)))[::-1]))]


def infer_unsqueeze(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    given = facts.ints.get(node.input[1], ()) if len(node.input) > 1 else ()
    axes = read_attribute(node, "axes", None) or [d.coef for d in given]
    if ins[0] is None or not axes:
        return [None]
    rank, rest = len(ins[0]) + len(axes), list(ins[0])
    where = {axis % rank for axis in axes}
    return [tuple(Dim() if i in where else rest.pop(0) for i in range(rank))]


def infer_squeeze(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axes = read_attribute(node, "axes", None)
    if axes is None and len(node.input) > 1:
        axes = [d.coef for d in facts.ints.get(node.input[1], ())]
    where = {axis % len(shape) for axis in axes} if axes else {i for i, d in enumerate(shape) if d == Dim()}
    return [tuple(d for i, d in enumerate(shape) if i not in where)]


def infer_gather_quantized(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Block-quantized embedding; its last axis is as declared, since bytes may hold two values."""
    declared = facts.declared.get(node.output[0])
    if declared is not None or ins[1] is None:
        return [declared]
    return [(*ins[1], Dim(1, ("features",)))]


def infer_expand(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [broadcast([ins[0], facts.ints.get(node.input[1])])]


def infer_constant_of_shape(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [facts.ints.get(node.input[0])]


def infer_range(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """[stop] rows when the stop is a number of rows."""
    stop = facts.ints.get(node.input[1])
    return [(stop[0],) if stop else (Dim(1, ("range",)),)]


def infer_shape_of(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (Dim(len(ins[0])),)]


def infer_scalar(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [()] * len(node.output)


def infer_quantize_dynamic(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[0], (), ()]


def infer_attention(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Output like the query (its share of a packed QKV is not told apart), caches like the past with a
    context axis.
    """
    past = [
        (*shape[:2], Dim(1, (CONTEXT,)), *shape[3:]) if shape and len(shape) == 4 else None
        for shape in ins[3:5]
    ]
    query = None if facts.fixed else facts.declared.get(node.output[0])
    query = query or ins[0]
    return [query, *past, *[None] * len(node.output)][: len(node.output)]


def infer_top_k(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Values and indices along `axis`, so many as input 1 says."""
    shape, count = ins[0], facts.ints.get(node.input[1]) if len(node.input) > 1 else None
    if shape is None:
        return [None, None]
    axis = read_attribute(node, "axis", -1) % len(shape)
    kept = count[0] if count else Dim(1, ("top",))
    return [(*shape[:axis], kept, *shape[axis + 1 :])] * 2


def infer_global_pool(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (*ins[0][:2], *(Dim() for _ in ins[0][2:]))]


def infer_convolution(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Channels as many as filters; sizes are not told apart."""
    x, w = ins[0], ins[1]
    return [None if x is None or w is None else (x[0], w[0], *x[2:])]


def infer_pool(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[0]] * len(node.output)


def infer_cache_update(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axis = read_attribute(node, "axis", -2) % len(shape)
    return [(*shape[:axis], Dim(1, (CONTEXT,)), *shape[axis + 1 :])]


ELEMENTWISE = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
    "Where",
    "Xor",
    *(f"{MICROSOFT}::{op}" for op in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")),
]
SAME = [
    "SimplifiedLayerNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "Softmax",
    "LogSoftmax",
    "Hardmax",
    "CumSum",
    "LpNormalization",
    "RotaryEmbedding",
    "QuantizeLinear",
    "DequantizeLinear",
    "Dropout",
    "BatchNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "MeanVarianceNormalization",
    *(
        f"{MICROSOFT}::{op}"
        for op in (
            "SkipSimplifiedLayerNormalization",
            "SkipLayerNormalization",
            "RotaryEmbedding",
            "QuantizeLinear",
            "DequantizeLinear",
            "MoE",
            "QMoE",
        )
    ),
]
REDUCE = [
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceSum",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, infer_elementwise),
    **dict.fromkeys(SAME, infer_same),
    **dict.fromkeys(REDUCE, infer_reduce),
    **dict.fromkeys(["ArgMax", "ArgMin"], infer_arg_reduce),
    **dict.fromkeys(["MatMul", "MatMulInteger"], infer_matmul),
    **MOVES,
    "Gemm": infer_gemm,
    "Transpose": infer_transpose,
    "Unsqueeze": infer_unsqueeze,
    "Squeeze": infer_squeeze,
    "Einsum": infer_einsum,
    "Expand": infer_expand,
    "ConstantOfShape": infer_constant_of_shape,
    "Range": infer_range,
    "TopK": infer_top_k,
    **dict.fromkeys(["GlobalAveragePool", "GlobalMaxPool"], infer_global_pool),
    **dict.fromkeys(["Conv", "ConvInteger"], infer_convolution),
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], infer_pool),
    "Shape": infer_shape_of,
    "Size": infer_scalar,
    "DynamicQuantizeLinear": infer_quantize_dynamic,
    "Attention": infer_attention,
    "TensorScatter": infer_cache_update,
    **dict.fromkeys([f"{MICROSOFT}::{op}" for op in ("MatMulNBits", "MatMulBnb4")], infer_packed_matmul),
    **dict.fromkeys(
        [f"{MICROSOFT}::{op}" for op in ("FusedMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat")],
        infer_matmul,
    ),
    f"{MICROSOFT}::GatherBlockQuantized": infer_gather_quantized,
    **dict.fromkeys(
        [f"{MICROSOFT}::{op}" for op in ("GroupQueryAttention", "MultiHeadAttention")], infer_attention
    ),
    **specc_ops.RULES,
}
