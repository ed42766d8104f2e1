"""check_device.py where no GPU is: which steps could run, budgets, verdicts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("check_device", Path(__file__).with_name("check_device.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_device", module)
    spec.loader.exec_module(module)
    return module


def test_dry_run_says_what_each_step_lacks(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run or written; without a driver every step on the GPU lacks it, and says so."""
    monkeypatch.setattr(script, "has_driver", lambda: False)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text(json.dumps({"engines": {"target": {"finalize": True}}}))
    named = ["--bundle", str(bundle), "--bundle", str(tmp_path / "gone"), "--out", str(tmp_path / "out")]
    assert script.main(["--dry-run", *named]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14 and not (tmp_path / "out").exists()
    assert [line for line in lines if "row kernels" in line][0].endswith("no NVIDIA driver (libcuda.so.1)")
    assert "lacks  bundle: gate: no NVIDIA driver (libcuda.so.1)" in lines


def test_with_a_gpu_every_step_of_a_bundle_is_ready(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs are finalized, finished engines are not; a folder that is no bundle is named."""
    monkeypatch.setattr(script, "has_driver", lambda: True)
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    for name, engine in (("graphs", {"finalize": True}), ("engines", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"engines": {"target": engine}}))
    steps = script.make_steps([tmp_path / "graphs", tmp_path / "engines", tmp_path / "gone"], tmp_path / "out")
    lacks = {step.name: step.lacks for step in steps}
    assert lacks["graphs: finalize"] == "" and lacks["engines: finalize"] == "its engines are finished"
    assert lacks["row kernels"] == lacks["graphs: gate"] == lacks["engines: bench"] == ""
    assert lacks["gone: gate"].endswith("holds no manifest.json")
    assert sum(step.limit for step in steps if step.name in ("build", "doctor", "row kernels")) < script.BUDGET


def test_budget_and_verdict(script: ModuleType, tmp_path: Path) -> None:
    """A step past its limit fails; what no longer fits the budget is skipped; 3 says that no GPU was tried."""
    python = sys.executable
    steps = [
        script.Step("fine", "", [[python, "-c", "print('first'); print('last line')"]], 60, gpu=False),
        script.Step("lacking", "no driver", [["false"]], 60),
        script.Step("skips itself", "", [[python, "-c", "import sys; print('no GPU'); sys.exit(77)"]], 60),
    ]
    told: list[str] = []
    results = script.check(steps, 100, tmp_path, lambda result: told.append(result.name))
    assert [result.status for result in results] == ["passed", "skipped", "skipped"]
    assert (results[0].said, results[2].said, told) == ("last line", "no GPU", ["fine", "lacking", "skips itself"])
    assert script.verdict(steps, results) == 3
    assert script.check(steps[:1], 5, tmp_path, lambda result: None)[0].said == "5 s are left of the budget"
    failing = [script.Step("build", "", [["false"]], 60), *steps]
    results = script.check(failing, 100, tmp_path, lambda result: None)
    assert len(results) == 1 and script.verdict(failing, results) == 1
    on_gpu = [script.Step("kernels", "", [["true"]], 60)]
    assert script.verdict(on_gpu, script.check(on_gpu, 100, tmp_path, lambda result: None)) == 0
    slow = script.Step("slow", "", [[python, "-c", "import time; time.sleep(30)"]], 1)
    script.LEAST = 0
    assert script.attempt(slow, 1.0, tmp_path).status == "failed"
