"""check_device.py on a machine without a GPU: which steps could run, budgets, verdicts."""

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
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text(json.dumps({"engines": {"target": {"finalize": True}}}))
    named = ["--bundle", str(bundle), "--bundle", str(tmp_path / "gone"), "--out", str(tmp_path / "out")]
    assert script.main(["--dry-run", *named]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 16 and not (tmp_path / "out").exists()
    hint = "no NVIDIA driver (libcuda.so.1); nvidia-smi is here, so add the folder of libcuda.so.1 to "
    hint += "LD_LIBRARY_PATH"
    assert f"lacks  row kernels: {hint}" in lines and f"lacks  bundle: gate: {hint}" in lines


def test_everything_that_may_be_missing_is_a_sentence(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without tools and packages, and a bundle whose manifest is damaged."""
    monkeypatch.setattr(script, "has_driver", lambda: True)
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    steps = {step.name: step.lacks for step in script.make_steps([], tmp_path / "out")}
    assert steps["build"] == "no cmake and no a C compiler and no make or ninja: install them"
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "manifest.json").write_text("{")
    steps = {step.name: step.lacks for step in script.make_steps([tmp_path / "cut"], tmp_path / "out")}
    gone = "cffi click jinja2 numpy onnxruntime rich tokenizers PyYAML"
    assert steps["doctor"].endswith(f"lacks packages: pip install {gone}")
    assert steps["cut: gate"].endswith("manifest.json is damaged: copy the bundle again")


def test_the_checkout_is_the_package(script: ModuleType, tmp_path: Path) -> None:
    """The package is laid out by links; nothing is installed."""
    script.link_package(tmp_path)
    script.link_package(tmp_path)  # again, over the first
    named = [sys.executable, "-c", "import specc.targets; print(specc.targets.__file__)"]
    found = script.check(
        [script.Step("x", "", [named], 60, script.environment(tmp_path))], 90, tmp_path, print
    )
    assert found[0].said == str(tmp_path / "package" / "specc" / "targets" / "__init__.py")


def test_failures_say_why(script: ModuleType, tmp_path: Path) -> None:
    """A missing program, one that hangs with a child process, one whose last line is the frame of a table."""
    python = sys.executable
    loop = "import subprocess, sys; print('waiting', flush=True); "
    hang = loop + "subprocess.run([sys.executable, '-c', 'while True: pass'])"
    steps = [
        script.Step("gone", "", [["/nonexistent/tool"]], 60),
        script.Step("hangs", "", [[python, "-c", hang]], 11),
        script.Step("table", "", [[python, "-c", "print('│ gate failed │'); print('└──┘'); exit(1)"]], 60),
    ]
    steps += [script.Step(f"b: {name}", "", [["false"]], 60) for name in ("run", "gate")]
    said = [result.said for result in script.check(steps, 60, tmp_path, lambda result: None)]
    assert said[0].startswith("/nonexistent/tool does not start: ")
    assert said[1:] == [
        "not done in 11 s; it last said: waiting",
        "gate failed",
        "nothing said",
        "b: run failed",
    ]


def test_with_a_gpu_every_step_of_a_bundle_is_ready(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs are finalized, finished engines are not; a folder that is no bundle is named."""
    monkeypatch.setattr(script, "has_driver", lambda: True)
    monkeypatch.setattr(script.shutil, "which", lambda name: f"/usr/bin/{name}")
    for name, engine in (("graphs", {"finalize": True}), ("engines", {})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"engines": {"target": engine}}))
    steps = script.make_steps(
        [tmp_path / "graphs", tmp_path / "engines", tmp_path / "gone"], tmp_path / "out"
    )
    lacks = {step.name: step.lacks for step in steps}
    assert lacks["graphs: finalize"] == "" and lacks["engines: finalize"] == "its engines are finished"
    assert (
        lacks["row kernels"] == lacks["graphs: gate"] == lacks["engines: bench"] == lacks["gpu tests"] == ""
    )
    assert lacks["gone: gate"].endswith("holds no manifest.json: name a bundle's folder")
    assert (
        sum(step.limit for step in steps if step.name in ("build", "doctor", "row kernels")) < script.BUDGET
    )


def test_budget_and_verdict(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step past its limit fails; what does not fit the budget is skipped; 3: no GPU was tried."""
    python = sys.executable
    steps = [
        script.Step("fine", "", [[python, "-c", "print('first'); print('last line')"]], 60, gpu=False),
        script.Step("lacking", "no driver", [["false"]], 60),
        script.Step("skips itself", "", [[python, "-c", "import sys; print('no GPU'); sys.exit(77)"]], 60),
    ]
    reported: list[str] = []
    results = script.check(steps, 100, tmp_path, lambda result: reported.append(result.name))
    assert [result.status for result in results] == ["passed", "skipped", "skipped"]
    assert (results[0].said, results[2].said, reported) == (
        "last line",
        "no GPU",
        ["fine", "lacking", "skips itself"],
    )
    assert script.verdict(steps, results) == 3
    assert script.check(steps[:1], 5, tmp_path, lambda result: None)[0].said == "5 s are left of the budget"
    failing = [script.Step("build", "", [["false"]], 60), *steps]
    results = script.check(failing, 100, tmp_path, lambda result: None)
    assert len(results) == 1 and script.verdict(failing, results) == 1
    on_gpu = [script.Step("kernels", "", [["true"]], 60)]
    assert script.verdict(on_gpu, script.check(on_gpu, 100, tmp_path, lambda result: None)) == 0
    slow = script.Step("slow", "", [[python, "-c", "import time; time.sleep(30)"]], 1)
    monkeypatch.setattr(sys.modules[script.attempt.__module__], "LEAST", 0)
    assert script.attempt(slow, 1.0, tmp_path).status == "failed"
