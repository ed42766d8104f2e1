"""What is known of a graph's values: shapes of inputs and weights first, then node by node; small integer tensors."""
from __future__ import annotations

from typing import Any

from specc.gate.lint.rules import RULES
from specc.gate.lint.shapes import Dim, Facts, Shape, attribute, key, product, total


def facts_of(graph: Any) -> Facts:
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


def learn(node: Any, facts: Facts) -> None:
    """Shapes of the node's outputs: by its rule, else as the file declares them; values of small integer tensors."""
    ins = [facts.shapes.get(name) for name in node.input]
    rule = RULES.get(key(node))
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
