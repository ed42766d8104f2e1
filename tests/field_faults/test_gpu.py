"""Field faults of TensorRT and Jetson, R42 to R53: each check holds, and fails when its fault is put back.

Where each is tested in full: R42 test_gpu.c, test_gpu_bundles, test_finalize; R43 test_bundle.c, test_finalize; R44
test_gate_certificate; R45 test_exporter_onnx24 (with its fault); R46, R47, R51 test_exporter_tensorrt; R48 and R50
test_tensorrt.c and test_gpu.c; R49 test_tensorrt_layers, test_exporter_rtx; R52 test_bench; R53 test_fit, test_targets.
With a GPU: tests/gpu/test_device.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.mini_graph import CAPACITY, mini_graph

pytest.importorskip("onnx")

from specc import targets  # noqa: E402
from specc.bench import compare  # noqa: E402
from specc.contracts.files import File, hash_engine  # noqa: E402
from specc.errors import EnvironmentFault, InputError, SpeccError  # noqa: E402
from specc.exporter.tensorrt import engine, memory, preflight, profiles  # noqa: E402
from specc.exporter.tensorrt import layers as engine_layers  # noqa: E402
from specc.pipeline import finalize
from specc.targets.tensorrt import Builder  # noqa: E402

Check = Callable[[Path], None]


def other_gpu(folder: Path) -> None:
    """R42: an engine's SM is compared before any builder or loader sees it."""
    bundle: Any = SimpleNamespace(folder=folder)
    here: Any = SimpleNamespace(sm=72, name="Xavier")
    with pytest.raises(EnvironmentFault, match=r"SM 87 .*Xavier.* SM 72"):
        finalize.check_device(bundle, targets.load("jetson-orin-nano-8gb"), here)


def rebuilt_engine(_: Path) -> None:
    """R43: a rebuild from the same graph is another engine, to which no certificate is bound."""
    first, second = (hash_engine([File("target.plan", 9, digit * 64)]) for digit in "12")
    assert first != second


def wrong_profiles(folder: Path) -> None:
    """R46: impossible widths never reach a builder."""
    for widths, context, capacity in (((0, 1), 128, 192), ((5, 2), 128, 192), ((1, 1000), 1200, 1500)):
        with pytest.raises(InputError, match="widths"):
            profiles.make_profiles(widths, context, capacity)


def foreign_graph(folder: Path) -> None:
    """R47: a graph for another runtime is refused with its offenders."""
    from onnx import helper

    node = helper.make_node("MatMulNBits", ["x"], ["z"], domain="com.microsoft")
    wrong = preflight.list_refusals(mini_graph(folder / "x.onnx", extra=node), Builder((10, 16), 90))
    assert any("MatMulNBits" in text for text in wrong)


def other_type(_: Path) -> None:
    """R49: a product that runs in another type than the scheme promises is named."""
    item = {"Name": "model.layers.0.up/MatMul", "LayerType": "gemm", "Inputs": [{"Format/Datatype": "Half"}]}
    found = engine_layers.read_engine_layers(json.dumps({"Layers": [item]}))
    assert engine_layers.summarize_layers(found, "engine", "int8")["strays"] == [
        "model.layers.0.up/MatMul (fp16)"
    ]


def page_cache(folder: Path) -> None:
    """R50: pages of files just read are room."""
    (folder / "meminfo").write_text("MemTotal: 8000000 kB\nMemFree: 1048576 kB\nMemAvailable: 6291456 kB\n")
    memory.check_memory("target", 2 << 30, 0, memory.read_available(folder / "meminfo", ()))


def killed_builder(folder: Path) -> None:
    """R51: the stage is named and nothing half written stays."""
    script = (
        "import json, os, sys; job = json.load(sys.stdin); open(job['plan'] + '.part', 'wb').write(b'half')\n"
    )
    script += "print('stage build', flush=True); os.kill(os.getpid(), 9)"
    graph, plan = mini_graph(folder / "target.onnx"), folder / "target.plan"
    job = engine.EngineJob("target", str(graph), str(plan), "tensorrt-rtx", 86, (1, 64), 128, CAPACITY)
    with pytest.raises(
        EnvironmentFault, match=r"killed \(signal 9\) at stage 'build': it needs about \d+ MB"
    ):
        engine.build_engine(job, child=(sys.executable, "-c", script))
    assert [path.name for path in folder.iterdir()] == ["target.onnx"]


def power_modes(folder: Path) -> None:
    """R52: reports of different modes do not compare."""
    row = {"class": "chat", "mode": "spec", "temperature": 0.0, "rule": "coupled", "tokens_per_second": 1.0}
    for mode in ("MAXN", "15W"):
        power = {"mode": mode, "source": "nvpmodel", "settings": {}, "clocks_mhz": {}, "temperature_c": {}}
        (folder / mode).write_text(json.dumps({"rows": [row], "environment": {"power": power}}))
    with pytest.raises(InputError, match="power modes"):
        compare.compare(compare.load(folder / "MAXN"), compare.load(folder / "15W"))


def missing_precision(_: Path) -> None:
    """R53: what SM 87 lacks, and the nearest that works."""
    gpu = targets.load("jetson-orin-nano-8gb").gpu
    assert gpu is not None
    assert "8.7" in str(gpu.builder.explain_lack("int8")) and gpu.builder.find_nearest("int8") == "w8"


def mem_free(meminfo: Path, limits: Any = ()) -> memory.AvailableMemory:
    """The fault of R50: the driver's free figure."""
    free = 1024 * int(meminfo.read_text().split("MemFree:")[1].split()[0])
    return memory.AvailableMemory(free, free)


CHECKS: list[tuple[Check, Any, str, Any]] = [
    (other_gpu, finalize, "gpu_sm", lambda hardware: 72),
    (rebuilt_engine, sys.modules[__name__], "hash_engine", lambda files: "of the graph"),
    (wrong_profiles, profiles, "find_fault", lambda *_: None),
    (foreign_graph, preflight, "find_foreign_operators", lambda model: []),
    (other_type, engine_layers, "find_strays", lambda layers, scheme: []),
    (page_cache, memory, "read_available", mem_free),
    (killed_builder, engine, "partial_path", lambda plan: Path("/nonexistent/other.part")),
    (power_modes, compare, "different_modes", lambda one, other: ""),
    (missing_precision, Builder, "explain_lack", lambda self, precision: None),
]


@pytest.mark.parametrize("check", [row[0] for row in CHECKS])
def test_holds(check: Check, tmp_path: Path) -> None:
    """As shipped."""
    check(tmp_path)


@pytest.mark.parametrize(("check", "place", "name", "fault"), CHECKS)
def test_found_when_put_back(
    check: Check, place: Any, name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its fault each check fails."""
    monkeypatch.setattr(place, name, fault)
    with pytest.raises((AssertionError, SpeccError, pytest.fail.Exception)):
        check(tmp_path)
