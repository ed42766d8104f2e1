"""The lint judge against graphs that hide a coupling of rows, and against honest graphs that look like one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from click.testing import CliRunner  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from support.lint_graphs import (  # noqa: E402
    BOOL,
    FLOAT,
    INT64,
    Nodes,
    body,
    ints,
    model,
    node,
    number,
    renamed,
    value,
    weight,
)

from specc.cli import cli  # noqa: E402
from specc.gate.lint import lint_file, lint_model  # noqa: E402

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


def hidden() -> dict[str, tuple[Nodes, Nodes, dict[str, Any]]]:
    """Couplings in disguise: name -> nodes, weights, further arguments of model()."""
    branch = body("t", [node("ReduceMax", "x", "s", keepdims=0), *quantized("s")], [], "y", LIMITS)
    other = body("e", [node("Identity", "x", "z")], [], "z")
    total = body(
        "b",
        [node("Gather", "x i", "r", axis=1), node("Add", "acc r", "acc2"), node("Identity", "c", "c2")],
        [value("i", INT64, []), value("c", BOOL, []), value("acc", FLOAT, None)],
        "c2 acc2",
    )
    scan = body(
        "s", [node("Add", "h e", "h2"), node("Identity", "h2", "e2")], [value("h"), value("e")], "h2 e2"
    )
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
    return {
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


@pytest.mark.parametrize("rows", ["R", "s77", 5])
@pytest.mark.parametrize("name", hidden())
def test_hidden_coupling_is_found(name: str, rows: str | int) -> None:
    """R35: under names that say nothing, within other graphs, with a symbol or a number of rows."""
    nodes, weights, more = hidden()[name]
    found = lint_model(renamed(model(nodes, weights, rows=rows, **more)))
    assert found
    assert all(finding.node and finding.op and finding.why and finding.fix for finding in found)


@pytest.mark.parametrize(
    "spelling", ["ReduceMax", "TopK", "MaxPool", "GlobalMaxPool", "Max of parts", "ReduceL2"]
)
def test_quantization_in_any_spelling(spelling: str) -> None:
    """R35: one scale of the whole call, by ops that have nothing in their names of a quantization."""
    flat = [node("Abs", "x", "a"), node("Reshape", "a to", "f")]
    spelled: dict[str, Nodes] = {
        "ReduceMax": [*flat, node("ReduceMax", "f", "s", keepdims=0)],
        "TopK": [*flat, node("TopK", "f k", "v i", axis=-1), node("Squeeze", "v", "s")],
        "MaxPool": [*flat, node("MaxPool", "f", "s", kernel_shape=[80])],
        "GlobalMaxPool": [*flat, node("GlobalMaxPool", "f", "s")],
        "Max of parts": [
            *flat,
            node("Split", "f", "a1 a2", axis=2, num_outputs=2),
            node("Max", "a1 a2", "m"),
            node("ReduceMax", "m", "s", keepdims=0),
        ],
        "ReduceL2": [*flat, node("ReduceL2", "f", "s", keepdims=0)],
    }
    found = lint_model(
        renamed(model([*spelled[spelling], *quantized("s")], [*LIMITS, ints("to", 1, 1, -1), ints("k", 1)]))
    )
    assert found


def honest() -> dict[str, tuple[Nodes, Nodes, dict[str, Any]]]:
    """Rows apart, in ways that look like a coupling."""
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
    return {
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


@pytest.mark.parametrize("rows", ["R", "s77"])
@pytest.mark.parametrize("name", honest())
def test_honest_graph_passes(name: str, rows: str) -> None:
    """No false alarm, under names that say nothing."""
    nodes, weights, more = honest()[name]
    assert lint_model(renamed(model(nodes, weights, rows=rows, **more))) == []


def half_model() -> Any:
    """A product in float16."""
    return model(
        [
            node("Cast", "x", "h", to=onnx.TensorProto.FLOAT16),
            node("MatMul", "h w", "m"),
            node("Cast", "m", "y", to=FLOAT),
        ],
        [numpy_helper.from_array(np.ones((16, 4), np.float16), "w")],
    )


def test_types_and_operators_of_the_engine() -> None:
    """float16 on the CPU engine; com.microsoft's operators, and integer ones, on TensorRT."""
    assert [f.op for f in lint_model(half_model(), "ort")] == ["MatMul"]
    assert lint_model(half_model(), "tensorrt") == []
    ours = model([node("FastGelu", "x", "y", "com.microsoft")], [])
    assert lint_model(ours, "ort") == []
    assert "run by another engine" in lint_model(ours, "tensorrt")[0].why


@pytest.mark.slow
def test_graphs_of_others_pass(tmp_path: Path) -> None:
    """What onnxruntime-genai and torch make of a tiny decoder with a cache."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime_genai.models.builder")
    from support.tiny import tiny_folder, tiny_model

    folder, made_by_genai = tiny_folder(tmp_path / "tiny"), tmp_path / "g"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-i",
            folder,
            "-o",
            made_by_genai,
            "-p",
            "int4",
            "-e",
            "cpu",
            "-c",
            tmp_path,
        ],
        check=True,
        capture_output=True,
    )
    assert lint_file(made_by_genai / "model.onnx") == []
    from transformers import DynamicCache

    decoder = tiny_model()

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any, attention_mask: Any, past: Any) -> Any:
            cache = DynamicCache()
            for i in range(2):
                cache.update(past[2 * i], past[2 * i + 1], i)
            return decoder(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache).logits

    auto = torch.export.Dim.AUTO
    shapes = ({0: auto, 1: auto}, {0: auto, 1: auto}, [{0: auto, 2: auto}] * 4)
    past = [torch.randn(2, 2, 5, 16) for _ in range(4)]
    ids, mask = torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)
    for dynamic in (shapes, None):
        made = torch.onnx.export(
            Step(),
            (ids, mask, past),
            dynamo=True,
            dynamic_shapes=dynamic,
            verbose=False,
            input_names=["input_ids", "attention_mask", *(f"past.{i}" for i in range(4))],
        )
        made.save(tmp_path / "hf.onnx")
        assert lint_file(tmp_path / "hf.onnx") == []


def test_lint_only(tmp_path: Path) -> None:
    """`specc gate --lint-only FILE`: 0 and 1, JSON and table, a sentence for what is no ONNX."""
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    onnx.save(model([node("Tanh", "x", "y")], []), good)
    onnx.save(model([node("CumSum", "x axis", "y")], [ints("axis", 1)]), bad)
    run = CliRunner().invoke
    done = run(cli, ["gate", "--lint-only", str(good), "--json"], standalone_mode=False)
    assert (done.return_value, json.loads(done.output)["verdict"]) == (0, "passed")
    done = run(cli, ["gate", "--lint-only", str(bad), "--json"], standalone_mode=False)
    assert done.return_value == 1
    assert {"node", "op", "why", "fix"} == set(json.loads(done.output)["findings"][0])
    table = run(cli, ["gate", "--lint-only", str(bad)], standalone_mode=False).output
    assert "CumSum" in table and "n_y" in table
    (tmp_path / "text.onnx").write_text("no graph")
    done = run(cli, ["gate", "--lint-only", str(tmp_path / "text.onnx")], standalone_mode=False)
    assert "cannot be read as ONNX" in str(done.exception)
