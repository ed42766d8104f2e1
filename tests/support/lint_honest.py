"""Honest graphs that look like a coupling of rows: name -> nodes, weights, further arguments of model()."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from support.lint_graphs import (
    Nodes,
    body,
    ints,
    node,
    number,
    value,
    weight,
)
from support.lint_hidden import LIMITS, TRUE, quantized

tr = [node("Transpose", "x", "t", perm=[0, 2, 1])]
heads = [node("Reshape", "x to", "h"), node("Transpose", "h", "q", perm=[0, 2, 1, 3])]
keys = [
    node("Concat", "past_k q", "k", axis=2),
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
    node("MatMul", "q kt", "s"),
    node("Shape", "k", "n", start=2, end=3),
    node("Squeeze", "n", "n0"),
    node("Range", "a n0 b", "r"),
    node("Unsqueeze", "position two", "p"),
    node("LessOrEqual", "r p", "seen"),
    node("Unsqueeze", "seen one", "seen4"),
]
attend = [
    node("Softmax", "m", "w", axis=-1),
    node("Concat", "past_v q", "v", axis=2),
    node("MatMul", "w v", "o"),
    node("Transpose", "o", "ot", perm=[0, 2, 1, 3]),
    node("Reshape", "ot back", "y"),
]
shapes = [
    ints("to", 1, -1, 2, 8),
    ints("back", 1, -1, 16),
    ints("one", 1),
    ints("two", 2),
    number("low", -1e9),
    numpy_helper.from_array(np.int64(0), "a"),
    numpy_helper.from_array(np.int64(1), "b"),
]
per_row = [node("Abs", "x", "a"), node("ReduceMax", "a last", "s", keepdims=1), *quantized("s")]
branch = body(
    "t",
    [node("ReduceMax", "x last", "s", keepdims=1), *quantized("s")],
    [],
    "y",
    [*LIMITS, ints("last", -1)],
)
other = body("e", [node("Identity", "x", "z")], [], "z")
step = body("s", [node("Tanh", "e", "e2")], [value("e")], "e2")
HONEST: dict[str, tuple[Nodes, Nodes, dict[str, Any]]] = {
    "RMS norm spelled out": (
        [
            node("Mul", "x x", "s"),
            node("ReduceMean", "s last", "m", keepdims=1),
            node("Sqrt", "m", "r"),
            node("Div", "x r", "y"),
        ],
        [ints("last", -1)],
        {},
    ),
    "layer norm behind a transpose": (
        [
            *tr,
            node("ReduceMean", "t axis", "m", keepdims=1),
            node("Sub", "t m", "d"),
            node("Transpose", "d", "y", perm=[0, 2, 1]),
        ],
        [ints("axis", 1)],
        {},
    ),
    "LayerNormalization": ([node("LayerNormalization", "x g", "y", axis=-1)], [weight("g", 16)], {}),
    "scale of each row": (per_row, [*LIMITS, ints("last", -1)], {}),
    "scale of each row in a branch": (
        [node("If", "true", "y", then_branch=branch, else_branch=other)],
        [TRUE],
        {},
    ),
    "scan without a state": (
        [node("Scan", "x", "y", body=step, num_scan_inputs=1, scan_input_axes=[1])],
        [],
        {},
    ),
    "einsum of features": (
        [node("Einsum", "x w", "y", equation="brf,fg->brg")],
        [weight("w", 16, 4)],
        {},
    ),
    "pool of features": ([node("GlobalAveragePool", "x", "p"), node("Sub", "x p", "y")], [], {}),
    "pointwise convolution": (
        [*tr, node("Conv", "t w", "c", kernel_shape=[1]), node("Transpose", "c", "y", perm=[0, 2, 1])],
        [weight("w", 16, 16, 1)],
        {},
    ),
    "last row only": (
        [node("Slice", "x a b c", "s"), node("MatMul", "s w", "y")],
        [ints("a", -1), ints("b", 1 << 30), ints("c", 1), weight("w", 16, 4)],
        {},
    ),
    "old softmax of features": ([node("Softmax", "x", "y", axis=2)], [], {"opset": 12}),
    "router": (
        [node("MatMul", "x w", "g"), node("TopK", "g k", "v i"), node("Softmax", "v", "y", axis=-1)],
        [weight("w", 16, 4), ints("k", 2)],
        {},
    ),
    "explicit attention": ([*heads, *keys, node("Where", "seen4 s low", "m"), *attend], shapes, {}),
    "additive mask": (
        [*heads, *keys, node("Where", "seen4 s low", "bias"), node("Add", "s bias", "m"), *attend],
        shapes,
        {},
    ),
    "heads that share keys, folded into rows and back": (
        [
            *heads,
            node("Reshape", "q fold", "f"),
            node("MatMul", "f kk", "s"),
            node("Reshape", "s unfold", "u"),
            node("Transpose", "u", "ut", perm=[0, 2, 1, 3]),
            node("Reshape", "ut flat", "y"),
        ],
        [
            *shapes[:1],
            ints("fold", 1, 1, -1, 8),
            weight("kk", 1, 1, 8, 6),
            ints("unfold", 1, 2, -1, 6),
            ints("flat", 1, -1, 12),
        ],
        {},
    ),
    "groups of heads": (
        [
            node("Reshape", "x to", "h"),
            node("LayerNormalization", "h g", "n", axis=-1),
            node("Reshape", "n back", "y"),
        ],
        [*shapes[:2], weight("g", 8)],
        {},
    ),
}
