"""In which types an engine's layers run: what its inspector and its network say (R49)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from specc.cli.tables import format_types
from specc.exporter.tensorrt.layers import (
    Layer,
    find_strays,
    parse_type,
    read_engine_layers,
    read_network_layers,
    summarize_layers,
)


def told(name: str, kind: str, *reads: str) -> dict[str, Any]:
    """A layer as an engine's inspector tells it."""
    tensors = [{"Name": "t", "Dimensions": [1, 5, 64], "Format/Datatype": text} for text in reads]
    return {"Name": name, "LayerType": kind, "Inputs": tensors, "Outputs": [{"Format/Datatype": "Half"}]}


ENGINE = {
    "Layers": [
        told("model.layers.0.self_attn.qkv_proj/MatMul", "gemm", "Row major Int8 format", "Int8"),
        told("model.layers.0.mlp.down_proj/MatMul", "MatrixMultiply", "Row major linear FP16 format", "Half"),
        told("lm_head/MatMul", "gemm", "Half"),
        told("norm", "kgen", "Float"),
        "a layer whose engine was built without details",
    ]
}


def test_a_product_that_runs_in_another_type_is_named() -> None:
    """R49: the builder dropped one layer's Q/DQ; head and norm are as they should be."""
    found = summarize_layers(read_engine_layers(json.dumps(ENGINE)), "engine", "int8")
    assert found["kinds"]["product"] == {"fp16": 1, "fp16 x fp16": 1, "int8 x int8": 1}
    assert found["strays"] == ["model.layers.0.mlp.down_proj/MatMul (fp16 x fp16)"]
    assert "NOT as the scheme says: model.layers.0.mlp.down_proj" in format_types(found)
    good = {"Layers": [ENGINE["Layers"][0], *ENGINE["Layers"][2:]]}
    assert summarize_layers(read_engine_layers(json.dumps(good)), "engine", "int8")["strays"] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Half", "fp16"),
        ("Row major linear FP32", "fp32"),
        ("Channel vectorized row major Int8 format", "int8"),
        ("DataType.FP8", "fp8"),
        ("BFloat16", "bf16"),
        ("Int64", "int64"),
        ("odd", "odd"),
    ],
)
def test_names_of_types(text: str, name: str) -> None:
    """Every version of the library has its own words."""
    assert parse_type(text) == name


def tensor(name: str, kind: str) -> Any:
    return SimpleNamespace(name=name, dtype=f"DataType.{kind}")


def layer(kind: str, name: str, reads: list[Any], gives: list[Any]) -> Any:
    """A layer of a parsed network."""
    return SimpleNamespace(
        type=f"LayerType.{kind}",
        name=name,
        num_inputs=len(reads),
        num_outputs=len(gives),
        get_input=reads.__getitem__,
        get_output=gives.__getitem__,
    )


def network(*layers: Any) -> Any:
    return SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)


def test_the_network_tells_what_is_stored() -> None:
    """A product reads what its DequantizeLinear read, through layers that only move.

    A plain one reads its operands.
    """
    x, code, weight, moved = tensor("x", "FP8"), tensor("c", "INT4"), tensor("w", "HALF"), tensor("m", "HALF")
    a, out = tensor("a", "HALF"), tensor("y", "HALF")
    parts = [
        layer("DEQUANTIZE", "dq_w", [code, None], [weight]),
        layer("SHUFFLE", "broadcast", [weight], [moved]),
        layer("DEQUANTIZE", "dq_x", [x], [a]),
        layer("MATRIX_MULTIPLY", "model.layers.0.up", [a, moved], [out]),
        layer("MATRIX_MULTIPLY", "head", [out, out], [tensor("z", "HALF")]),
    ]
    found = read_network_layers(network(*parts))
    assert found[3] == Layer("model.layers.0.up", "MATRIX_MULTIPLY", ("fp8", "int4"), ("fp16",))
    assert found[4].reads == ("fp16", "fp16") and find_strays(found, "fp8") == []
    assert find_strays(read_network_layers(network(*parts[3:])), "fp8") == [
        "model.layers.0.up (fp16 x fp16)"
    ]  # Q/DQ are gone
