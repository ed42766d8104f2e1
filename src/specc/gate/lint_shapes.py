"""Symbolic shapes of an ONNX graph, just enough to know which axes of a value hold the rows of the call.

A dimension is a product of a number and symbols: "R" stands for rows, "C" for a context that rows were written into.
A value whose shape cannot be told is None.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ROWS, CONTEXT = "R", "C"


@dataclass(frozen=True)
class Dim:
    """coef * product of syms; -1 alone stands for "the rest" in a Reshape target."""

    coef: int = 1
    syms: tuple[str, ...] = ()

    @property
    def rows(self) -> bool:
        return ROWS in self.syms

    @property
    def context(self) -> bool:
        return CONTEXT in self.syms


Shape = tuple[Dim, ...]
Shapes = dict[str, "Shape | None"]
Ints = dict[str, "Shape"]                      # small integer tensors whose values are known, flattened
Rule = Callable[[Any, list["Shape | None"], "Facts"], "list[Shape | None]"]


@dataclass
class Facts:
    """What is known of a graph's values, filled node by node."""

    shapes: Shapes
    ints: Ints
    declared: Shapes                           # value_info and outputs, for ops without a rule


def product(dims: Sequence[Dim]) -> Dim:
    return Dim(math.prod(d.coef for d in dims), tuple(sorted(s for d in dims for s in d.syms)))


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """whole / part, None where it does not come out even."""
    left, right = Counter(whole.syms), Counter(part.syms)
    if part.coef == 0 or whole.coef % part.coef or right - left:
        return None
    return Dim(whole.coef // part.coef, tuple(sorted((left - right).elements())))


def total(dims: Sequence[Dim]) -> Dim:
    """Size of a concatenation; rows beside something else make a context."""
    if all(not d.syms for d in dims):
        return Dim(sum(d.coef for d in dims))
    if any(d.context for d in dims) or (any(d.rows for d in dims) and not all(d.rows for d in dims)):
        return Dim(1, (CONTEXT,))
    return Dim(1, (ROWS,)) if any(d.rows for d in dims) else Dim(1, ("+".join(str(d) for d in dims),))


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Numpy broadcasting; of two different sizes the one that is not 1 wins, rows before others."""
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in known), default=0)
    padded = [(Dim(),) * (rank - len(shape)) + shape for shape in known]
    return tuple(max(column, key=_weight) for column in zip(*padded, strict=True))


def _weight(d: Dim) -> tuple[bool, bool, bool, int]:
    return d.rows, d.context, bool(d.syms), d.coef


def attribute(node: Any, name: str, default: Any) -> Any:
    """Value of an attribute of a node."""
    from onnx import helper

    found = [a for a in node.attribute if a.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def axes_of(node: Any, facts: Facts, rank: int) -> list[int] | None:
    """Axes of a reduction, from attribute or input 1, [] if it reduces nothing; None where they are computed."""
    axes = attribute(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1]:
        if node.input[1] not in facts.ints:
            return None
        axes = [d.coef for d in facts.ints[node.input[1]]]
    if not axes:
        return [] if attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes] if rank else []


def same(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[0]] * len(node.output)


def elementwise(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [broadcast([shape for name, shape in zip(node.input, ins, strict=True) if name])] * len(node.output)


def reduce(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    axes = axes_of(node, facts, len(shape)) if shape is not None else None
    if shape is None or axes is None:
        return [None]
    if attribute(node, "keepdims", 1):
        return [tuple(Dim() if i in axes else d for i, d in enumerate(shape))]
    return [tuple(d for i, d in enumerate(shape) if i not in axes)]


def arg_reduce(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axis = attribute(node, "axis", 0) % len(shape)
    kept = (Dim(),) if attribute(node, "keepdims", 1) else ()
    return [(*shape[:axis], *kept, *shape[axis + 1 :])]


def matmul(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    a, b = ins[0], ins[1]
    if a is None or b is None or not a or not b:
        return [None]
    if len(b) == 1:
        return [a[:-1]]
    batch = broadcast([a[:-2], b[:-2]])
    return [(batch or ()) + a[-2:-1] + b[-1:]]


def gemm(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    a, b = ins[0], ins[1]
    if a is None or b is None:
        return [None]
    return [(a[1] if attribute(node, "transA", 0) else a[0], b[0] if attribute(node, "transB", 0) else b[1])]


def packed_matmul(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (*ins[0][:-1], Dim(attribute(node, "N", 1)))]


def reshape(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape, target = ins[0], facts.ints.get(node.input[1])
    if shape is None or target is None:
        return [None]
    dims = [shape[i] if d == Dim(0) and not attribute(node, "allowzero", 0) else d for i, d in enumerate(target)]
    if Dim(-1) in dims:
        rest = quotient(product(shape), product([d for d in dims if d != Dim(-1)]))
        if rest is None:
            return [None]
        dims[dims.index(Dim(-1))] = rest
    return [tuple(dims)]


def transpose(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    return [tuple(shape[i] for i in attribute(node, "perm", list(range(len(shape)))[::-1]))]


def unsqueeze(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    given = facts.ints.get(node.input[1], ()) if len(node.input) > 1 else ()
    axes = attribute(node, "axes", None) or [d.coef for d in given]
    if ins[0] is None or not axes:
        return [None]
    rank, rest = len(ins[0]) + len(axes), list(ins[0])
    where = {axis % rank for axis in axes}
    return [tuple(Dim() if i in where else rest.pop(0) for i in range(rank))]


def squeeze(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axes = attribute(node, "axes", None)
    if axes is None and len(node.input) > 1:
        axes = [d.coef for d in facts.ints.get(node.input[1], ())]
    where = {axis % len(shape) for axis in axes} if axes else {i for i, d in enumerate(shape) if d == Dim()}
    return [tuple(d for i, d in enumerate(shape) if i not in where)]


def gather(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    data, indices = ins[0], ins[1]
    if data is None or indices is None:
        return [None]
    axis = attribute(node, "axis", attribute(node, "gather_axis", 0)) % len(data)
    return [data[:axis] + indices + data[axis + 1 :]]


def gather_quantized(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Block-quantized embedding; its last axis is as declared, since bytes may hold two values."""
    declared = facts.declared.get(node.output[0])
    if declared is not None or ins[1] is None:
        return [declared]
    return [(*ins[1], Dim(1, ("features",)))]


def concat(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    if any(shape is None for shape in ins):
        return [None]
    known = [shape for shape in ins if shape is not None]
    axis = attribute(node, "axis", 0) % len(known[0])
    column = broadcast([(*shape[:axis], Dim(), *shape[axis + 1 :]) for shape in known])
    assert column is not None
    return [(*column[:axis], total([shape[axis] for shape in known]), *column[axis + 1 :])]


def slice_(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    given = [facts.ints.get(name) for name in node.input[1:4]]
    if shape is None or len(given) < 2 or given[0] is None or given[1] is None:
        return [shape]
    axes = [d.coef % len(shape) for d in given[2]] if len(given) > 2 and given[2] else list(range(len(given[0])))
    dims = list(shape)
    for axis, start, end in zip(axes, given[0], given[1], strict=False):
        dims[axis] = _cut(dims[axis], start, end)
    return [tuple(dims)]


def _cut(dim: Dim, start: Dim, end: Dim) -> Dim:
    """Size of one sliced axis; a symbolic one keeps its symbol."""
    if dim.syms or start.syms or end.syms:
        return dim
    return Dim(max(0, len(range(*slice(start.coef, end.coef).indices(dim.coef)))))


def split(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None] * len(node.output)
    axis, parts = attribute(node, "axis", 0) % len(shape), len(node.output)
    sizes = facts.ints.get(node.input[1]) if len(node.input) > 1 else None
    even = Dim(shape[axis].coef // parts, shape[axis].syms)
    return [(*shape[:axis], sizes[i] if sizes else even, *shape[axis + 1 :]) for i in range(parts)]


def expand(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [broadcast([ins[0], facts.ints.get(node.input[1])])]


def filled(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [facts.ints.get(node.input[0])]


def range_(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """[stop] rows when the stop is a number of rows."""
    stop = facts.ints.get(node.input[1])
    return [(stop[0],) if stop else (Dim(1, ("range",)),)]


def shape_of(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (Dim(len(ins[0])),)]


def scalar(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [()] * len(node.output)


def quantize_dynamic(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[0], (), ()]


def attention(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Output like the query (its share of a packed QKV is not told apart), caches like the past with a context axis."""
    past = [(*shape[:2], Dim(1, (CONTEXT,)), *shape[3:]) if shape and len(shape) == 4 else None for shape in ins[3:5]]
    query = facts.declared.get(node.output[0]) or ins[0]
    return [query, *past, *[None] * len(node.output)][: len(node.output)]


def cache_update(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None]
    axis = attribute(node, "axis", -2) % len(shape)
    return [(*shape[:axis], Dim(1, (CONTEXT,)), *shape[axis + 1 :])]


ELEMENTWISE = [
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BiasGelu", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "FastGelu", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod",
    "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign",
    "Silu", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    "Trilu", "Where", "Xor",
]
SAME = [
    "SimplifiedLayerNormalization", "LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax", "Hardmax",
    "CumSum", "LpNormalization", "RotaryEmbedding", "QuantizeLinear", "DequantizeLinear",
    "SkipSimplifiedLayerNormalization", "SkipLayerNormalization", "Dropout", "BatchNormalization",
    "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "ScatterElements", "ScatterND",
]
REDUCE = [
    "ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
]
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, elementwise), **dict.fromkeys(SAME, same), **dict.fromkeys(REDUCE, reduce),
    **dict.fromkeys(["ArgMax", "ArgMin"], arg_reduce), **dict.fromkeys(["MatMul", "MatMulInteger"], matmul),
    **dict.fromkeys(["MatMulNBits", "MatMulBnb4"], packed_matmul), "FusedMatMul": matmul, "Gemm": gemm,
    "Reshape": reshape, "Transpose": transpose, "Unsqueeze": unsqueeze, "Squeeze": squeeze, "Concat": concat,
    "Gather": gather, "GatherBlockQuantized": gather_quantized, "Slice": slice_, "Split": split, "Expand": expand,
    "ConstantOfShape": filled, "Range": range_, "Shape": shape_of, "Size": scalar,
    "DynamicQuantizeLinear": quantize_dynamic, "DynamicQuantizeMatMul": matmul, "MatMulIntegerToFloat": matmul,
    "GroupQueryAttention": attention, "MultiHeadAttention": attention, "Attention": attention,
    "TensorScatter": cache_update,
}
