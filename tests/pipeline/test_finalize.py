"""Bundles for GPUs, finished here or on the device: the builder stood in for, and a real one where it is
installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.mini_graph import CAPACITY, mini_graph

pytest.importorskip("onnx")

from support.tensorrt_library import is_installed  # noqa: E402

from specc.contracts.bundle.manifest import read_bundle, verify_bundle  # noqa: E402
from specc.errors import EnvironmentFault, InputError, RuntimeFault, SpeccError  # noqa: E402
from specc.exporter.tensorrt.engine import EngineJob, EngineResult  # noqa: E402
from specc.pipeline import finalize as finalizing  # noqa: E402
from specc.pipeline.build import build  # noqa: E402
from specc.pipeline.finalize import finalize  # noqa: E402
from specc.runtime import Gpu, gpu  # noqa: E402

Write = Callable[..., Path]
ORIN = Gpu("Orin", "f" * 64, 87, 12060, True, 8, 7620 << 20, 6000 << 20, 1000 << 20)


@pytest.fixture
def gpu_model(fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The fake model, whose graphs are small and real; builders write a few bytes that differ from build to
    build.
    """
    fake_model.builds = []

    def export(checkpoint: Any, engine: Any, place: Path, progress: Any = None, **_: Any) -> Any:
        fake_model.exports += 1
        mini_graph(place / f"{engine.name}.onnx", opset24=engine.opset24)
        quality = {"kl": 0.1, "top1": 0.9, "perplexity_ratio": 1.02}
        return SimpleNamespace(node_count=7, stage_errors={}, quality=quality, notes=())

    def build_engine(job: EngineJob, progress: Any = None, child: Any = None) -> EngineResult:
        fake_model.builds.append(job)
        Path(job.plan).write_bytes(b"plan %d of %s" % (len(fake_model.builds), job.name.encode()))
        return EngineResult(job.library, "10.3.0", job.sm or 87, "linux-aarch64", job.stripped, 1.0, 1)

    monkeypatch.setattr("specc.exporter.export.export_graph", export)
    monkeypatch.setattr("specc.exporter.tensorrt.engine.build_engine", build_engine)
    monkeypatch.setattr(
        "specc.exporter.tensorrt.library.open_library",
        lambda kind: SimpleNamespace(version="10.3.0", kind=kind),
    )
    return fake_model


def built(write_recipe: Write, folder: Path, hardware: str, **keys: Any) -> dict[str, Any]:
    """The manifest of a build."""
    keys = {"scheme": "fp16", "draft": {"kind": "early-exit", "layers": 1}, **keys}
    manifest: dict[str, Any] = build(write_recipe(**keys), hardware, folder).bundle.manifest
    return manifest


def test_rtx_bundles_are_finished_here(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """Engines of target and draft, without graphs; speculation is off until a gate has run on such a card."""
    made = build(
        write_recipe(scheme="fp16", draft={"kind": "early-exit", "layers": 1}), "rtx-ada", tmp_path / "out"
    )
    manifest = made.bundle.manifest
    target, draft = manifest["engines"]["target"], manifest["engines"]["draft"]
    assert made.reasons == ("uncertified-device",)
    assert {f.path for f in made.bundle.files if ".onnx" in f.path} == set()
    assert (target["file"], target["backend"], target["sm"], draft["file"]) == (
        "target.plan",
        "tensorrt-rtx",
        89,
        "draft.plan",
    )
    assert (target["cache_dtype"], target["cache_update"], target["stripped"]) == (
        "float16",
        "in-place",
        False,
    )
    assert target["plan_sha256"] in {file.sha256 for file in made.bundle.files}
    assert [job.widths for job in gpu_model.builds] == [tuple(target["widths"])] * 2
    again = build(
        write_recipe(scheme="fp16", draft={"kind": "early-exit", "layers": 1}), "rtx-ada", tmp_path / "out"
    )
    assert len(gpu_model.builds) == 2 and not again.written


def test_other_cards_get_other_engines(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """The graph comes from the cache, the engine does not."""
    sms = [
        built(write_recipe, tmp_path / name, name)["engines"]["target"]["sm"]
        for name in ("rtx-ada", "rtx-ampere")
    ]
    assert (
        sms == [89, 86]
        and [job.sm for job in gpu_model.builds] == [89, 89, 86, 86]
        and gpu_model.exports == 2
    )


def test_data_center_targets_also_get_an_ort_bundle(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """Beside the TensorRT one, with the options of the CUDA provider; not where it lacks the scheme."""
    made = build(write_recipe(scheme="fp16"), "h200", tmp_path / "out")
    assert [bundle.folder for bundle in made.also] == [tmp_path / "out-ort"]
    part = read_bundle(tmp_path / "out-ort").manifest["engines"]["target"]
    assert (part["backend"], part["cache_dtype"], part["file"]) == ("ort", "float16", "target.onnx")
    assert (
        part["provider"]["name"] == "CUDAExecutionProvider" and part["provider"]["options"]["use_tf32"] == "0"
    )
    assert build(write_recipe(scheme="bf16"), "h200", tmp_path / "other").also == ()


def test_jetson_bundles_hold_graphs(gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path) -> None:
    """JetPack 6 has no opset-24 operators, JetPack 7 has."""
    six = built(write_recipe, tmp_path / "six", "jetson-orin-nano-8gb")["engines"]
    seven = built(write_recipe, tmp_path / "seven", "jetson-orin-nano-8gb@7.2")["engines"]
    assert six["target"]["finalize"] and six["target"]["file"] == "target.onnx" and "sm" not in six["target"]
    assert (six["target"]["cache_update"], seven["target"]["cache_update"]) == ("rows", "in-place")
    assert six["draft"]["backend"] == "tensorrt" and gpu_model.builds == []


def test_finalize_builds_for_the_gpu_that_is_here(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines beside their graphs, the manifest says what built them; a rebuild is another engine (R43)."""
    out = tmp_path / "out"
    before = built(write_recipe, out, "jetson-orin-nano-8gb")
    (out / "certificates" / "old.json").write_text("{}")
    monkeypatch.setattr(finalizing, "gpu", lambda: ORIN)
    first = finalize(out).bundle
    target = first.manifest["engines"]["target"]
    assert (target["file"], target["tensorrt"], target["sm"], target["platform"]) == (
        "target.plan",
        "10.3.0",
        87,
        "linux-aarch64",
    )
    assert (
        "finalize" not in target
        and first.digest != before["digest"]
        and not list((out / "certificates").iterdir())
    )
    assert {"target.onnx", "target.plan", "draft.plan"} <= {
        file.path for file in verify_bundle(read_bundle(out)).files
    }
    assert [job.integrated for job in gpu_model.builds] == [True, True] and gpu_model.builds[0].sm is None
    second = finalize(out).bundle
    assert second.manifest["engines"]["target"]["sha256"] != target["sha256"]
    assert second.manifest["engines"]["target"]["graph_sha256"] == target["graph_sha256"]


def test_float8_caches_stay_so_on_the_device(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """Type and rule of the cache are the graph's, before and after; no bundle of the dialect ort."""
    made = built(write_recipe, tmp_path / "out", "h100", cache="fp8")["engines"]["target"]
    assert (made["cache_dtype"], made["cache_update"]) == ("float8", "rows")
    done = finalize(tmp_path / "out", sm=90).bundle.manifest["engines"]["target"]
    assert (done["cache_dtype"], done["cache_update"]) == ("float8", "rows") and not (
        tmp_path / "out-ort"
    ).exists()


def test_finalize_on_another_device(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R42: both values are named; the bundle stays as it was."""
    before = built(write_recipe, tmp_path / "out", "jetson-orin-nano-8gb")
    monkeypatch.setattr(finalizing, "gpu", lambda: replace(ORIN, sm=72, name="Xavier"))
    with pytest.raises(EnvironmentFault, match=r"is for SM 87 .* \(Xavier\) is SM 72"):
        finalize(tmp_path / "out")
    assert verify_bundle(read_bundle(tmp_path / "out")).digest == before["digest"]


def test_finalize_without_a_driver(gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path) -> None:
    """libcuda missing: what is missing and what to do; the bundle stays as it was."""
    try:
        pytest.skip(f"a GPU is here: {gpu().name}")
    except SpeccError:
        before = built(write_recipe, tmp_path / "out", "h100")
    with pytest.raises(
        RuntimeFault, match="there is no NVIDIA driver here: libcuda.so.1: .*; install NVIDIA's driver"
    ):
        finalize(tmp_path / "out")
    assert verify_bundle(read_bundle(tmp_path / "out")).digest == before["digest"] and gpu_model.builds == []


def test_finalize_without_torch_and_without_onnx(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has neither torch nor transformers; the one package that it needs is named."""
    built(write_recipe, tmp_path / "out", "jetson-orin-nano-8gb")
    for name in ("torch", "transformers", "onnx_ir", "onnxscript", "ml_dtypes"):
        monkeypatch.setitem(sys.modules, name, None)
    finalize(tmp_path / "out", sm=87)
    monkeypatch.delitem(sys.modules, "specc.exporter.tensorrt.preflight", raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(EnvironmentFault, match="finalize needs the package 'onnx'; pip install onnx"):
        finalize(tmp_path / "out", sm=87)


def test_a_failed_build_leaves_the_bundle(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R51: nothing half written."""
    before = built(write_recipe, tmp_path / "out", "jetson-agx-orin-64gb")

    def killed(job: EngineJob, step: Any = None) -> EngineResult:
        Path(job.plan).write_bytes(b"half")
        raise EnvironmentFault("building target was killed (signal 9) at stage 'build'")

    monkeypatch.setattr("specc.exporter.tensorrt.engine.build_engine", killed)
    with pytest.raises(EnvironmentFault, match="stage 'build'"):
        finalize(tmp_path / "out", sm=87)
    assert verify_bundle(read_bundle(tmp_path / "out")).digest == before["digest"]
    assert [path.name for path in tmp_path.iterdir() if "plans" in path.name] == []


def test_finalize_refuses_what_has_no_graphs(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """A finished bundle, and one for a CPU."""
    built(write_recipe, tmp_path / "rtx", "rtx-ada")
    with pytest.raises(InputError, match="finished engines without graphs"):
        finalize(tmp_path / "rtx", sm=89)
    build(write_recipe(scheme="fp32"), "cpu-x86", tmp_path / "cpu")
    with pytest.raises(InputError, match="needs no engines"):
        finalize(tmp_path / "cpu", sm=89)


def test_finalize_on_an_older_tensorrt(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path
) -> None:
    """A bundle for JetPack 7 on JetPack 6: the missing operators are listed before a builder starts (R47,
    R53).
    """
    built(write_recipe, tmp_path / "out", "jetson-orin-nano-8gb@7.2")
    with pytest.raises(
        InputError, match=r"tensorrt 10.3.0 of this machine lacks .*TensorScatter \(TensorRT 10.15\)"
    ):
        finalize(tmp_path / "out", sm=87)
    assert gpu_model.builds == []


@pytest.mark.skipif(
    not is_installed("tensorrt-rtx"), reason="needs TensorRT-RTX: pip install 'specc[tensorrt-rtx]'"
)
def test_finalize_with_the_rtx_builder(
    gpu_model: SimpleNamespace, write_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real engine of the nearest SM in place of the device's."""
    built(write_recipe, tmp_path / "out", "h100", draft={"kind": "ngram"}, context=CAPACITY - 64)
    monkeypatch.undo()
    done = finalize(tmp_path / "out", "tensorrt-rtx", 89)
    part = done.bundle.manifest["engines"]["target"]
    assert (part["backend"], part["sm"], part["tensorrt"].count(".")) == ("tensorrt-rtx", 89, 2)
    assert (tmp_path / "out" / "target.plan").stat().st_size > 10000
    assert (
        json.loads((tmp_path / "out" / "manifest.json").read_text())["provenance"]["finalized"]["target"][
            "sm"
        ]
        == 89
    )
