"""Graphs that hide a coupling of rows: name -> nodes, weights, further arguments of model()."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from support.lint_graphs import (
    BOOL,
    FLOAT,
    INT64,
    Nodes,
    body,
    ints,
    node,
    number,
    value,
    weight,
)

TRUE = numpy_helper.from_array(np.array(True), "true")
ROW_SUM = [
    node("ConstantOfShape", "rows", "o"),
    node("Add", "o one", "ones"),
    node("Reshape", "ones line", "w"),
]
ROWS = [node("Shape", "input_ids", "rows", start=1)]


def quantized(scale: str, source: str = "x") -> Nodes:
    """Round(source / scale) * scale."""
    return [
        node("Div", f"{source} {scale}", "q0"),
        node("Round", "q0", "q1"),
        node("Clip", "q1 low high", "q2"),
        node("Mul", f"q2 {scale}", "y"),
    ]


LIMITS = [number("low", -127), number("high", 127), number("one", 1)]

branch = body("t", [node("ReduceMax", "x", "s", keepdims=0), *quantized("s")], [], "y", LIMITS)
other = body("e", [node("Identity", "x", "z")], [], "z")
total = body(
    "b",
    [node("Gather", "x i", "r", axis=1), node("Add", "acc r", "acc2"), node("Identity", "c", "c2")],
    [value("i", INT64, []), value("c", BOOL, []), value("acc", FLOAT, None)],
    "c2 acc2",
)
scan = body("s", [node("Add", "h e", "h2"), node("Identity", "h2", "e2")], [value("h"), value("e")], "h2 e2")
function = helper.make_function(
    "mine",
    "Norm",
    ["a"],
    ["b"],
    [node("ReduceMax", "a", "m"), node("Div", "a m", "b")],
    [helper.make_opsetid("", 20)],
)
inner = helper.make_function(
    "mine", "Outer", ["a"], ["b"], [node("Norm", "a", "b", "mine")], [helper.make_opsetid("mine", 1)]
)
tr = [node("Transpose", "x", "t", perm=[0, 2, 1])]
HIDDEN: dict[str, tuple[Nodes, Nodes, dict[str, Any]]] = {
    "If": ([node("If", "true", "y", then_branch=branch, else_branch=other)], [TRUE], {}),
    "Loop": (
        [
            *ROWS,
            node("Squeeze", "rows", "n"),
            node("Loop", "n true zeros", "acc3", body=total),
            node("Add", "x acc3", "y"),
        ],
        [TRUE, weight("zeros", 1, 16)],
        {},
    ),
    "Scan": (
        [node("Scan", "zeros x", "h3 y", body=scan, num_scan_inputs=1, scan_input_axes=[1])],
        [weight("zeros", 1, 16)],
        {},
    ),
    "function": ([node("Norm", "x", "y", "mine")], [], {"functions": [function]}),
    "nested function": ([node("Outer", "x", "y", "mine")], [], {"functions": [inner, function]}),
    "matmul with ones": (
        [
            *tr,
            *ROWS,
            *ROW_SUM,
            node("MatMul", "t w", "m"),
            node("Transpose", "m", "s", perm=[0, 2, 1]),
            node("Div", "x s", "y"),
        ],
        [number("one", 1), ints("line", -1, 1)],
        {},
    ),
    "global pool": (
        [
            *tr,
            node("GlobalAveragePool", "t", "p"),
            node("Transpose", "p", "s", perm=[0, 2, 1]),
            node("Sub", "x s", "y"),
        ],
        [],
        {},
    ),
    "conv over rows": (
        [*tr, node("Conv", "t w", "c", kernel_shape=[3]), node("Transpose", "c", "y", perm=[0, 2, 1])],
        [weight("w", 16, 16, 3)],
        {},
    ),
    "rows as channels": ([node("Conv", "x w", "y", kernel_shape=[1])], [weight("w", 5, 5, 1)], {}),
    "running sum": ([node("CumSum", "x axis", "y")], [ints("axis", 1)], {}),
    "einsum": (
        [
            node("Einsum", "x", "s", equation="brf->bf"),
            node("Unsqueeze", "s axis", "u"),
            node("Add", "x u", "y"),
        ],
        [ints("axis", 1)],
        {},
    ),
    "einsum of rows": ([node("Einsum", "x x", "y", equation="brf,bsf->bf")], [], {}),
    "first row": (
        [node("Slice", "x a b c", "s"), node("Div", "x s", "y")],
        [ints("a", -1), ints("b", 1 << 30), ints("c", 1)],
        {},
    ),
    "picked row": (
        [
            node("Gather", "x zero", "s", axis=1),
            node("Unsqueeze", "s axis", "u"),
            node("Mul", "x u", "y"),
        ],
        [numpy_helper.from_array(np.int64(0), "zero"), ints("axis", 1)],
        {},
    ),
    "shift": (
        [node("Slice", "x a b c", "s"), node("Concat", "w s", "y", axis=1)],
        [ints("a", 0), ints("b", -1), ints("c", 1), weight("w", 1, 1, 16)],
        {},
    ),
    "shift and add": (
        [node("Pad", "x p", "s"), node("Slice", "s a b c", "t"), node("Add", "x t", "y")],
        [ints("p", 0, 1, 0, 0, 0, 0), ints("a", 0), ints("b", -1), ints("c", 1)],
        {},
    ),
    "reversed": (
        [node("Slice", "x a b c d", "s"), node("Max", "x s", "y")],
        [ints("a", -1), ints("b", -(1 << 31)), ints("c", 1), ints("d", -1)],
        {},
    ),
    "halves": ([node("Split", "x", "a b", axis=1, num_outputs=2), node("Add", "a b", "y")], [], {}),
    "scrambled": (
        [
            node("Reshape", "x to", "s"),
            node("ReduceMax", "s axis", "m", keepdims=1),
            node("Div", "s m", "y"),
        ],
        [ints("to", 16, -1), ints("axis", 0)],
        {},
    ),
    "unfolded the other way round": (
        [
            *tr,
            node("Reshape", "t to", "f"),
            node("Reshape", "f back", "s"),
            node("ReduceMax", "s axis", "m", keepdims=1),
            node("Div", "s m", "y"),
        ],
        [ints("to", 1, -1), ints("back", 1, -1, 16), ints("axis", 2)],
        {},
    ),
    "sorted rows": (
        [*tr, node("TopK", "t k", "v i"), node("Transpose", "v", "y", perm=[0, 2, 1])],
        [ints("k", 2)],
        {},
    ),
    "flat argmax": (
        [node("Reshape", "x to", "f"), node("ArgMax", "f", "y", axis=1)],
        [ints("to", 1, -1)],
        {},
    ),
    "old softmax": ([node("Softmax", "x", "y", axis=1)], [], {"opset": 12}),
    "capacity": (
        [
            node("Softmax", "x", "p", axis=-1),
            *tr,
            node("TopK", "t k", "v i", axis=-1),
            node("ReduceSum", "v last", "s"),
            node("Transpose", "s", "u", perm=[0, 2, 1]),
            node("Mul", "p u", "y"),
        ],
        [ints("k", 4), ints("last", -1)],
        {},
    ),
    "group norm of rows": (
        [node("GroupNormalization", "x g g", "y", num_groups=1)],
        [weight("g", 1)],
        {},
    ),
    "attention without mask": (
        [*tr, node("MatMul", "x t", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p x", "y")],
        [],
        {},
    ),
    "standard attention without mask": (
        [node("Unsqueeze", "x axis", "u"), node("Attention", "u u u", "y")],
        [ints("axis", 1)],
        {"opset": 23},
    ),
    "mask from data": (
        [
            *tr,
            node("MatMul", "x t", "s"),
            node("Greater", "s one", "g"),
            node("Where", "g s one", "m"),
            node("Softmax", "m", "p", axis=-1),
            node("MatMul", "p x", "y"),
        ],
        [number("one", 1)],
        {},
    ),
    "cumulative matmul": (
        [
            *ROWS,
            node("Range", "a n b", "r"),
            node("Unsqueeze", "r zero", "c"),
            node("LessOrEqual", "c position", "m"),
            node("Cast", "m", "f", to=FLOAT),
            node("MatMul", "f x", "y"),
        ],
        [ints("zero", 1), ints("a", 0), ints("b", 1), ints("n", 4)],
        {},
    ),
    "batch statistics": (
        [node("ReduceMax", "x axis", "m", keepdims=1), node("Div", "x m", "y")],
        [ints("axis", 0)],
        {"batch": "batch"},
    ),
    "random in a branch": (
        [
            node(
                "If",
                "true",
                "y",
                then_branch=body(
                    "t", [node("RandomNormal", "", "r", shape=[16]), node("Add", "x r", "y")], [], "y"
                ),
                else_branch=other,
            )
        ],
        [TRUE],
        {},
    ),
    "scale by the last position": (
        [
            node("ReduceMax", "position", "m", keepdims=0),
            node("Cast", "m", "f", to=FLOAT),
            node("Div", "x f", "y"),
        ],
        [],
        {},
    ),
    "written by an index": (
        [node("NonZero", "x", "i"), node("ScatterND", "x i w", "y")],
        [weight("w", 16)],
        {},
    ),
    "int8 products": (
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node("MatMulInteger", "q w z", "i"),
            node("Cast", "i", "f", to=FLOAT),
            node("Mul", "f s", "y"),
        ],
        [numpy_helper.from_array(np.ones((16, 16), np.int8), "w")],
        {},
    ),
}
