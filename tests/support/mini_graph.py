"""A graph of the dialect `onnx24` in a dozen nodes, made without torch: one attention over an embedding, and
a head.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

VOCAB, HEADS, DIM, CAPACITY = 258, 4, 16, 192  # fewer heads have no attention kernel in TensorRT-RTX 1.7


def mini_graph(path: Path, opset24: bool = True, opset: int | None = None, extra: Any = None) -> Path:
    """Write the graph; `extra`: one more node (it may be of any kind, only its presence matters)."""
    from onnx import TensorProto as T
    from onnx import helper as h
    from onnx import numpy_helper as nh

    hidden = HEADS * DIM
    rng = np.random.default_rng(1)
    weights = {
        "table": rng.standard_normal((VOCAB, hidden)),
        "head": rng.standard_normal((hidden, VOCAB)),
    }
    numbers = {
        "heads": [0, 0, HEADS, DIM],
        "flat": [0, 0, hidden],
        "slots": np.arange(CAPACITY)[None],
        "zero": 0,
    }
    numbers |= {"one": 1, "axes": [0, 1], "first": [0], "last": [1]}
    cache = [1, HEADS, CAPACITY, DIM]
    value = h.make_tensor_value_info
    inputs = [
        value("input_ids", T.INT64, [1, "R"]),
        value("past_len", T.INT64, [1]),
        value("position", T.INT64, [1, "R"]),
        value("logit_rows", T.INT64, ["m"]),
        value("past_k.0", T.FLOAT16, cache),
        value("past_v.0", T.FLOAT16, cache),
    ]
    names, shape = ("present", cache) if opset24 else ("rows", [1, HEADS, "R", DIM])
    outputs = [
        value("logits", T.FLOAT, ["m", VOCAB]),
        *(value(f"{names}_{k}.0", T.FLOAT16, shape) for k in "kv"),
    ]
    held = [nh.from_array(array.astype(np.float16), name) for name, array in weights.items()]
    held += [nh.from_array(np.array(number, np.int64), name) for name, number in numbers.items()]
    graph = h.make_graph([*make_nodes(opset24), *([extra] if extra else [])], "mini", inputs, outputs, held)
    imports = [h.make_opsetid("", opset or (24 if opset24 else 21)), h.make_opsetid("com.microsoft", 1)]
    path.write_bytes(
        h.make_model(graph, opset_imports=imports[: 2 if extra else 1], ir_version=10).SerializeToString()
    )
    return path


def make_nodes(opset24: bool) -> list[Any]:
    """The nodes from input_ids to logits."""
    from onnx import TensorProto as T
    from onnx import helper as h

    node = h.make_node
    return [
        node("Gather", ["table", "input_ids"], ["x"]),
        node("Reshape", ["x", "heads"], ["xh"]),
        node("Transpose", ["xh"], ["q"], perm=[0, 2, 1, 3]),
        node("Shape", ["input_ids"], ["rows1"], start=1, end=2),
        node("Squeeze", ["rows1", "first"], ["rows"]),
        node("Range", ["zero", "rows", "one"], ["number"]),
        node("Add", ["number", "past_len"], ["top"]),
        node("Unsqueeze", ["top", "last"], ["top2"]),
        node("LessOrEqual", ["slots", "top2"], ["seen"]),
        node("Unsqueeze", ["seen", "axes"], ["mask"]),
        *attention(node, opset24),
        node("Transpose", ["y"], ["yt"], perm=[0, 2, 1, 3]),
        node("Reshape", ["yt", "flat"], ["yf"]),
        node("Gather", ["yf", "logit_rows"], ["wanted"], axis=1),
        node("Squeeze", ["wanted", "first"], ["w2"]),
        node("MatMul", ["w2", "head"], ["l16"]),
        node("Cast", ["l16"], ["logits"], to=T.FLOAT),
    ]


def attention(node: Any, opset24: bool) -> list[Any]:
    """From q and mask to y, keys and values being q too; and the caches."""
    if opset24:
        return [
            node("TensorScatter", ["past_k.0", "q", "past_len"], ["present_k.0"], axis=2),
            node("TensorScatter", ["past_v.0", "q", "past_len"], ["present_v.0"], axis=2),
            node("Attention", ["q", "present_k.0", "present_v.0", "mask"], ["y"], scale=0.25),
        ]
    return [
        node("Transpose", ["past_k.0"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["chance"], axis=3),
        node("MatMul", ["chance", "past_v.0"], ["y"]),
        node("Identity", ["q"], ["rows_k.0"]),
        node("Identity", ["q"], ["rows_v.0"]),
    ]
