"""Graphs of tiny models through TensorRT-RTX's parser and builder, for GPUs that are not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny

pytest.importorskip("torch")

from support.tensorrt_library import is_installed  # noqa: E402

from specc.calib.scales import calibrate  # noqa: E402
from specc.contracts.scheme import Scheme  # noqa: E402
from specc.exporter.check.logits import mean_divergence  # noqa: E402
from specc.exporter.checkpoint.checkpoint import open_checkpoint  # noqa: E402
from specc.exporter.graph.files import write_graph  # noqa: E402
from specc.exporter.graph.session import open_runner  # noqa: E402
from specc.exporter.lower.onnx24 import lower_onnx24  # noqa: E402
from specc.exporter.tensorrt.engine import EngineJob, build_engine  # noqa: E402
from specc.exporter.tensorrt.preflight import list_refusals  # noqa: E402
from specc.targets import load  # noqa: E402

RTX = pytest.mark.skipif(
    not is_installed("tensorrt-rtx"), reason="needs TensorRT-RTX: pip install 'specc[tensorrt-rtx]'"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, fused float graph, activation ranges) of a tiny model."""
    folder = tiny.tiny_folder(tmp_path_factory.mktemp("model"))
    ranges = calibrate(open_checkpoint(str(folder)).load(), tiny.some_ids(300, 9), "percentile", None)[
        "ranges"
    ]
    return folder, tiny.float_graph(folder), ranges


@pytest.mark.parametrize("opset24", [True, False], ids=["opset24", "older"])
@pytest.mark.parametrize(("scheme", "kl"), [("int8", 0.05), ("fp8", 0.05)])
def test_static_scales_stay_near_and_keep_rows_apart(
    model: Any, scheme: str, kl: float, opset24: bool
) -> None:
    """R49: measured ranges; a row's numbers do not depend on its neighbours, as those of a dynamic scale
    do.
    """
    folder, graph, ranges = model
    ids, lowered = (
        tiny.some_ids(15),
        lower_onnx24(graph, Scheme(scheme, "w8", 32), "fp16", opset24, None, ranges),
    )
    run, wanted = open_runner(lowered, 1), tiny.float_rows(folder, ids)
    run.prefill(ids[:10], chunk=5)
    got = run.call(ids[10:], 10)
    assert mean_divergence(got, wanted[10:]) < kl
    other = run.call(np.concatenate([ids[10:12], ids[:3]]), 10)
    assert np.array_equal(other[:2], got[:2])


CASES = [
    ("jetson-orin-nano-8gb", "w4", "w8"),
    ("jetson-agx-orin-64gb@7.2", "fp16", "fp16"),
    ("h200", "fp8", "fp16"),
    ("h100", "int8", "w8"),
    ("rtx-blackwell", "bf16", "bf16"),
    ("h200", "fp16", "fp16"),  # with a float8 cache
]


@RTX
@pytest.mark.slow
@pytest.mark.parametrize(("target", "layers", "head"), CASES)
def test_graphs_of_each_target_build_for_the_nearest_sm(
    model: Any, target: str, layers: str, head: str, tmp_path: Path
) -> None:
    """The parser takes them, and the builder makes an engine of every width."""
    hardware = load(target)
    assert hardware.gpu is not None
    dtype, cache = (
        "bf16" if layers == "bf16" else "fp16",
        "fp8" if (target, layers) == ("h200", "fp16") else "",
    )
    opset24 = hardware.gpu.builder.takes_opset24 and not cache
    graph = lower_onnx24(model[1], Scheme(layers, head, 32), dtype, opset24, None, model[2], cache)
    write_graph(graph, tmp_path, "target")
    assert list_refusals(tmp_path / "target.onnx", hardware.gpu.builder) == []
    job = EngineJob(
        "target",
        str(tmp_path / "target.onnx"),
        str(tmp_path / "target.plan"),
        "tensorrt-rtx",
        hardware.gpu.nearest_sm,
        tiny.WIDTHS,
        tiny.CONTEXT,
        tiny.CONTEXT + tiny.WIDTHS[-1],
    )
    made = build_engine(replace(job, scheme=layers))
    assert made.sm == hardware.gpu.nearest_sm and (tmp_path / "target.plan").stat().st_size > 100000
    assert (made.types["source"], made.types["strays"]) == ("network", [])  # R49: as the scheme says
    stored = "fp16 x int4" if layers == "w4" else f"{layers} x {layers}"
    assert made.types["kinds"]["product"][stored] >= 4 * 2
