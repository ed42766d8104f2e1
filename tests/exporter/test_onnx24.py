"""The `onnx24` dialect and its older spelling, on ONNX Runtime's CPU, against the Hugging Face module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from support import tiny

pytest.importorskip("torch")

from specc.contracts.scheme import Scheme  # noqa: E402
from specc.errors import InputError  # noqa: E402
from specc.exporter.check.float_twin import make_float_twin  # noqa: E402
from specc.exporter.check.logits import FLOAT_BOUND, mean_divergence, relative_error  # noqa: E402
from specc.exporter.checkpoint.codes import dequantize_codes  # noqa: E402
from specc.exporter.graph.files import write_graph  # noqa: E402
from specc.exporter.graph.graph import read_constant  # noqa: E402
from specc.exporter.graph.session import make_session_options, open_runner, wrap_session  # noqa: E402
from specc.exporter.lower.cpu_weights import CpuWeights  # noqa: E402
from specc.exporter.lower.onnx24 import lower_onnx24  # noqa: E402
from specc.exporter.lower.qdq_weights import quantize_columns, quantize_symmetric  # noqa: E402

HALF_BOUND = 5e-3  # largest logit difference over the largest logit, products and caches in half precision
SPELLINGS = pytest.mark.parametrize("opset24", [True, False], ids=["opset24", "older"])


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, fused float graph) of a tied tiny model."""
    folder = tiny.tiny_folder(tmp_path_factory.mktemp(request.param), request.param)
    return folder, tiny.float_graph(folder)


def lowered(
    graph: Any, scheme: str = "fp16", dtype: str = "fp16", opset24: bool = True, block: int = 32
) -> Any:
    """The graph in the dialect."""
    return lower_onnx24(graph, Scheme(scheme, scheme, block), dtype, opset24, None)


def rows_after(run: Any, ids: np.ndarray, past: int, chunk: int = 4) -> np.ndarray:
    """Logits of ids[past:] in one call, after a prefill in chunks."""
    run.prefill(ids[:past], chunk=chunk)
    logits: np.ndarray = run.call(ids[past:], past)
    return logits


@SPELLINGS
def test_float_graph_equals_the_module(model: Any, opset24: bool) -> None:
    """Several rows with a past, one by one, and again after a rollback."""
    folder, graph = model
    ids = tiny.some_ids(15)
    run, wanted = open_runner(lowered(graph, "fp32", "fp32", opset24), 1), tiny.float_rows(folder, ids)
    assert relative_error(rows_after(run, ids, 10), wanted[10:]) < FLOAT_BOUND
    run.call(ids[:3], 12)  # a proposal that is dropped
    singly = np.concatenate([run.call(ids[i : i + 1], i) for i in range(10, 15)])
    assert relative_error(singly, wanted[10:]) < FLOAT_BOUND


@SPELLINGS
@pytest.mark.parametrize(("scheme", "kl"), [("fp16", 1e-5), ("w8", 1e-3), ("w4", 0.1)])
def test_half_and_quantized_graphs_stay_near(model: Any, opset24: bool, scheme: str, kl: float) -> None:
    """Nats a row against the float module; logits are fp32 and finite."""
    folder, graph = model
    ids = tiny.some_ids(15)
    got, wanted = (
        rows_after(open_runner(lowered(graph, scheme, opset24=opset24), 1), ids, 10),
        tiny.float_rows(folder, ids),
    )
    assert got.dtype == np.float32 and np.isfinite(got).all()
    assert mean_divergence(got, wanted[10:]) < kl
    if scheme == "fp16":
        assert relative_error(got, wanted[10:]) < HALF_BOUND


@pytest.mark.parametrize(("scheme", "kl"), [("fp16", 5e-3), ("w4", 0.1)])
def test_float8_caches_stay_near_and_chunks_do_not_matter(model: Any, scheme: str, kl: float) -> None:
    """A row reads of its own keys and values what later rows will read from the cache: bits as if one by
    one.
    """
    folder, graph = model
    ids = tiny.some_ids(15)
    made = lower_onnx24(graph, Scheme(scheme, scheme, 32), "fp16", False, None, None, "fp8")
    values = (*made.model.graph.inputs, *made.model.graph.outputs)
    kinds = {value.name.partition(".")[0]: str(value.dtype) for value in values}
    assert kinds["rows_k"] == kinds["rows_v"] == kinds["past_k"] == "FLOAT8E4M3FN"
    run = open_runner(made, 1)
    got, wanted = rows_after(run, ids, 10), tiny.float_rows(folder, ids)
    assert mean_divergence(got, wanted[10:]) < kl
    assert np.array_equal(np.concatenate([run.call(ids[i : i + 1], i) for i in range(10, 15)]), got)


@SPELLINGS
def test_bfloat16_says_the_same(model: Any, opset24: bool) -> None:
    """CPUs have no bfloat16 operators here: its twin runs."""
    folder, graph = model
    ids = tiny.some_ids(15)
    twin = make_float_twin(lowered(graph, "bf16", "bf16", opset24))
    got = rows_after(open_runner(twin, 1), ids, 10)
    assert relative_error(got, tiny.float_rows(folder, ids)[10:]) < 0.05


@SPELLINGS
def test_only_standard_operators_and_caches_in_half(model: Any, opset24: bool) -> None:
    """Nothing of ONNX Runtime's own domain is left; the cache's rule is told by its outputs' names."""
    graph = lowered(model[1], "w4", opset24=opset24).model.graph
    assert {node.domain for node in graph} == {""}
    assert dict(graph.opset_imports) == {"": 24 if opset24 else 21}
    kinds = {value.name.partition(".")[0]: str(value.dtype) for value in (*graph.inputs, *graph.outputs)}
    written = "present" if opset24 else "rows"
    assert kinds[f"{written}_k"] == kinds[f"{written}_v"] == kinds["past_k"] == "FLOAT16"
    assert kinds["logits"] == "FLOAT" and kinds["past_len"] == "INT64"


@SPELLINGS
def test_stale_entries_are_not_seen(model: Any, opset24: bool) -> None:
    """Finite garbage behind the rows changes nothing (zeroed buffers keep NaN out, which no mask stops)."""
    ids, graph = tiny.some_ids(12), lowered(model[1], opset24=opset24)
    clean, dirty = open_runner(graph, 1), open_runner(graph, 1)
    for array in dirty.caches.values():
        array[:] = 3e4
    assert np.array_equal(rows_after(clean, ids, 8), rows_after(dirty, ids, 8))


@SPELLINGS
def test_a_large_residual_stream_stays_finite(opset24: bool, tmp_path: Path) -> None:
    """R45: 400 squared is beyond half precision; norms are fp32 by rule. The control squares in half."""
    folder = tiny.tiny_folder(tmp_path, tie_word_embeddings=False)
    graph = tiny.float_graph(folder)
    for node in graph.model.graph:
        if node.op_type == "Gather" and read_constant(node.inputs[0]) is not None:
            table = np.asarray(read_constant(node.inputs[0])) * np.float32(4000)
            node.inputs[0].const_value = ir.tensor(table, name=node.inputs[0].name)
    ids = tiny.some_ids(10)
    wanted = rows_after(open_runner(graph, 1), ids, 6)
    good = lowered(graph, opset24=opset24)
    assert relative_error(rows_after(open_runner(good, 1), ids, 6), wanted) < HALF_BOUND
    fault = open_runner(squared_in_half(lowered(graph, opset24=False)), 1)
    assert not relative_error(rows_after(fault, ids, 6), wanted) < 0.1  # junk or not a number


def squared_in_half(graph: Any) -> Any:
    """The fault: each norm's square overflows as half precision does (spelled out, since ONNX Runtime
    widens it).
    """
    from specc.exporter.graph.emitter import Emitter

    for node in list(graph.model.graph):
        if node.op_type == "ReduceMean":
            emit, square = Emitter(graph.model.graph, node, "fault"), node.inputs[0]
            limit, infinite = (emit.constant(f"fault_{x}", np.array(x, np.float32)) for x in (65504, np.inf))
            node.replace_input_with(0, emit.op("Where", emit.op("Greater", square, limit), infinite, square))
    return graph


def test_int4_blocks_keep_their_minimum(model: Any) -> None:
    """w4 with minima is the very weight that its codes stand for: the fp16 graph of that weight agrees."""
    ids, (_, graph) = tiny.some_ids(12), model
    got = rows_after(open_runner(lowered(graph, "w4"), 1), ids, 8)
    weights = CpuWeights(Scheme("w4", "w4", 32), None)
    for node in graph.model.graph:
        if node.op_type in ("MatMul", "Gemm"):
            weight, turned = node.inputs[1], node.op_type == "Gemm"
            array = np.asarray(weight.const_value.numpy())
            codes = weights.codes(
                str(weight.name), np.ascontiguousarray(array if turned else array.T), turned
            )
            assert codes is not None and codes.minima is not None
    same = replaced(graph, {name: dequantize_codes(codes) for name, codes in weights.by_name.items()})
    assert relative_error(got, rows_after(open_runner(lowered(same), 1), ids, 8)) < HALF_BOUND


def replaced(graph: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The graph with other numbers in its products' weights [n, k]; the embedding keeps its own."""
    from specc.exporter.graph.graph import add_initializer, copy_graph

    out = copy_graph(graph)
    for node in out.model.graph:
        if node.op_type in ("MatMul", "Gemm"):
            array = arrays[str(node.inputs[1].name)]
            array = array if node.op_type == "Gemm" else np.ascontiguousarray(array.T)
            value: ir.Value = add_initializer(out.model.graph, f"{node.inputs[1].name}.other", array)
            node.replace_input_with(1, value)
    return out


def test_wider_blocks_are_symmetric(model: Any) -> None:
    """Blocks of 64 have no minimum; inputs that are no multiple of a block stay in half precision."""
    graph = lowered(model[1], "w4", block=64).model.graph
    weights = {node.op_type for node in graph if node.op_type == "DequantizeLinear"}
    blocks = {node.attributes["block_size"].as_int() for node in graph if node.op_type == "DequantizeLinear"}
    assert weights and blocks == {64} and not any(node.op_type == "ReduceSum" for node in graph)
    assert any(name.endswith("down_proj.weight.half") for name in graph.initializers)  # 160 inputs


def test_symmetric_codes_are_the_nearest() -> None:
    """Codes -8..7; weights that lie on such a grid come back as they are, whichever sign the largest has."""
    rng = np.random.default_rng(5)
    for sign in (1, -1):
        codes = rng.integers(-7, 8, (4, 128)).astype(np.float32)
        codes[:, ::64] = -8 * sign  # the largest magnitude of each block
        weight = codes * np.float32(0.037)
        found, scales = quantize_symmetric(weight, 64)
        assert found.min() >= -8 and found.max() <= 7
        assert np.allclose(found.reshape(4, 2, 64) * scales[..., None], weight.reshape(4, 2, 64), atol=1e-6)


def test_columns_of_zeros_and_of_tiny_numbers() -> None:
    """An output of zeros stays zero; scales are finite in half precision."""
    weight = np.stack([np.zeros(32), np.full(32, 1e-9), np.linspace(-4, 4, 32)], axis=1).astype(np.float32)
    codes, scales = quantize_columns(weight)
    assert (codes[:, 0] == 0).all() and np.isfinite(scales).all() and (scales > 0).all()
    assert np.abs(codes * scales - weight).max() < 0.04


def test_a_written_graph_is_the_one_that_was_checked(model: Any, tmp_path: Path) -> None:
    """Packed int4 goes through the file two codes a byte."""
    import onnxruntime as ort

    ids, graph = tiny.some_ids(10), lowered(model[1], "w4")
    write_graph(graph, tmp_path, "target")
    opened = wrap_session(ort.InferenceSession(str(tmp_path / "target.onnx"), make_session_options(1)))
    assert np.array_equal(rows_after(opened, ids, 6), rows_after(open_runner(graph, 1), ids, 6))
    half = lowered(model[1])
    write_graph(half, tmp_path, "half")
    assert (tmp_path / "target.onnx.data").stat().st_size < 0.75 * (
        tmp_path / "half.onnx.data"
    ).stat().st_size


@SPELLINGS
def test_the_lint_can_follow_the_rows(model: Any, opset24: bool, tmp_path: Path) -> None:
    """No finding, so speculation is not off for a fault that is none; half precision is no fault on a GPU."""
    from specc.exporter.lower.ort_half import lower_ort_half
    from specc.gate.lint import lint_file

    write_graph(lowered(model[1], "w4", opset24=opset24), tmp_path, "target")
    write_graph(lower_ort_half(model[1], Scheme("w4", "fp16", 32)), tmp_path, "cuda")
    assert lint_file(tmp_path / "target.onnx", "tensorrt") == [] == lint_file(tmp_path / "cuda.onnx", "cuda")


def test_schemes_without_a_spelling(model: Any) -> None:
    """R47: a scheme of another dialect is named, with those that there are."""
    with pytest.raises(InputError, match="no spelling for the scheme 'dynamic-int8'; use one of fp32, fp16"):
        lowered(model[1], "dynamic-int8")


def test_parts_that_standard_operators_lack(model: Any) -> None:
    """R47: what is left of ONNX Runtime's own operators is named before any builder sees it."""
    from specc.exporter.graph.graph import copy_graph, insert_before
    from specc.exporter.lower.onnx24 import check_standard

    broken = copy_graph(model[1])
    first = next(iter(broken.model.graph))
    insert_before(first, ir.node("BiasGelu", [broken.model.graph.inputs[0]], domain="com.microsoft"))
    with pytest.raises(InputError, match="BiasGelu"):
        check_standard(broken)
