"""Rotary position: GroupQueryAttention rotates query and key itself, by its tables and `position`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specc.exporter.graph.graph import (
    Graph,
    add_initializer,
    copy_graph,
    find_producer,
    insert_before,
    read_constant,
    read_shape,
    remove_unused,
)

QUERY, KEY, COS, POSITION = 0, 1, 7, 9


def fuse_rotary(graph: Graph) -> Graph:
    """Graph -> Graph; a layer whose query or key is rotated in any other form is left as it is."""
    out = copy_graph(graph)
    for node in list(out.model.graph):
        if node.op_type == "GroupQueryAttention" and len(node.inputs) <= COS:
            absorb_rotation(out.model.graph, node)
    return remove_unused(out)


def absorb_rotation(graph: ir.Graph, attention: ir.Node) -> None:
    """One attention node rotates its query and key itself, when both use the same tables and position."""
    query_match, key_match = (match_rotation(attention.inputs[slot]) for slot in (QUERY, KEY))
    if query_match is None or key_match is None:
        return
    (query, *table), (key, *key_table) = query_match, key_match
    if any(a is not b for a, b in zip(table, key_table, strict=True)):
        return
    cos, sin, position = table
    half_cos, half_sin = read_half_table(cos), read_half_table(sin)
    if half_cos is None or half_sin is None:
        return
    cached = add_initializer(graph, "cos_cache", half_cos), add_initializer(graph, "sin_cache", half_sin)
    for slot, value in ((QUERY, query), (KEY, key)):
        attention.replace_input_with(slot, flatten_heads(graph, attention, value))
    attention.resize_inputs(POSITION + 1)
    for slot, value in zip(range(COS, POSITION + 1), (*cached, position), strict=True):
        attention.replace_input_with(slot, value)
    attention.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
    attention.attributes["rotary_interleaved"] = ir.AttrInt64("rotary_interleaved", 0)


def flatten_heads(graph: ir.Graph, attention: ir.Node, value: ir.Value) -> ir.Value:
    """[1, R, heads, dim] -> [1, R, heads*dim], before `attention`; a value that is flat already is
    returned.
    """
    if len(read_shape(value)) == 3:
        return value
    shape = add_initializer(graph, "flat_heads", np.array([0, 0, -1], np.int64))
    node = ir.node("Reshape", [value, shape], name=f"{value.name}/flat")
    insert_before(attention, node)
    return node.outputs[0]


Rotation = tuple[ir.Value, ir.Value, ir.Value, ir.Value]


def match_rotation(value: ir.Value | None) -> Rotation | None:
    """(flat input [1, R, heads * dim], cos, sin, position) when `value` is that input rotated by head."""
    flat = find_producer(value, "Reshape")
    back = find_producer(flat.inputs[0], "Transpose") if flat else None
    total = find_producer(back.inputs[0], "Add") if back else None
    if back is None or total is None or not swaps_rows_and_heads(back):
        return None
    for straight, crossed in (total.inputs, total.inputs[::-1]):
        match = match_terms(straight, crossed)
        if match is not None:
            return match
    return None


def match_terms(straight: ir.Value | None, crossed: ir.Value | None) -> Rotation | None:
    """Match x*cos + rotate_half(x)*sin, x being the transposed heads of a flat input."""
    a, b = find_producer(straight, "Mul"), find_producer(crossed, "Mul")
    if a is None or b is None:
        return None
    for x, cos in (a.inputs, a.inputs[::-1]):
        for half, sin in (b.inputs, b.inputs[::-1]):
            cos_lookup, sin_lookup = match_lookup(cos), match_lookup(sin)
            if cos_lookup is None or sin_lookup is None or x is None or not is_rotate_half(half, x):
                continue
            flat = find_flat_input(x)
            if flat is not None and cos_lookup[1] is sin_lookup[1]:
                return flat, cos_lookup[0], sin_lookup[0], cos_lookup[1]
    return None


def match_lookup(value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """(table, position) when `value` is table[position] with an axis of size one for the heads."""
    unsqueeze = find_producer(value, "Unsqueeze")
    lookup = find_producer(unsqueeze.inputs[0], "GatherND", "Gather") if unsqueeze else None
    if lookup is None:
        return None
    table, position = lookup.inputs
    if lookup.op_type == "GatherND":
        inner = find_producer(position, "Unsqueeze")
        position = inner.inputs[0] if inner else None
    return None if table is None or position is None or read_constant(table) is None else (table, position)


def is_rotate_half(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether `value` is concat(-x[half:], x[:half]) along the last axis."""
    joined = find_producer(value, "Concat")
    if joined is None or len(joined.inputs) != 2 or joined.attributes["axis"].as_int() not in (-1, 3):
        return False
    negative = find_producer(joined.inputs[0], "Neg")
    upper = find_producer(negative.inputs[0], "Slice") if negative else None
    lower = find_producer(joined.inputs[1], "Slice")
    half = read_shape(x)[-1] // 2
    return read_slice_range(upper, x) == (half, None) and read_slice_range(lower, x) == (0, half)


def read_slice_range(node: ir.Node | None, x: ir.Value) -> tuple[int, int | None] | None:
    """(start, end) of a step-one slice of x's last axis; an end at or past the last element reads None."""
    if node is None or node.inputs[0] is not x or len(node.inputs) < 5:
        return None
    start, end, axis, step = (read_constant(value) for value in node.inputs[1:5])
    if (
        start is None
        or end is None
        or axis is None
        or step is None
        or axis.item() not in (-1, 3)
        or step.item() != 1
    ):
        return None
    return int(start.item()), None if end.item() >= read_shape(x)[-1] else int(end.item())


def find_flat_input(x: ir.Value) -> ir.Value | None:
    """What x [1, heads, R, dim] was transposed from: the flat [1, R, heads*dim], or [1, R, heads, dim]
    where a norm of each head stands between (Qwen 3, Gemma 3).
    """
    turned = find_producer(x, "Transpose")
    by_row = turned.inputs[0] if turned is not None and swaps_rows_and_heads(turned) else None
    if by_row is None:
        return None
    _, heads, _, dim = read_shape(x)
    cut = find_producer(by_row, "Reshape")
    flat = cut.inputs[0] if cut else None
    if flat is not None and read_shape(flat)[-1:] == (heads * dim,):
        return flat
    return by_row if read_shape(by_row)[-2:] == (heads, dim) and heads > 0 and dim > 0 else None


def swaps_rows_and_heads(node: ir.Node) -> bool:
    """Whether a Transpose swaps axes 1 and 2 of four axes."""
    return list(node.attributes["perm"].as_ints()) == [0, 2, 1, 3]


def read_half_table(table: ir.Value) -> np.ndarray | None:
    """The first half, [capacity, dim / 2], of a table whose two halves are equal; None when they are not."""
    array = read_constant(table)
    if array is None or array.ndim != 2:
        return None
    half = array.shape[1] // 2
    return np.ascontiguousarray(array[:, :half]) if np.array_equal(array[:, :half], array[:, half:]) else None
