"""Lint: does any row of one call of this graph depend on another row of the same call?

A walk over the graph that follows symbolic shapes (lint_shapes.py) and asks over which axes each node mixes values.
It judges axes, not names: the per-tensor scale of DynamicQuantizeLinear and the same scale spelled as ReduceMax, Div,
Round, Clip are one finding. It needs the `onnx` package, so it runs where bundles are built and is kept in them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault, InputError
from specc.gate.lint_shapes import RULES, Dim, Facts, Shape, attribute, axes_of, product, total

SCALE_FIX = "use a static scale, or one scale for each row (reduce over the last axis only)"
MIX_FIX = "reduce over feature axes only, so that a row never reads another row of the call"


@dataclass(frozen=True)
class Finding:
    """One reason why rows may not be verified together."""

    node: str
    op: str
    why: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """For the manifest."""
        return asdict(self)


def lint_file(path: str | Path) -> list[Finding]:
    """Findings for an ONNX file; weights are not read. InputError where there is no such file or it is no ONNX."""
    onnx = _onnx()
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"there is no ONNX file {path}; give the path of one") from None
    except Exception as error:  # the parser has no common exception class
        raise InputError(f"{path} cannot be read as ONNX: {type(error).__name__}; export it again") from None
    return lint_model(model)


def lint_model(model: Any) -> list[Finding]:
    """Findings for a loaded ModelProto; local functions are inlined first."""
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    graph = model.graph
    facts = _facts(graph)
    findings: list[Finding] = []
    for node in graph.node:
        findings += judge(node, facts)
        _learn(node, facts)
    return findings + list(_half_types(graph))


def judge(node: Any, facts: Facts) -> Iterator[Finding]:
    """Findings of one node, before its outputs are known."""
    ins = [facts.shapes.get(name) for name in node.input]
    reading = [shape for shape in ins if shape is not None and any(d.rows or d.context for d in shape)]
    unknown = any(name and facts.shapes.get(name) is None for name in node.input)
    if not reading and not unknown and node.op_type not in RANDOM:
        return
    if node.op_type in JUDGES:
        yield from JUDGES[node.op_type](node, ins, facts)
    elif node.op_type not in RULES and node.op_type != "Constant":
        yield _finding(node, "this op is not known to keep rows apart", "express it in known operators")


def mixes(shape: Shape, axes: list[int]) -> bool:
    """Whether a sum over these axes joins rows: over rows, or over a context that has no row axis beside it."""
    rest = [d for i, d in enumerate(shape) if i not in axes]
    over = [shape[i] for i in axes]
    return any(d.rows for d in over) or (any(d.context for d in over) and not any(d.rows for d in rest))


def reduces(axes: Callable[[Any, Facts, int], list[int] | None], why: str, fix: str = MIX_FIX) -> Any:
    """A judge for ops that mix values along the axes that `axes` names."""
    def judge_axes(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
        shape = ins[0]
        if shape is None:
            yield _finding(node, f"{why} over axes that cannot be traced", fix)
            return
        along = axes(node, facts, len(shape))
        if along is None or mixes(shape, along):
            yield _finding(node, f"{why} over the rows of the call", fix)

    return judge_axes


def one_axis(default: int) -> Callable[[Any, Facts, int], list[int]]:
    """The attribute `axis`."""
    return lambda node, facts, rank: [attribute(node, "axis", default) % max(rank, 1)]


def from_axis(node: Any, facts: Facts, rank: int) -> list[int]:
    """LayerNormalization: from `axis` to the last."""
    return list(range(attribute(node, "axis", -1) % max(rank, 1), rank))


def all_but_channel(node: Any, facts: Facts, rank: int) -> list[int]:
    """Normalisations over everything behind the channel axis."""
    return list(range(2, rank))


def every_axis(node: Any, facts: Facts, rank: int) -> list[int]:
    return list(range(rank))


def cumulative(node: Any, facts: Facts, rank: int) -> list[int] | None:
    """CumSum runs along input 1; forward along rows is causal, yet the sum's order is the kernel's own."""
    axis = facts.ints.get(node.input[1])
    return None if axis is None else [axis[0].coef % max(rank, 1)]


def contraction(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """MatMul: the axis that is summed over."""
    a, b = ins[0], ins[1]
    lines = [(a, -1), (b, -2 if b is not None and len(b) > 1 else -1)]
    if any(shape is not None and len(shape) and shape[axis].rows for shape, axis in lines):
        yield _finding(node, "the product sums over the rows of the call", MIX_FIX)
    if node.op_type in ("DynamicQuantizeMatMul",):
        yield from dynamic_scale(node, ins, facts)


def dynamic_scale(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """One scale for all rows of the call."""
    if ins[0] is None or mixes(ins[0], list(range(len(ins[0])))):
        yield _finding(node, "one activation scale is computed from all rows of the call (per tensor)", SCALE_FIX)


def random_op(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    yield _finding(node, "the op draws random numbers", "remove it; sampling is the runtime's part")


def dropout(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Only with training mode on."""
    if len(node.input) > 2 and node.input[2] and facts.ints.get(node.input[2], (Dim(1),)) != (Dim(0),):
        yield _finding(node, "dropout may be in training mode and draws random numbers", "export in inference mode")


def batch_norm(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Only with statistics of the batch."""
    if attribute(node, "training_mode", 0):
        yield _finding(node, "batch statistics are computed over the call", "export in inference mode")


def causal(name: str) -> Any:
    """A judge for fused attention with an attribute that makes it causal."""
    def judge_causal(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
        mask = name == "is_causal" and len(node.input) > 3 and bool(node.input[3])
        if not attribute(node, name, 0) and not mask:
            yield _finding(node, f"attention is not causal ({name} is 0)", f"export with {name} = 1")

    return judge_causal


def window(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Convolution and pooling: along an axis of rows with a kernel above 1."""
    shape, kernel = ins[0], attribute(node, "kernel_shape", [])
    if shape is None or any(d.rows and size > 1 for d, size in zip(shape[2:], kernel, strict=False)):
        yield _finding(node, "the window covers neighbouring rows of the call", MIX_FIX)


def selection(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Data-dependent choice among all values of the call."""
    yield _finding(node, "which values are taken depends on all rows of the call", MIX_FIX)


def _finding(node: Any, why: str, fix: str) -> Finding:
    return Finding(node.name or (node.output[0] if node.output else ""), node.op_type, why, fix)


RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare")
JUDGES: dict[str, Any] = {
    **dict.fromkeys(REDUCTIONS, reduces(axes_of, "a reduction")),
    **dict.fromkeys(["ArgMax", "ArgMin"], reduces(one_axis(0), "an arg-reduction")),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], reduces(one_axis(-1), "a softmax")),
    "TopK": reduces(one_axis(-1), "a choice of the largest"), "LpNormalization": reduces(one_axis(-1), "a norm"),
    "CumSum": reduces(cumulative, "a running sum"),
    **dict.fromkeys(["LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"],
                    reduces(from_axis, "a normalisation")),
    **dict.fromkeys(["InstanceNormalization", "GroupNormalization"], reduces(all_but_channel, "a normalisation")),
    **dict.fromkeys(["MeanVarianceNormalization", "GlobalAveragePool", "GlobalMaxPool", "Det"],
                    reduces(every_axis, "a statistic")),
    **dict.fromkeys(["MatMul", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat"], contraction),
    "DynamicQuantizeMatMul": contraction,
    "DynamicQuantizeLinear": dynamic_scale, "DynamicQuantizeLSTM": dynamic_scale,
    **dict.fromkeys(RANDOM, random_op), "Dropout": dropout, "BatchNormalization": batch_norm,
    "MultiHeadAttention": causal("unidirectional"), "Attention": causal("is_causal"),
    **dict.fromkeys(["Conv", "ConvInteger", "MaxPool", "AveragePool", "LpPool"], window),
    **dict.fromkeys(["NonZero", "Unique", "Compress", "NonMaxSuppression"], selection),
}


def _facts(graph: Any) -> Facts:
    """Shapes of inputs and weights; the first symbol of input_ids' last axis, and that of logit_rows, are rows."""
    constants = {tensor.name: tuple(Dim(d) for d in tensor.dims) for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in constants}
    symbols = _row_symbols(inputs)
    shapes: dict[str, Shape | None] = {name: _declared(value, symbols) for name, value in inputs.items()}
    declared = {value.name: _declared(value, symbols) for value in [*graph.value_info, *graph.output]}
    ints = {tensor.name: found for tensor in graph.initializer if (found := _ints(tensor)) is not None}
    return Facts({**shapes, **constants}, ints, declared)


def _row_symbols(inputs: dict[str, Any]) -> set[str]:
    """Names of the symbolic axes that count rows."""
    ids = inputs.get("input_ids") or inputs.get("inputs_embeds") or next(iter(inputs.values()), None)
    symbols = set()
    if ids is not None:
        dims = ids.type.tensor_type.shape.dim
        symbols = {dim.dim_param for dim in dims[1:2] or dims[:1] if dim.dim_param}
    if "logit_rows" in inputs:
        symbols |= {dim.dim_param for dim in inputs["logit_rows"].type.tensor_type.shape.dim if dim.dim_param}
    return symbols


def _declared(value: Any, symbols: set[str]) -> Shape | None:
    """Declared shape of a value; None where rank or an axis is not said."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if any(not dim.dim_param and not dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(_dim(dim, symbols) for dim in dims)


def _dim(dim: Any, symbols: set[str]) -> Dim:
    if not dim.dim_param:
        return Dim(dim.dim_value)
    return Dim(1, ("R" if dim.dim_param in symbols else dim.dim_param,))


def _ints(tensor: Any) -> Shape | None:
    """Values of a small integer tensor; None for others and for those kept outside the file."""
    from onnx import TensorProto, numpy_helper

    whole = tensor.data_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    if not whole or tensor.data_location == TensorProto.EXTERNAL or product([Dim(d) for d in tensor.dims]).coef > 16:
        return None
    return tuple(Dim(int(v)) for v in numpy_helper.to_array(tensor).ravel())


def _learn(node: Any, facts: Facts) -> None:
    """Shapes of the node's outputs: by its rule, else as the file declares them; values of small integer tensors."""
    ins = [facts.shapes.get(name) for name in node.input]
    rule = RULES.get(node.op_type)
    if node.op_type == "Constant":
        outs: list[Shape | None] = [_constant(node, facts)]
    else:
        outs = rule(node, ins, facts) if rule else [None] * len(node.output)
    for name, shape in zip(node.output, [*outs, *[None] * len(node.output)], strict=False):
        if name:
            facts.shapes[name] = shape if shape is not None else facts.declared.get(name)
    values = _values(node, facts)
    if values is not None and node.output:
        facts.ints[node.output[0]] = values


def _constant(node: Any, facts: Facts) -> Shape:
    """Shape of a Constant; its value is kept when it is small."""
    tensor = attribute(node, "value", None)
    if tensor is not None:
        found = _ints(tensor)
        if found is not None:
            facts.ints[node.output[0]] = found
        return tuple(Dim(d) for d in tensor.dims)
    many = attribute(node, "value_ints", attribute(node, "value_floats", None))
    one = attribute(node, "value_int", None)
    if one is not None or attribute(node, "value_ints", None) is not None:
        facts.ints[node.output[0]] = tuple(Dim(v) for v in (many if many is not None else [one]))
    return () if many is None else (Dim(len(many)),)


def _values(node: Any, facts: Facts) -> Shape | None:
    """Integer tensors that shapes are computed from: Shape and what exporters do to its result."""
    op, first = node.op_type, facts.ints.get(node.input[0]) if node.input else None
    if op == "Shape":
        shape = facts.shapes.get(node.input[0])
        return None if shape is None else shape[attribute(node, "start", 0) : attribute(node, "end", None)]
    if op == "Concat" and all(name in facts.ints for name in node.input):
        return tuple(d for name in node.input for d in facts.ints[name])
    if first is None:
        return None
    if op in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
        return first
    rest = [facts.ints.get(name) for name in node.input[1:]]
    if not rest or any(values is None for values in rest):
        return None
    given = [values for values in rest if values is not None]
    return _folded(op, first, given)


def _folded(op: str, first: Shape, given: list[Shape]) -> Shape | None:
    """Gather, Slice, Mul and Add of known integers."""
    if op == "Gather":
        return tuple(first[d.coef] for d in given[0] if -len(first) <= d.coef < len(first))
    if op == "Slice" and len(given) >= 2 and not given[0][0].syms and not given[1][0].syms:
        return first[given[0][0].coef : given[1][0].coef]
    if op in ("Mul", "Add") and len(first) == len(given[0]):
        join = product if op == "Mul" else total
        return tuple(join([a, b]) for a, b in zip(first, given[0], strict=True))
    return None


def _half_types(graph: Any) -> Iterator[Finding]:
    """bfloat16 values, which the CPU engine has no kernels for: they would fail or be run in another type."""
    from onnx import TensorProto

    half = {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.BFLOAT16}
    half |= {value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.BFLOAT16}
    for node in graph.node:
        cast = node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.BFLOAT16
        if cast or half.intersection(node.input):
            yield _finding(node, "bfloat16 has no kernel on this CPU engine", "export this part in float32")


def _onnx() -> Any:
    """The onnx package, which only building needs."""
    try:
        import onnx
    except ImportError:
        raise EnvironmentFault("the lint needs the onnx package; install specc[build]") from None
    return onnx
