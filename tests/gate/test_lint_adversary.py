"""The lint judge against graphs that hide a coupling of rows, and against honest graphs that look
like one.
"""

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
from onnx import numpy_helper  # noqa: E402
from support.lint_graphs import (  # noqa: E402
    FLOAT,
    Nodes,
    ints,
    model,
    node,
    rename_values,
)
from support.lint_hidden import HIDDEN, LIMITS, quantized  # noqa: E402
from support.lint_honest import HONEST  # noqa: E402

from specc.cli import cli  # noqa: E402
from specc.gate.lint import lint_file, lint_model  # noqa: E402


@pytest.mark.parametrize("rows", ["R", "s77", 5])
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_coupling_is_found(name: str, rows: str | int) -> None:
    """R35: under names that say nothing, within other graphs, with a symbol or a number of rows."""
    nodes, weights, more = HIDDEN[name]
    found = lint_model(rename_values(model(nodes, weights, rows=rows, **more)))
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
        rename_values(
            model([*spelled[spelling], *quantized("s")], [*LIMITS, ints("to", 1, 1, -1), ints("k", 1)])
        )
    )
    assert found


@pytest.mark.parametrize("rows", ["R", "s77"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_graph_passes(name: str, rows: str) -> None:
    """No false alarm, under names that say nothing."""
    nodes, weights, more = HONEST[name]
    assert lint_model(rename_values(model(nodes, weights, rows=rows, **more))) == []


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
    options = ["-i", folder, "-o", made_by_genai, "-p", "int4", "-e", "cpu", "-c", tmp_path]
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    subprocess.run([*builder, *options], check=True, capture_output=True)
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
