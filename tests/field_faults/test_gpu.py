"""Field faults of TensorRT and Jetson: each check passes, and fails where the function that prevents it is
replaced.

docs/field-faults.md names the other tests of R42 to R53, among them tests/gpu/test_device.py, which needs a
GPU.
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


def check_other_gpu(folder: Path) -> None:
    """R42: the device's compute capability is compared before any engine is built or loaded."""
    bundle: Any = SimpleNamespace(folder=folder)
    here: Any = SimpleNamespace(sm=72, name="Xavier")
    with pytest.raises(EnvironmentFault, match=r"SM 87 .*Xavier.* SM 72"):
        finalize.check_device(bundle, targets.load("jetson-orin-nano-8gb"), here)


def check_rebuilt_engine(_: Path) -> None:
    """R43: a rebuild from the same graph has another engine hash, to which no certificate is bound."""
    first, second = (hash_engine([File("target.plan", 9, digit * 64)]) for digit in "12")
    assert first != second


def check_profiles(folder: Path) -> None:
    """R46: impossible widths are refused before a builder starts."""
    for widths, context, capacity in (((0, 1), 128, 192), ((5, 2), 128, 192), ((1, 1000), 1200, 1500)):
        with pytest.raises(InputError, match="widths"):
            profiles.make_profiles(widths, context, capacity)


def check_foreign_graph(folder: Path) -> None:
    """R47: a graph for another runtime is refused; its nodes are named."""
    from onnx import helper

    node = helper.make_node("MatMulNBits", ["x"], ["z"], domain="com.microsoft")
    wrong = preflight.list_refusals(mini_graph(folder / "x.onnx", extra=node), Builder((10, 16), 90))
    assert any("MatMulNBits" in text for text in wrong)


def check_other_type(_: Path) -> None:
    """R49: a product that runs in another type than the scheme promises is named."""
    layer = {"Name": "model.layers.0.up/MatMul", "LayerType": "gemm", "Inputs": [{"Format/Datatype": "Half"}]}
    found = engine_layers.read_engine_layers(json.dumps({"Layers": [layer]}))
    assert engine_layers.summarize_layers(found, "engine", "int8")["strays"] == [
        "model.layers.0.up/MatMul (fp16)"
    ]


def check_page_cache(folder: Path) -> None:
    """R50: page cache counts as available memory."""
    (folder / "meminfo").write_text("MemTotal: 8000000 kB\nMemFree: 1048576 kB\nMemAvailable: 6291456 kB\n")
    memory.check_memory("target", 2 << 30, 0, memory.read_available(folder / "meminfo", ()))


def check_killed_builder(folder: Path) -> None:
    """R51: the error names the stage of a killed builder, and no partial file is left."""
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


def check_power_modes(folder: Path) -> None:
    """R52: reports of different power modes are not compared."""
    row = {"class": "chat", "mode": "spec", "temperature": 0.0, "rule": "coupled", "tokens_per_second": 1.0}
    for mode in ("MAXN", "15W"):
        power = {"mode": mode, "source": "nvpmodel", "settings": {}, "clocks_mhz": {}, "temperature_c": {}}
        (folder / mode).write_text(json.dumps({"rows": [row], "environment": {"power": power}}))
    with pytest.raises(InputError, match="power modes"):
        compare.compare_reports(compare.load_report(folder / "MAXN"), compare.load_report(folder / "15W"))


def check_missing_precision(_: Path) -> None:
    """R53: a precision that SM 87 lacks is refused with the nearest that it has."""
    gpu = targets.load("jetson-orin-nano-8gb").gpu
    assert gpu is not None
    assert "8.7" in str(gpu.builder.explain_lack("int8")) and gpu.builder.find_nearest("int8") == "w8"


def count_free_only(meminfo: Path, limits: Any = ()) -> memory.AvailableMemory:
    """The fault of R50: only free memory counts."""
    free = 1024 * int(meminfo.read_text().split("MemFree:")[1].split()[0])
    return memory.AvailableMemory(free, free)


CHECKS: list[tuple[Check, Any, str, Any]] = [
    (check_other_gpu, finalize, "gpu_sm", lambda hardware: 72),
    (check_rebuilt_engine, sys.modules[__name__], "hash_engine", lambda files: "of the graph"),
    (check_profiles, profiles, "find_fault", lambda *_: None),
    (check_foreign_graph, preflight, "find_foreign_operators", lambda model: []),
    (check_other_type, engine_layers, "find_strays", lambda layers, scheme: []),
    (check_page_cache, memory, "read_available", count_free_only),
    (check_killed_builder, engine, "partial_path", lambda plan: Path("/nonexistent/other.part")),
    (check_power_modes, compare, "compare_modes", lambda one, other: ""),
    (check_missing_precision, Builder, "explain_lack", lambda self, precision: None),
]


@pytest.mark.parametrize("check", [row[0] for row in CHECKS])
def test_check_passes(check: Check, tmp_path: Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize(("check", "place", "name", "fault"), CHECKS)
def test_check_fails_with_fault(
    check: Check, place: Any, name: str, fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises((AssertionError, SpeccError, pytest.fail.Exception)):
        check(tmp_path)
