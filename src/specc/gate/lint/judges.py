"""Which values each operator mixes: a judge yields findings for one node from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from specc.gate.lint import movement, specc_ops
from specc.gate.lint.einsum import judge_einsum
from specc.gate.lint.findings import MIX_FIX, SCALE_FIX, Finding, make_finding
from specc.gate.lint.rules import ELEMENTWISE
from specc.gate.lint.shapes import MICROSOFT, Dim, Facts, Shape, read_attribute, read_axes

CAUSAL_FIX = "add a mask made by comparing the positions of queries and keys, before the softmax"


def mixes_rows(shape: Shape, axes: list[int]) -> bool:
    """Whether a sum over these axes joins rows or sequences: over them, or over a context without a row axis
    beside.
    """
    rest = [d for i, d in enumerate(shape) if i not in axes]
    over = [shape[i] for i in axes]
    return any(d.rows or d.batch for d in over) or (
        any(d.context for d in over) and not any(d.rows for d in rest)
    )


def judge_aligned(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Element by element: rows meet only rows at their own place."""
    if not movement.is_one_place(ins):
        yield make_finding(node, "rows of the call meet other rows of it", MIX_FIX)


def judge_softmax(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Over features, or over what each row may see behind a causal mask."""
    shape = ins[0]
    if shape is None:
        yield make_finding(node, "a softmax over axes that cannot be traced", MIX_FIX)
        return
    axes = list_softmax_axes(node, facts, len(shape))
    over, rest = [shape[i] for i in axes], [d for i, d in enumerate(shape) if i not in axes]
    seen = any(d.rows or d.context for d in over) and any(d.rows for d in rest)
    if seen and node.input[0] not in facts.masks:
        yield make_finding(node, "attention is not causal: no mask was made from positions", CAUSAL_FIX)
    elif not seen and mixes_rows(shape, axes):
        yield make_finding(node, "a softmax over the rows of the call", MIX_FIX)


def list_softmax_axes(node: Any, facts: Facts, rank: int) -> list[int]:
    """One axis; before opset 13 that axis and all behind it."""
    old = facts.opset < 13 and node.domain in ("", "ai.onnx")
    axis = read_attribute(node, "axis", 1 if old else -1) % max(rank, 1)
    return list(range(axis, rank)) if old else [axis]


def make_reduction_judge(
    axes: Callable[[Any, Facts, int], list[int] | None], why: str, fix: str = MIX_FIX
) -> Any:
    """A judge for ops that mix values along the axes that `axes` names."""

    def judge_axes(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
        shape = ins[0]
        if shape is None:
            yield make_finding(node, f"{why} over axes that cannot be traced", fix)
            return
        along = axes(node, facts, len(shape))
        if along is None or mixes_rows(shape, along):
            yield make_finding(node, f"{why} over the rows of the call", fix)

    return judge_axes


def read_one_axis(default: int) -> Callable[[Any, Facts, int], list[int]]:
    """The attribute `axis`."""
    return lambda node, facts, rank: [read_attribute(node, "axis", default) % max(rank, 1)]


def list_from_axis(node: Any, facts: Facts, rank: int) -> list[int]:
    """LayerNormalization: from `axis` to the last."""
    return list(range(read_attribute(node, "axis", -1) % max(rank, 1), rank))


def list_behind_channel(node: Any, facts: Facts, rank: int) -> list[int]:
    """Everything behind the channel axis."""
    return list(range(2, rank))


def list_behind_batch(node: Any, facts: Facts, rank: int) -> list[int]:
    """GroupNormalization: a group of channels and everything behind them."""
    return list(range(1, rank))


def read_given_axes(node: Any, facts: Facts, rank: int) -> list[int]:
    """MeanVarianceNormalization."""
    return [axis % max(rank, 1) for axis in read_attribute(node, "axes", [0, 2, 3]) if axis < rank]


def list_last_axis(node: Any, facts: Facts, rank: int) -> list[int]:
    return [max(rank, 1) - 1]


def list_every_axis(node: Any, facts: Facts, rank: int) -> list[int]:
    return list(range(rank))


def read_cumulative_axis(node: Any, facts: Facts, rank: int) -> list[int] | None:
    """CumSum runs along input 1; forward along rows is causal, yet the sum's order is the kernel's own."""
    axis = facts.ints.get(node.input[1])
    return None if axis is None else [axis[0].coef % max(rank, 1)]


def judge_sum(node: Any, facts: Facts, lines: list[tuple[str, Shape | None, int]]) -> Iterator[Finding]:
    """A product that sums over axis `axis` of each operand (name, shape, axis): over no rows, and over a
    context only with the weights of a causal softmax.
    """
    over = [shape[axis] for _, shape, axis in lines if shape is not None and -len(shape) <= axis < len(shape)]
    weighted = any(name in facts.weights for name, _, _ in lines)
    if any(shape is None for _, shape, _ in lines):
        yield make_finding(node, "the product sums over axes that cannot be traced", MIX_FIX)
    elif any(d.batch for d in over) or any(d.rows for d in over) and not weighted:
        yield make_finding(node, "the product sums over the rows of the call", MIX_FIX)
    elif any(d.context for d in over) and not weighted:
        yield make_finding(node, "the context is summed without the weights of a causal softmax", CAUSAL_FIX)


def judge_contraction(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """MatMul: the axis that is summed over; sequences of the two operands must be the same ones."""
    a, b = ins[0], ins[1]
    second = -2 if b is not None and len(b) > 1 else -1
    yield from judge_sum(node, facts, [(node.input[0], a, -1), (node.input[1], b, second)])
    if a is not None and b is not None and not movement.is_one_place([a[:-2], b[:-2]]):
        yield make_finding(node, "rows of the call meet other rows of it", MIX_FIX)


def judge_transposed(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Gemm and FusedMatMul may sum over the axis before the last."""
    b = ins[1]
    left, right = read_attribute(node, "transA", 0), read_attribute(node, "transB", 0)
    second = -1 if right or b is None or len(b) < 2 else -2
    yield from judge_sum(
        node, facts, [(node.input[0], ins[0], -2 if left else -1), (node.input[1], b, second)]
    )


def judge_convolution(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Sums over channels and a window behind them."""
    shape, filters = ins[0], ins[1]
    kernel = read_attribute(node, "kernel_shape", None) or [d.coef for d in (filters or ())[2:]]
    if shape is None or any(d.rows and size > 1 for d, size in zip(shape[2:], kernel, strict=False)):
        yield make_finding(node, "the window covers neighbouring rows of the call", MIX_FIX)
    elif shape[1].rows:
        yield make_finding(node, "the convolution sums over the rows of the call as its channels", MIX_FIX)


def judge_quantized_contraction(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """DynamicQuantizeMatMul: both faults at once."""
    yield from judge_contraction(node, ins, facts)
    yield from judge_dynamic_scale(node, ins, facts)


def judge_dynamic_scale(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """One scale for all rows of the call."""
    if ins[0] is None or mixes_rows(ins[0], list(range(len(ins[0])))):
        yield make_finding(
            node, "one activation scale is computed from all rows of the call (per tensor)", SCALE_FIX
        )


def judge_random(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    yield make_finding(node, "the op draws random numbers", "remove it; sampling is the runtime's part")


def judge_dropout(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Only with training mode on."""
    if len(node.input) > 2 and node.input[2] and facts.ints.get(node.input[2], (Dim(1),)) != (Dim(0),):
        yield make_finding(
            node, "dropout may be in training mode and draws random numbers", "export in inference mode"
        )


def judge_batch_norm(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Only with statistics of the batch."""
    if read_attribute(node, "training_mode", 0):
        yield make_finding(node, "batch statistics are computed over the call", "export in inference mode")


def make_causal_judge(name: str, mask: int) -> Any:
    """A judge for fused attention that is causal by an attribute, or by a mask (input number `mask`) from
    positions.
    """

    def judge_causal(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
        masked = len(node.input) > mask and node.input[mask] in facts.masks
        if not read_attribute(node, name, 0) and not masked:
            yield make_finding(
                node, f"attention is not causal ({name} is 0)", f"export with {name} = 1, or {CAUSAL_FIX}"
            )

    return judge_causal


def judge_window(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Convolution and pooling: along an axis of rows with a kernel above 1."""
    shape, kernel = ins[0], read_attribute(node, "kernel_shape", [])
    if shape is None or any(d.rows and size > 1 for d, size in zip(shape[2:], kernel, strict=False)):
        yield make_finding(node, "the window covers neighbouring rows of the call", MIX_FIX)


def judge_selection(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Data-dependent choice among all values of the call."""
    yield make_finding(node, "which values are taken depends on all rows of the call", MIX_FIX)


def prefix_microsoft(*names: str) -> list[str]:
    return [f"{MICROSOFT}::{name}" for name in names]


RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
REDUCTIONS = (
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
)
JUDGES: dict[str, Any] = {
    **dict.fromkeys(ELEMENTWISE, judge_aligned),
    **movement.JUDGES,
    **dict.fromkeys(
        [
            "QuantizeLinear",
            "DequantizeLinear",
            *prefix_microsoft("QuantizeLinear", "DequantizeLinear", "RotaryEmbedding"),
        ],
        judge_aligned,
    ),
    **dict.fromkeys(REDUCTIONS, make_reduction_judge(read_axes, "a reduction")),
    **dict.fromkeys(["ArgMax", "ArgMin"], make_reduction_judge(read_one_axis(0), "an arg-reduction")),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], judge_softmax),
    "TopK": make_reduction_judge(read_one_axis(-1), "a choice of the largest"),
    "LpNormalization": make_reduction_judge(read_one_axis(-1), "a norm"),
    "CumSum": make_reduction_judge(read_cumulative_axis, "a running sum"),
    **dict.fromkeys(
        ["LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"],
        make_reduction_judge(list_from_axis, "a normalisation"),
    ),
    **dict.fromkeys(
        prefix_microsoft("SkipSimplifiedLayerNormalization", "SkipLayerNormalization"),
        make_reduction_judge(list_last_axis, "a normalisation"),
    ),
    **dict.fromkeys(
        prefix_microsoft("MatMulNBits", "MatMulBnb4", "MoE", "QMoE"),
        make_reduction_judge(list_last_axis, "a product"),
    ),
    "InstanceNormalization": make_reduction_judge(list_behind_channel, "a normalisation"),
    "GroupNormalization": make_reduction_judge(list_behind_batch, "a normalisation"),
    "LRN": make_reduction_judge(read_one_axis(1), "a normalisation"),
    "MeanVarianceNormalization": make_reduction_judge(read_given_axes, "a normalisation"),
    **dict.fromkeys(
        ["GlobalAveragePool", "GlobalMaxPool"], make_reduction_judge(list_behind_channel, "a pool")
    ),
    "Det": make_reduction_judge(list_every_axis, "a determinant"),
    "Einsum": judge_einsum,
    **dict.fromkeys(
        ["MatMul", "MatMulInteger", *prefix_microsoft("MatMulIntegerToFloat")], judge_contraction
    ),
    **dict.fromkeys(["Gemm", *prefix_microsoft("FusedMatMul")], judge_transposed),
    **dict.fromkeys(prefix_microsoft("DynamicQuantizeMatMul"), judge_quantized_contraction),
    **dict.fromkeys(["DynamicQuantizeLinear", *prefix_microsoft("DynamicQuantizeLSTM")], judge_dynamic_scale),
    **dict.fromkeys(RANDOM, judge_random),
    "Dropout": judge_dropout,
    "BatchNormalization": judge_batch_norm,
    **dict.fromkeys(
        prefix_microsoft("MultiHeadAttention", "Attention"), make_causal_judge("unidirectional", 5)
    ),
    "Attention": make_causal_judge("is_causal", 3),
    **dict.fromkeys(["Conv", "ConvInteger"], judge_convolution),
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], judge_window),
    **dict.fromkeys(["NonZero", "Unique", "Compress", "NonMaxSuppression"], judge_selection),
    **specc_ops.JUDGES,
}
