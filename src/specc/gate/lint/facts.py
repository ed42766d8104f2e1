"""What is known of a graph's values: shapes of inputs and weights first, then node by node; small integer
tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specc.gate.lint.rules import RULES
from specc.gate.lint.shapes import (
    BATCH,
    ROWS,
    Dim,
    Facts,
    Shape,
    operator_name,
    product,
    read_attribute,
    total,
)

SMALL = 64
"""Integers of a tensor whose values are followed."""
MASK_INPUTS = ("mask", "bias")
"""In names of inputs: the caller gives it, [..., rows, context]."""


def collect_facts(graph: Any, opset: int = 20) -> Facts:
    """Shapes of inputs and weights. Rows are the last axis of input_ids (or of the first input) and of
    logit_rows, whether a symbol or a number; the axis before it counts sequences.
    """
    facts = Facts({}, {}, {}, opset)
    add_weights(graph, facts)
    inputs = {value.name: value for value in graph.input if value.name not in facts.shapes}
    names, static = _row_axes(inputs)
    facts.fixed = ROWS not in names.values() and any(ROWS in axes.values() for axes in static.values())
    facts.shapes |= {name: _declared(value, names, static) for name, value in inputs.items()}
    facts.declared |= {v.name: _declared(v, names, {}) for v in [*graph.value_info, *graph.output]}
    facts.data |= {name for name, value in inputs.items() if "_ids" in name or not _whole(value)} or set(
        inputs
    )
    facts.row_selectors |= {name for name in inputs if name == "logit_rows"}
    facts.masks |= {n for n in inputs if any(w in n for w in MASK_INPUTS) and len(facts.shapes[n] or ()) > 2}
    return facts


def add_weights(graph: Any, facts: Facts) -> None:
    """Shapes and small values of a graph's initializers."""
    for tensor in graph.initializer:
        facts.shapes[tensor.name] = tuple(Dim(d) for d in tensor.dims)
        found = _ints(tensor)
        if found is not None:
            facts.ints[tensor.name] = found
        if len(tensor.dims) > 1 and _causal(tensor):
            facts.masks.add(tensor.name)


def _causal(tensor: Any) -> bool:
    """Whether a weight is a folded causal mask: each row lets a prefix through that grows by one from row to
    row.
    """
    from onnx import TensorProto, numpy_helper

    outside = tensor.data_location == TensorProto.EXTERNAL
    if outside or min(tensor.dims[-2:]) < 2 or any(d != 1 for d in tensor.dims[:-2]):
        return False
    values = numpy_helper.to_array(tensor)
    if values.dtype.kind not in "bf":
        return False
    seen = values.reshape(values.shape[-2:]) > (-1 if values.dtype.kind == "f" else 0)
    first = int(seen[0].sum())
    return bool((seen == np.tri(seen.shape[0], seen.shape[1], first - 1, dtype=bool)).all())


def _row_axes(inputs: dict[str, Any]) -> tuple[dict[str, str], dict[str, dict[int, str]]]:
    """(symbol in the file -> ours, input -> axis -> ours where the axis is a number above 1)."""
    name = next((n for n in ("input_ids", "inputs_embeds") if n in inputs), next(iter(inputs), ""))
    lines = {}
    if name:
        rank = len(inputs[name].type.tensor_type.shape.dim)
        lines[name] = {1: ROWS, 0: BATCH} if rank > 1 else {0: ROWS}
        lines |= {n: {1: ROWS, 0: BATCH} for n in ("position", "position_ids") if n in inputs}
    lines |= {"logit_rows": {0: f"{ROWS}:chosen"}} if "logit_rows" in inputs else {}
    names: dict[str, str] = {}
    static: dict[str, dict[int, str]] = {}
    for source, axes in lines.items():
        for axis, dim in enumerate(inputs[source].type.tensor_type.shape.dim):
            if axis in axes and dim.dim_param:
                names.setdefault(dim.dim_param, axes[axis])
            elif axis in axes and dim.dim_value > 1:
                static.setdefault(source, {})[axis] = axes[axis]
    return names, static


def _whole(value: Any) -> bool:
    """Whether an input holds integers: a place or a length."""
    from onnx import TensorProto

    return value.type.tensor_type.elem_type in (TensorProto.INT32, TensorProto.INT64)


def _declared(value: Any, names: dict[str, str], static: dict[str, dict[int, str]]) -> Shape | None:
    """Declared shape of a value; None where rank or an axis is not said."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    if any(not dim.dim_param and not dim.HasField("dim_value") for dim in dims):
        return None
    fixed = static.get(value.name, {})
    return tuple(_dim(dim, names, fixed.get(axis)) for axis, dim in enumerate(dims))


def _dim(dim: Any, names: dict[str, str], fixed: str | None) -> Dim:
    if not dim.dim_param:
        return Dim(dim.dim_value, (fixed,) if fixed else ())
    return Dim(1, (names.get(dim.dim_param, dim.dim_param),))


def _ints(tensor: Any) -> Shape | None:
    """Values of a small integer tensor; None for others and for those kept outside the file."""
    from onnx import TensorProto, numpy_helper

    whole = tensor.data_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    outside = tensor.data_location == TensorProto.EXTERNAL
    if not whole or outside or product([Dim(d) for d in tensor.dims]).coef > SMALL:
        return None
    return tuple(Dim(int(v)) for v in numpy_helper.to_array(tensor).ravel())


def learn(node: Any, facts: Facts) -> None:
    """Shapes of the node's outputs: by its rule, else as the file declares them; values of small integer
    tensors.
    """
    ins = [facts.shapes.get(name) for name in node.input]
    rule = RULES.get(operator_name(node))
    if node.op_type == "Constant":
        outs: list[Shape | None] = [_constant(node, facts)]
    else:
        outs = rule(node, ins, facts) if rule else [None] * len(node.output)
    for name, shape in zip(node.output, [*outs, *[None] * len(node.output)], strict=False):
        if name:
            facts.shapes[name] = shape if shape is not None or facts.fixed else facts.declared.get(name)
    values = _values(node, facts)
    if values is not None and node.output:
        facts.ints[node.output[0]] = values


def _constant(node: Any, facts: Facts) -> Shape:
    """Shape of a Constant; its value is kept when it is small."""
    tensor = read_attribute(node, "value", None)
    if tensor is not None:
        found = _ints(tensor)
        if found is not None:
            facts.ints[node.output[0]] = found
        return tuple(Dim(d) for d in tensor.dims)
    many = read_attribute(node, "value_ints", read_attribute(node, "value_floats", None))
    one = read_attribute(node, "value_int", None)
    if one is not None or read_attribute(node, "value_ints", None) is not None:
        facts.ints[node.output[0]] = tuple(Dim(v) for v in (many if many is not None else [one]))
    return () if many is None else (Dim(len(many)),)


def _values(node: Any, facts: Facts) -> Shape | None:
    """Integer tensors that shapes are computed from: Shape and what exporters do to its result."""
    op, first = node.op_type, facts.ints.get(node.input[0]) if node.input else None
    if op == "Shape":
        shape = facts.shapes.get(node.input[0])
        return (
            None
            if shape is None
            else shape[read_attribute(node, "start", 0) : read_attribute(node, "end", None)]
        )
    if op == "Concat" and all(name in facts.ints for name in node.input):
        return tuple(d for name in node.input for d in facts.ints[name])
    if first is None:
        return None
    if op in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
        return first
    if op == "ReduceProd":
        return (product(first),)
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
