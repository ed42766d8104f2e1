"""Bundles for NVIDIA GPUs on a machine that has none, or the wrong one: each a sentence with both values
(R42).
"""

from __future__ import annotations

import hashlib
import json
import platform
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specc.contracts.bundle.manifest import format_manifest
from specc.contracts.reasons import explain_speculation
from specc.errors import RuntimeFault, SpeccError
from specc.gate import gate_bundle
from specc.inspection.bundle import missing_certificate
from specc.inspection.machine import check_machine
from specc.runtime import Model, gpu
from specc.runtime.nvidia import read_tensorrt_headers, read_tensorrt_version

HERE = f"linux-{platform.machine()}"
PLAN = bytes(range(256)) * 40
ENGINE: dict[str, Any] = {
    "file": "target.plan",
    "backend": "tensorrt",
    "sha256": "0" * 64,
    "vocab": 50,
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 16,
    "capacity": 80,
    "widths": [1, 5, 16],
    "cache_dtype": "float16",
    "cache_update": "in-place",
    "tensorrt": "10.3.0.30",
    "sm": 87,
    "platform": HERE,
    "plan_sha256": hashlib.sha256(PLAN).hexdigest(),
}
CUDA = {"name": "CUDAExecutionProvider", "options": {"use_tf32": "0"}}


def has_gpu() -> bool:
    try:
        return bool(gpu().name)
    except SpeccError:
        return False


no_gpu = pytest.mark.skipif(has_gpu(), reason="a GPU is here: tests/gpu says what it does")


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., str]:
    """Opens a bundle of a plan and an engine entry with changed keys (None: without); gives the sentence."""

    def opening(plan: bytes = PLAN, **keys: Any) -> str:
        ids = [b"a"] * 48
        offsets = [sum(map(len, ids[:i])) for i in range(49)]
        table = b"SPCB" + struct.pack("<II49I", 1, 48, *offsets) + b"".join(ids)
        engine = {key: value for key, value in {**ENGINE, **keys}.items() if value is not None}
        files = []
        for name, data in (("target.plan", plan), ("id_bytes.bin", table)):
            (tmp_path / name).write_bytes(data)
            files.append({"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        manifest = {
            "format": 1,
            "files": files,
            "plan": {"k": 4, "context": 64, "threads": 1},
            "engines": {"target": engine},
            "draft": {"kind": "ngram", "min_match": 2, "max_match": 4},
            "lint": {"passed": True, "findings": []},
            "tokenizer": {
                "ids": 48,
                "bytes": "id_bytes.bin",
                "strip_leading_space": False,
                "eos": [2],
                "bos": None,
            },
        }
        (tmp_path / "manifest.json").write_text(format_manifest({"digest": "0" * 64, **manifest})[0])
        with pytest.raises(SpeccError) as error:
            Model.open(tmp_path).close()
        text = str(error.value)
        assert "\n" not in text and ("; " in text)
        return text

    return opening


@pytest.mark.parametrize(
    ("plan", "keys", "says"),
    [
        (
            b"",
            {"plan_sha256": hashlib.sha256(b"").hexdigest()},
            "target.plan has 0 bytes, so it is cut or empty",
        ),
        (PLAN[:700], {"plan_sha256": hashlib.sha256(PLAN[:700]).hexdigest()}, "cut or empty"),
        (
            b"text\r\n" * 900,
            {"plan_sha256": hashlib.sha256(b"text\r\n" * 900).hexdigest()},
            "is text, not an engine",
        ),
        (PLAN, {"plan_sha256": "1" * 64}, "its hash is not plan_sha256"),
        (PLAN, {"plan_sha256": None}, "engines.target.plan_sha256"),
        (PLAN, {"platform": "linux-riscv64"}, f"built for linux-riscv64 and this is {HERE}"),
        (PLAN, {"sm": "8.7"}, "engines.target.sm"),
        (
            PLAN,
            {"cache_dtype": "fp4"},
            "cache_dtype in manifest.json is not float32, float16, bfloat16 or float8",
        ),
        (PLAN, {"cache_update": "swap"}, "cache_update in manifest.json is not in-place or rows"),
        (PLAN, {"finalize": True}, "holds graphs, not engines, for its device; run `specc finalize"),
        (
            PLAN,
            {"stripped": True},
            "holds no weights (stripped), and nothing here refits them; build or finalize",
        ),
        (PLAN, {"backend": "metal"}, "needs the backend metal"),
        (PLAN, {"backend": "ort", "provider": {"name": "CUDAExecutionProvider"}}, "provider.options"),
        (
            PLAN,
            {"backend": "ort", "provider": {"name": "X", "options": {"a": 1}}},
            "object of at most 24 strings",
        ),
    ],
)
def test_what_the_manifest_says_comes_first(
    opened: Callable[..., str], plan: bytes, keys: dict[str, Any], says: str
) -> None:
    """Before a driver or a library is asked for."""
    assert says in opened(plan, **keys)


@no_gpu
def test_no_driver(opened: Callable[..., str]) -> None:
    """What is missing and what to do, for TensorRT and for both providers of ONNX Runtime."""
    plugin = {"name": "NvTensorRTRTXExecutionProvider", "options": {}}
    providers = [{"backend": "ort", "provider": provider} for provider in (CUDA, plugin)]
    for keys in ({}, {"backend": "tensorrt-rtx"}, *providers):
        assert "there is no NVIDIA driver here: libcuda.so.1" in opened(**keys)


@no_gpu
def test_the_gate_opens_the_engine_before_it_judges_laws(
    opened: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that cannot run the engine is told within a second, not after minutes."""
    opened()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    monkeypatch.setattr("specc.gate.bundle.verify_bundle", lambda _: SimpleNamespace(manifest=manifest))
    monkeypatch.setattr("specc.gate.bundle.read_bundle", lambda folder: folder)
    monkeypatch.setattr("specc.gate.run.judge_bundle", lambda *_, **__: pytest.fail("laws first"))
    with pytest.raises(RuntimeFault, match="no NVIDIA driver"):
        gate_bundle(tmp_path)


def test_doctor_names_everything_for_a_gpu() -> None:
    """Five findings, none of which keeps the CPU from running; nothing is called tried that was not."""
    findings = {finding.name: finding for finding in check_machine()}
    names = ["GPU", "TensorRT", "TensorRT for RTX", "TensorRT backend", "GPU row kernels"]
    assert [findings[name].needed_for for name in names] == ["gpu"] * 5
    for name in ("TensorRT backend", "GPU row kernels"):
        assert "has not run on a GPU yet" in findings[name].value or findings[name].value.startswith(
            "not compiled"
        )
    assert json.dumps([finding.value for finding in findings.values()])


def test_libraries_that_are_not_there(tmp_path: Path) -> None:
    """A path that holds nothing, and a library that is another one."""
    with pytest.raises(SpeccError, match="TensorRT cannot be loaded"):
        read_tensorrt_version(tmp_path / "libnvinfer.so.10")
    with pytest.raises(SpeccError, match="is no TensorRT library"):
        read_tensorrt_version(Path("libm.so.6"))
    try:
        assert read_tensorrt_headers().startswith("TensorRT")
    except SpeccError as error:
        assert "TENSORRT_INCLUDE" in str(error)


def test_a_bundle_for_another_machine_can_be_inspected() -> None:
    """What is inside shows where nothing opens; a CPU bundle that does not open stays an error."""
    error = RuntimeFault("there is no NVIDIA driver here; install it", 6)
    manifest = {
        "plan": {"hardware": "rtx-ada", "threads": 4},
        "engines": {"target": {"backend": "tensorrt-rtx"}},
    }
    found = missing_certificate(manifest, error)
    assert found["kind"] == "none" and found["widths"] == [] and found["device"] == "rtx-ada"
    said = explain_speculation(False, ["uncertified-device"], found, {}, "b")
    assert (
        said.startswith("off: uncertified-device (no certificate for rtx-ada") and "no NVIDIA driver" in said
    )
    with pytest.raises(RuntimeFault, match="no NVIDIA driver"):
        missing_certificate({**manifest, "engines": {"target": {"backend": "ort"}}}, error)
