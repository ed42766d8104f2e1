"""The `ort` dialect: every scheme of a tiny model against the float module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import tiny

pytest.importorskip("torch")

from specc.contracts.scheme import Scheme  # noqa: E402
from specc.errors import InputError  # noqa: E402
from specc.exporter.check.logits import mean_divergence  # noqa: E402
from specc.exporter.graph.session import open_runner  # noqa: E402
from specc.exporter.lower.ort import lower_ort  # noqa: E402


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied tiny Llama."""
    folder: Path = tiny.tiny_folder(tmp_path_factory.mktemp("llama"))
    return folder


@pytest.fixture(scope="module")
def fused(llama: Path) -> Any:
    """Its fused float graph."""
    return tiny.float_graph(llama)


SCHEMES = [
    ("fp32", "w8"),
    ("w8", "w8"),
    ("w4", "w8"),
    ("w4", "fp32"),
    ("w4", "w4"),
    ("dynamic-int8", "dynamic-int8"),
]


@pytest.mark.parametrize("layers,head", SCHEMES)
def test_each_scheme_runs_and_stays_close(layers: str, head: str, llama: Path, fused: Any) -> None:
    """Every scheme of layers and head gives a graph near the float module."""
    graph, ids = lower_ort(fused, Scheme(layers, head, 32)), tiny.some_ids(40)
    run = open_runner(graph, 1)
    run.prefill(ids[:30], chunk=16)
    nats = mean_divergence(run.call(ids[30:], 30), tiny.float_rows(llama, ids)[30:])
    assert nats < max({"fp32": 0.001, "w8": 0.001}.get(scheme, 0.5) for scheme in (layers, head))


def test_dynamic_int8_covers_every_product(fused: Any) -> None:
    """Embedding, head and layers are all int8, and the activations are scaled at run time."""
    graph = lower_ort(fused, Scheme("dynamic-int8", "dynamic-int8", 32))
    ops = [node.op_type for node in graph.model.graph]
    assert ops.count("MatMulInteger") == 2 * 5 + 1 and "DynamicQuantizeLinear" in ops and "MatMul" not in ops
    weights: Any = graph.model.graph.initializers
    big = [v for v in weights.values() if v.const_value.nbytes > 8192]
    assert all(v.dtype.name != "FLOAT" for v in big if "cache" not in v.name)


def test_unknown_scheme_is_refused(fused: Any) -> None:
    """One sentence that lists what is allowed."""
    with pytest.raises(
        InputError, match=r"scheme of the head is 'w3'; use one of fp32, w8, w4, dynamic-int8"
    ):
        lower_ort(fused, Scheme("w4", "w3", 32))
