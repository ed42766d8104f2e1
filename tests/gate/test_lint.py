"""The lint judge: row coupling in any spelling is found, rows that are apart pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specc.errors import InputError
from specc.gate.lint import lint_file, lint_model

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from support.lint_graphs import INT32, Nodes, ints, model, node, weight  # noqa: E402


def ops(found: Any) -> list[str]:
    return [finding.op for finding in found]


def scale(reduced: str, axes: tuple[int, ...] | None) -> tuple[Nodes, Nodes]:
    """Dynamic quantization spelled out: the scale from ReduceMax and ReduceMin of `reduced`."""
    more = [ints("axes", *axes)] if axes is not None else []
    tail = " axes" if axes is not None else ""
    nodes = [
        node("ReduceMax", f"{reduced}{tail}", "high", keepdims=1),
        node("ReduceMin", f"{reduced}{tail}", "low", keepdims=1),
        node("Sub", "high low", "range"),
        node("Div", "range levels", "scale"),
        node("Div", "x scale", "scaled"),
        node("Round", "scaled", "rounded"),
        node("Clip", "rounded zero levels", "clipped"),
        node("Mul", "clipped scale", "y"),
    ]
    scalars = [
        numpy_helper.from_array(np.float32(255), "levels"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    return nodes, [*scalars, *more]


@pytest.mark.parametrize("rows", ["R", "sequence_length", "s77"])
def test_clean_decoder_passes(rows: str) -> None:
    """MatMulNBits and GroupQueryAttention with norms, rotary, a gated block and selected rows."""
    ms, attention_inputs = "com.microsoft", "qkv - - past_k past_v lens total cos sin"
    nodes = [
        node("SimplifiedLayerNormalization", "x gain", "normed", axis=-1, epsilon=1e-5),
        node("MatMulNBits", "normed packed scales", "qkv", ms, K=16, N=64, bits=4, block_size=16),
        node("Cast", "past_len", "past", to=INT32),
        node("Shape", "input_ids", "shape", start=1),
        node("Cast", "shape", "count", to=INT32),
        node("Add", "past count", "total"),
        node("Sub", "total one", "lens"),
        node("GroupQueryAttention", attention_inputs, "att k v", ms, num_heads=4, kv_num_heads=2),
        node("MatMul", "att wo", "proj"),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["proj", "x", "gain"], ["h", "", "", "sum"], domain=ms
        ),
        node("MatMul", "h up", "u"),
        node("Sigmoid", "u", "s"),
        node("Mul", "u s", "g"),
        node("MatMul", "g down", "d"),
        node("Add", "d sum", "out"),
        node("Gather", "out logit_rows", "chosen", axis=1),
        node("Squeeze", "chosen zero", "flat"),
        node("ReduceMean", "flat last", "mean", keepdims=1),
        node("Sub", "flat mean", "y"),
    ]
    weights = [
        weight("gain", 16),
        weight("packed", 64, 1, 8),
        weight("scales", 64),
        weight("wo", 32, 16),
        weight("up", 16, 32),
        weight("down", 32, 16),
        weight("cos", 64, 4),
        weight("sin", 64, 4),
        numpy_helper.from_array(np.array([1], np.int32), "one"),
        ints("zero", 0),
        ints("last", -1),
    ]
    assert lint_model(model(nodes, weights, rows=rows)) == []


def own(op: str, ins: str, outs: str, **attributes: Any) -> Any:
    """A node of domain `specc`."""
    return node(op, ins, outs, "specc", **attributes)


def own_weights() -> Nodes:
    return [weight("packed", 64), weight("gain", 16), weight("cos", 64, 4), weight("sin", 64, 4)]


def test_own_operators_pass() -> None:
    """A decoder layer in the operators of domain `specc`, with norm, residual and gate, and selected rows."""
    embedding = own("Embedding", "input_ids packed", "e", kind=0)
    embedding.attribute.extend([helper.make_attribute("inputs", 16), helper.make_attribute("outputs", 32)])
    nodes = [
        embedding,
        own("MatMul", "e packed gain", "qkv", kept=64),
        own("MatMul", "att packed - - e", "h", kept=16),
        own("MatMul", "h packed gain", "g", kept=32, gate=1),
        own("MatMul", "g packed - - h", "out", kept=16),
        node("Gather", "out logit_rows", "chosen", axis=1),
        node("Squeeze", "chosen zero", "flat"),
        own("MatMul", "flat packed gain", "y", kept=32),
    ]
    attention = own(
        "Attention", "qkv past_k past_v past_len position cos sin", "att k v", heads=4, kv_heads=2
    )
    nodes.insert(2, attention)
    assert lint_model(model(nodes, [*own_weights(), ints("zero", 0)])) == []


OWN_FAULTS: dict[str, Nodes] = {
    "summed over rows": [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        own("MatMul", "t packed", "y", kept=16),
    ],
    "weights from rows": [own("MatMul", "x x", "y", kept=16)],
    "rows as features": [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        own("Attention", "t past_k past_v past_len position cos sin", "y", heads=1, kv_heads=1),
    ],
    "no such operator": [own("Softmax", "x", "y")],
    "another's MatMul": [node("MatMul", "x packed", "y", "com.example")],
}


@pytest.mark.parametrize("name", OWN_FAULTS)
def test_own_operators_are_judged(name: str) -> None:
    """Names collide: a MatMul or Softmax of another domain is not ONNX's."""
    assert ops(lint_model(model(OWN_FAULTS[name], own_weights()))) == [OWN_FAULTS[name][-1].op_type]


def test_quantize_dynamic_is_found(tmp_path: Path) -> None:
    """R35: what onnxruntime's quantize_dynamic makes, one finding for each activation."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    nodes = [
        node("Tanh", "x", "a"),
        node("MatMul", "a w1", "h"),
        node("Relu", "h", "r"),
        node("MatMul", "r w2", "y"),
    ]
    onnx.save(model(nodes, [weight("w1", 16, 32), weight("w2", 32, 16)]), tmp_path / "float.onnx")
    assert lint_file(tmp_path / "float.onnx") == []
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    found = lint_file(tmp_path / "int8.onnx")
    assert ops(found) == ["DynamicQuantizeLinear"] * 2
    assert "per tensor" in found[0].why
    assert "row" in found[0].fix


@pytest.mark.parametrize("axes", [None, (1,), (0, 1, 2), (-2,), (-1, 1)])
def test_spelled_quantization_is_found(axes: tuple[int, ...] | None) -> None:
    """R35: ReduceMax, Div, Round, Clip over rows is the same fault under other names."""
    assert ops(lint_model(model(*scale("x", axes)))) == ["ReduceMax", "ReduceMin"]


@pytest.mark.parametrize("axes", [(2,), (-1,), (0,)])
def test_scale_of_each_row_passes(axes: tuple[int, ...]) -> None:
    """A scale for each row keeps rows apart."""
    assert lint_model(model(*scale("x", axes))) == []


@pytest.mark.parametrize("target", [(-1,), (1, -1), (0, -1), (16, -1)])
def test_coupling_through_reshape_is_found(target: tuple[int, ...]) -> None:
    """Rows folded into another axis are still rows."""
    nodes, weights = scale("flat", (len(target) - 1,))
    reshape = node("Reshape", "x target", "flat")
    found = lint_model(model([reshape, *nodes], [ints("target", *target), *weights]))
    assert ops(found)[:2] == ["ReduceMax", "ReduceMin"]


def test_shape_computed_reshape_passes() -> None:
    """Heads split off and joined with shapes that are computed from Shape."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Slice", "shape zero two", "lead"),
        node("Concat", "lead heads", "to", axis=0),
        node("Reshape", "x to", "split"),
        node("Transpose", "split", "t", perm=[0, 2, 1, 3]),
        node("Softmax", "t", "soft", axis=-1),
        node("Transpose", "soft", "back", perm=[0, 2, 1, 3]),
        node("Concat", "lead whole", "from", axis=0),
        node("Reshape", "back from", "y"),
    ]
    weights = [ints("zero", 0), ints("two", 2), ints("heads", 4, 4), ints("whole", 16)]
    assert lint_model(model(nodes, weights)) == []


COUPLED: dict[str, tuple[Nodes, Nodes]] = {
    "TopK": ([node("TopK", "x k", "v y", axis=1)], [ints("k", 2)]),
    "Softmax": ([node("Softmax", "x", "y", axis=1)], []),
    "CumSum": ([node("CumSum", "x axis", "y")], [ints("axis", 1)]),
    "ArgMax": ([node("ArgMax", "x", "y", axis=1)], []),
    "MatMul": ([node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "t x", "y")], []),
    "Gemm": ([node("Reshape", "x to", "two"), node("Gemm", "two two", "y", transA=1)], [ints("to", -1, 16)]),
    "MatMulNBits": (
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("MatMulNBits", "t w s", "y", "com.microsoft", K=16, N=16),
        ],
        [weight("w", 8), weight("s", 1)],
    ),
    "RandomNormalLike": ([node("RandomNormalLike", "x", "y")], []),
    "ReduceMax": ([node("ReduceMax", "position", "y")], []),
    "LayerNormalization": ([node("LayerNormalization", "x g", "y", axis=1)], [weight("g", 16)]),
    "NonZero": ([node("NonZero", "x", "y")], []),
    "MultiHeadAttention": ([node("MultiHeadAttention", "x x x", "y", "com.microsoft", num_heads=2)], []),
    "DynamicQuantizeMatMul": (
        [node("DynamicQuantizeMatMul", "x w s", "y", "com.microsoft")],
        [weight("w", 16, 16), weight("s", 16)],
    ),
    "Mystery": ([node("Mystery", "x", "y", "com.example")], []),
}


@pytest.mark.parametrize("op", COUPLED)
def test_coupling_is_found(op: str) -> None:
    """Each names the node, says why and what to do."""
    found = lint_model(model(*COUPLED[op]))
    assert op in ops(found)
    assert all(finding.node and finding.why and finding.fix for finding in found)


@pytest.mark.parametrize("op", ["TopK", "Softmax", "ArgMax"])
def test_feature_axis_passes(op: str) -> None:
    """The same ops along features keep rows apart."""
    nodes, weights = COUPLED[op]
    ours = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    next(a for a in ours[0].attribute if a.name == "axis").i = -1
    assert lint_model(model(ours, weights)) == []


def test_reduction_over_the_written_cache_is_found() -> None:
    """A scale over the cache reads the rows that this call wrote."""
    nodes = [
        node("Reshape", "x to", "new"),
        node("Transpose", "new", "t", perm=[0, 2, 1, 3]),
        node("Concat", "past_k t", "all", axis=2),
        node("ReduceMax", "all axes", "y"),
    ]
    assert ops(lint_model(model(nodes, [ints("to", 1, -1, 2, 8), ints("axes", 2)]))) == ["ReduceMax"]


def test_bfloat16_is_found() -> None:
    """R34's kind: a type without kernels on this engine."""
    nodes = [
        node("Cast", "x", "half", to=TensorProto.BFLOAT16),
        node("Cast", "half", "y", to=TensorProto.FLOAT),
    ]
    assert ops(lint_model(model(nodes, []))) == ["Cast"]


def test_bad_files(tmp_path: Path) -> None:
    """One sentence each."""
    with pytest.raises(InputError, match="no ONNX file"):
        lint_file(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"not a model at all")
    with pytest.raises(InputError, match="cannot be read"):
        lint_file(tmp_path / "bad.onnx")
