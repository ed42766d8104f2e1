"""GroupQueryAttention in standard operators: TensorScatter and Attention of opset 24, or products and a
softmax.

The KV caches are in `dtype`, rotary and softmax in fp32. With the older spelling the graph does not write the
cache: it returns the new rows (`rows_k.i`, `rows_v.i`), which the runtime appends.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from specc.exporter.graph.emitter import FLOAT, INT64, Emitter
from specc.exporter.graph.graph import Graph, copy_graph, read_shape, remove_unused, replace_uses
from specc.exporter.lower.half_products import NUMPY
from specc.exporter.lower.standard_rotary import rotate

FLOAT8, ZERO8 = ir.DataType.FLOAT8E4M3FN, np.zeros((), ml_dtypes.float8_e4m3fn)
LOWEST = np.float32(-1e30)
"""Score of a slot that is masked for a row; its exp is 0 in fp32."""


@dataclass(frozen=True)
class Rows:
    """Query, key and value of one call, rotated: q fp32 [1, heads, R, dim], k and v fp32 [1, kv_heads, R,
    dim].
    """

    q: ir.Value
    k: ir.Value
    v: ir.Value
    heads: int
    kv_heads: int
    dim: int
    scale: float
    window: int


@dataclass
class Masks:
    """Boolean masks that layers share, computed before the first attention, by window size (0: no window)."""

    by_window: dict[int, tuple[ir.Value, ...]]


def lower_attention(
    graph: Graph, dtype: ir.DataType, opset24: bool, cache: ir.DataType | None = None
) -> Graph:
    """Graph -> Graph; `dtype`: type of the KV caches and of the products inside.

    `cache`: another cache type.
    """
    out, masks = copy_graph(graph), Masks({})
    inner = out.model.graph
    for value in inner.inputs:
        if (value.name or "").startswith(("past_k.", "past_v.")):
            value.type = ir.TensorType(cache or dtype)
        elif value.name == "past_len":
            value.type = ir.TensorType(INT64)  # the type of a write index
    first = next((node for node in inner if node.op_type == "GroupQueryAttention"), None)
    for node in list(inner):
        if node.op_type == "GroupQueryAttention":
            emit = Emitter(inner, node, str(node.name))
            rows = split_rows(emit, node, opset24)
            attend = attend_scattered if opset24 else attend_appended
            assert first is not None
            attend(emit, node, rows, dtype, Emitter(inner, first, "mask"), masks)
    return remove_unused(out)


def split_rows(emit: Emitter, node: ir.Node, opset24: bool) -> Rows:
    """Query, key and value of the node by head, rotated by its tables where it has some."""
    a, dim = node.attributes, read_shape(node.inputs[3])[-1]  # type: ignore[arg-type]
    heads, kv_heads = a["num_heads"].as_int(), a["kv_num_heads"].as_int()
    flat = list(node.inputs[:3])
    if flat[1] is None:
        sizes = emit.ints(heads * dim, kv_heads * dim, kv_heads * dim)
        flat = list(emit.ops("Split", 3, flat[0], sizes, axis=2))
    q, k, v = (
        split_heads(emit, x, n, dim)
        for x, n in zip(flat, (heads, kv_heads, kv_heads), strict=True)
        if x is not None
    )
    if "do_rotary" in a and a["do_rotary"].as_int():
        cos, sin, position = node.inputs[7:10]
        assert cos is not None and sin is not None and position is not None
        q, k = (rotate(emit, x, cos, sin, position, opset24) for x in (q, k))
    window = max(a["local_window_size"].as_int(), 0) if "local_window_size" in a else 0
    return Rows(q, k, v, heads, kv_heads, dim, a["scale"].as_float(), window)


def split_heads(emit: Emitter, x: ir.Value, heads: int, dim: int) -> ir.Value:
    """[1, R, heads * dim] -> [1, heads, R, dim]."""
    return emit.op("Transpose", emit.reshape(x, 0, 0, heads, dim), perm=[0, 2, 1, 3])


def replace_result(emit: Emitter, node: ir.Node, attended: ir.Value, rows: Rows, dtype: ir.DataType) -> None:
    """[1, heads, R, dim] in `dtype` -> fp32 [1, R, heads * dim], which replaces the node's first result."""
    flat = emit.reshape(emit.op("Transpose", attended, perm=[0, 2, 1, 3]), 0, 0, rows.heads * rows.dim)
    flat.type = ir.TensorType(dtype)
    result = emit.cast(flat, FLOAT)
    result.shape = node.outputs[0].shape
    replace_uses(node.outputs[0], result)


def replace_output(node: ir.Node, slot: int, new: ir.Value, name: str, dtype: ir.DataType) -> None:
    """`new` replaces the node's result `slot` as a graph output called `name`."""
    old = node.outputs[slot]
    new.type = ir.TensorType(dtype)
    if new.shape is None:
        new.shape = old.shape
    replace_uses(old, new)
    new.name = name


# ---------------------------------------------------------------------- opset 24


def attend_scattered(
    emit: Emitter, node: ir.Node, rows: Rows, dtype: ir.DataType, top: Emitter, masks: Masks
) -> None:
    """TensorScatter writes the rows at slot past_len.

    Attention reads the whole cache under a boolean mask.
    """
    past_k, past_v = node.inputs[3:5]
    assert past_k is not None and past_v is not None
    if rows.window not in masks.by_window:
        masks.by_window[rows.window] = make_whole_mask(top, rows, read_shape(past_k)[2])
    write_index, visible = masks.by_window[rows.window]
    presents = []
    for slot, past, new in ((1, past_k, rows.k), (2, past_v, rows.v)):
        name = str(node.outputs[slot].name)
        presents.append(
            emit.op("TensorScatter", past, emit.cast(new, dtype), write_index, axis=2, mode="linear")
        )
        presents[-1].shape = past.shape
        replace_output(node, slot, presents[-1], name, dtype)
    q = emit.cast(rows.q, dtype)
    attended = emit.op("Attention", q, *presents, visible, scale=rows.scale)
    replace_result(emit, node, attended, rows, dtype)


def make_whole_mask(top: Emitter, rows: Rows, capacity: int) -> tuple[ir.Value, ...]:
    """(past_len int64 [1], visible bool [1, 1, R, capacity]): row r attends to the slots up to past_len +
    r.
    """
    past = read_past_length(top)
    last = top.op("Unsqueeze", top.op("Add", number_rows(top), past), top.ints(1))  # [R, 1]
    slots = top.constant("slots", np.arange(capacity, dtype=np.int64)[None])
    visible = top.op("LessOrEqual", slots, last)
    if rows.window:
        before_window = top.op("Sub", last, top.number(rows.window))
        visible = top.op("And", visible, top.op("Greater", slots, before_window))
    return past, top.op("Unsqueeze", visible, top.ints(0, 1))


def read_past_length(top: Emitter) -> ir.Value:
    """past_len as int64 [1]."""
    past_len = next(value for value in top.graph.inputs if value.name == "past_len")
    return top.cast(past_len, INT64)


def number_rows(top: Emitter) -> ir.Value:
    """int64 [R]: the numbers 0, 1, .. of the call's rows."""
    ids = next(value for value in top.graph.inputs if value.name == "input_ids")
    count = top.op("Squeeze", top.op("Shape", ids, start=1, end=2), top.ints(0))
    return top.op("Range", top.number(0), count, top.number(1))


# ---------------------------------------------------------------------- older


def attend_appended(
    emit: Emitter, node: ir.Node, rows: Rows, dtype: ir.DataType, top: Emitter, masks: Masks
) -> None:
    """Scores against the cache and the call's own rows, one softmax over both, two products with the
    values.
    """
    past_k, past_v = node.inputs[3:5]
    assert past_k is not None and past_v is not None
    if rows.window not in masks.by_window:
        masks.by_window[rows.window] = make_split_masks(top, rows, read_shape(past_k)[2])
    cache_mask, own_mask, sizes = masks.by_window[rows.window]
    new_rows = [emit.cast(rows.k, dtype), emit.cast(rows.v, dtype)]
    if past_k.dtype == FLOAT8:
        new_rows = [store_float8(emit, x, dtype) for x in new_rows]
    k, v = (load_float8(emit, x, dtype) for x in new_rows)
    past_k, past_v = (load_float8(emit, x, dtype) for x in (past_k, past_v))
    scale = emit.constant(f"scale_{rows.scale:.9g}", np.array(rows.scale, np.float32))
    q = emit.cast(emit.op("Mul", rows.q, scale), dtype)
    q = emit.reshape(q, 1, rows.kv_heads, rows.heads // rows.kv_heads, -1, rows.dim)
    lowest = emit.constant("lowest", np.array(LOWEST, np.float32))
    sides = ((past_k, cache_mask), (k, own_mask))
    scores = [score_keys(emit, q, keys, mask, lowest, dtype) for keys, mask in sides]
    probabilities = emit.op("Softmax", emit.op("Concat", *scores, axis=4), axis=4)
    old, new = emit.ops("Split", 2, probabilities, sizes, axis=4)
    parts = [weigh_values(emit, p, values, dtype) for p, values in ((old, past_v), (new, v))]
    replace_result(emit, node, emit.reshape(emit.op("Add", *parts), 1, rows.heads, -1, rows.dim), rows, dtype)
    for slot, stored in enumerate(new_rows, 1):
        name = str(node.outputs[slot].name)
        stored.shape = ir.Shape([1, rows.kv_heads, "rows", rows.dim])
        replace_output(node, slot, stored, name.replace("present_", "rows_"), stored.dtype or dtype)


def store_float8(emit: Emitter, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """x in float8 with scale 1, saturating at 448.

    A row reads itself as later rows read it from the cache.
    """
    scale, zero = emit.constant("cache_scale", np.ones((), NUMPY[dtype])), emit.constant("cache_zero", ZERO8)
    codes = emit.op("QuantizeLinear", x, scale, zero)
    codes.type = ir.TensorType(FLOAT8)
    return codes


def load_float8(emit: Emitter, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """x in `dtype`; x itself when it is not float8."""
    if x.dtype != FLOAT8:
        return x
    values = emit.op("DequantizeLinear", x, emit.constant("cache_scale", np.ones((), NUMPY[dtype])))
    values.type, values.shape = ir.TensorType(dtype), x.shape
    return values


def make_split_masks(top: Emitter, rows: Rows, capacity: int) -> tuple[ir.Value, ...]:
    """Masks of the cache [1, 1, R or 1, capacity] and of the call's rows [1, 1, R, R].

    And int64 (capacity, R).
    """
    past, number = read_past_length(top), number_rows(top)
    slots = top.constant("slots", np.arange(capacity, dtype=np.int64)[None])
    seen = top.op("Less", slots, past)
    row, column = top.op("Unsqueeze", number, top.ints(1)), top.op("Unsqueeze", number, top.ints(0))
    own = top.op("LessOrEqual", column, row)
    if rows.window:
        # the last row before the window, counted from past_len
        first = top.op("Sub", row, top.number(rows.window))
        seen = top.op("And", seen, top.op("Greater", top.op("Sub", slots, past), first))
        own = top.op("And", own, top.op("Greater", column, first))
    count = top.op("Shape", number)
    sizes = top.op("Concat", top.ints(capacity), count, axis=0)
    return *(top.op("Unsqueeze", mask, top.ints(0, 1)) for mask in (seen, own)), sizes


def score_keys(
    emit: Emitter, q: ir.Value, keys: ir.Value, seen: ir.Value, lowest: ir.Value, dtype: ir.DataType
) -> ir.Value:
    """fp32 scores [1, kv_heads, group, R, slots] of q [1, kv_heads, group, R, dim], keys [1, kv_heads, slots,
    dim].

    Rows have an axis of their own, so that the lint can follow them.
    """
    transposed_keys = emit.op("Unsqueeze", emit.op("Transpose", keys, perm=[0, 1, 3, 2]), emit.ints(2))
    product = emit.op("MatMul", q, transposed_keys)
    product.type = ir.TensorType(dtype)
    return emit.op("Where", seen, emit.cast(product, FLOAT), lowest)


def weigh_values(emit: Emitter, probabilities: ir.Value, values: ir.Value, dtype: ir.DataType) -> ir.Value:
    """[1, kv_heads, group, R, slots] times values [1, kv_heads, slots, dim] -> [1, kv_heads, group, R,
    dim].
    """
    return emit.op("MatMul", emit.cast(probabilities, dtype), emit.op("Unsqueeze", values, emit.ints(2)))
