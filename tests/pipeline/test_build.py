"""Builds: stages from the cache, nothing left behind by failure, the same digest every time."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specc.calib.tokens import load_text, tokenize_text
from specc.contracts.bundle.manifest import read_bundle, verify_bundle
from specc.contracts.bundle.tables import decode_calibration
from specc.errors import EnvironmentFault, InputError, JudgeError, RecipeError
from specc.pipeline.build import build

Write = Callable[..., Path]


def hidden(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*.specc-tmp")]


def test_a_bundle_is_built(tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace) -> None:
    built = build(write_recipe(), out=tmp_path / "b")
    bundle = verify_bundle(read_bundle(tmp_path / "b"))
    names = {file.path for file in bundle.files}
    assert names == {
        "target.onnx",
        "target.onnx.data",
        "tokenizer.json",
        "id_bytes.bin",
        "calibration.bin",
        "chat_template.jinja",
    }
    table = (bundle.folder / "id_bytes.bin").read_bytes()
    *_, end = struct.unpack_from(f"<{258 + 1}I", table, 12)
    assert struct.unpack_from("<4sII", table) == (b"SPCB", 1, 258) and len(table) == 12 + 4 * 259 + end
    assert len(decode_calibration((bundle.folder / "calibration.bin").read_bytes())) == 8192
    assert bundle.manifest["quality"]["target"]["stage_errors"] == {"trace": 1e-6}
    assert bundle.manifest["provenance"]["recipe"]["text"] == (tmp_path / "recipe.yaml").read_text()
    assert built.reasons == ("uncertified-device",) and hidden(tmp_path) == []
    assert [time.stage for time in built.times] == ["plan", "tokenizer", "export target", "lint", "pack"]


def test_nothing_changed_nothing_done(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    first = build(write_recipe(), out=tmp_path / "b")
    second = build(write_recipe(), out=tmp_path / "b")
    assert fake_model.exports == 1 and all(time.cached for time in second.times)
    assert not second.written and second.bundle.digest == first.bundle.digest
    other = build(write_recipe(), out=tmp_path / "c")
    assert other.written and other.bundle.digest == first.bundle.digest and fake_model.exports == 1


def test_only_what_changed_is_done_again(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    digests = {build(write_recipe(), out=tmp_path / "b").bundle.digest}
    digests.add(build(write_recipe(gate={"kl_max": 1}), out=tmp_path / "b").bundle.digest)
    assert fake_model.exports == 1, "gate limits are no input of the export"
    digests.add(build(write_recipe(scheme="w4"), out=tmp_path / "b").bundle.digest)
    assert fake_model.exports == 2 and len(digests) == 3


def test_a_changed_checkpoint_is_seen(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:

    build(write_recipe(), out=tmp_path / "b")
    (fake_model.folder / "model.safetensors").write_bytes(b"WEIGHTS")
    fake_model.checkpoint.spec = replace(fake_model.spec, weights_sha256="x" * 64)
    build(write_recipe(), out=tmp_path / "b")
    assert fake_model.exports == 2


def test_a_changed_tool_or_source_is_seen(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(write_recipe(), out=tmp_path / "b")
    monkeypatch.setattr("specc.pipeline.export.tool_versions", lambda: {"torch": "99"})
    build(write_recipe(), out=tmp_path / "b")
    monkeypatch.setattr("specc.pipeline.export.code_hash", lambda *names: "changed")
    build(write_recipe(), out=tmp_path / "b")
    assert fake_model.exports == 3


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        "",
        '{"files": 3, "facts": {}}',
        '{"files": [3], "facts": {}}',
        '{"files": []}',
        '{"files": [], "facts": 3}',
        "[" * 100000,
    ],
)
def test_a_damaged_listing_is_a_miss(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, own_cache: Path, text: str
) -> None:
    build(write_recipe(), out=tmp_path / "b")
    for listing in own_cache.glob("*/*/stage.json"):
        listing.write_text(text)
    assert not any(
        time.cached for time in build(write_recipe(), out=tmp_path / "b").times if time.stage != "pack"
    )
    assert fake_model.exports == 2 and hidden(tmp_path) == []


def test_a_damaged_cache_entry_is_made_again(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, own_cache: Path
) -> None:
    build(write_recipe(), out=tmp_path / "b")
    next(own_cache.glob("engine/*/target.onnx.data")).write_bytes(b"short")
    verify_bundle(build(write_recipe(), out=tmp_path / "c").bundle)
    assert fake_model.exports == 2


def test_early_exit_draft_shares_the_targets_weights(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    built = build(write_recipe(draft={"kind": "early-exit", "layers": 1}), out=tmp_path / "b")
    names = [file.path for file in built.bundle.files]
    assert "draft.onnx" in names and "draft.onnx.data" not in names and fake_model.exports == 2
    engines = built.bundle.manifest["engines"]
    assert engines["draft"]["layers"] == 1 and engines["draft"]["sha256"] != engines["target"]["sha256"]


def test_lint_findings_do_not_stop_the_build(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = SimpleNamespace(
        node="n", op="DynamicQuantizeLinear", why="one scale for all rows", fix="use w8"
    )
    monkeypatch.setattr("specc.gate.lint.lint_file", lambda path, engine="auto": [finding])
    built = build(write_recipe(scheme="dynamic-int8"), out=tmp_path / "b")
    assert built.reasons == ("lint",) and not built.bundle.manifest["lint"]["passed"]
    assert built.as_dict()["speculation"] == {"enabled": False, "reasons": ["lint"]}


@pytest.mark.parametrize(
    ("keys", "error", "found"),
    [
        ({"context": 4096}, RecipeError, "allowed are 6"),
        ({"target": {"checkpoint": "none"}}, InputError, "none"),
        ({"target": {"checkpoint": "package:no-such-package/x.gguf"}}, InputError, "no-such-package"),
        ({"calibration": {"text": "none.txt"}}, InputError, "cannot read the calibration text"),
        ({"hardware": "gpu"}, InputError, "no hardware target is called 'gpu'"),
    ],
)
def test_bad_input_leaves_nothing(
    tmp_path: Path,
    write_recipe: Write,
    fake_model: SimpleNamespace,
    keys: dict[str, Any],
    error: type[Exception],
    found: str,
) -> None:
    with pytest.raises(error, match=found) as caught:
        build(write_recipe(**keys), out=tmp_path / "b")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b").exists() and hidden(tmp_path) == []


def test_too_little_calibration_text(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(InputError, match="short.txt gives 9 tokens; at least 64 are needed"):
        build(write_recipe(calibration={"text": "short.txt"}), out=tmp_path / "b")
    assert not (tmp_path / "b").exists() and hidden(tmp_path) == []


def test_calibration_text_comes_along() -> None:
    text = load_text(None)
    ids = tokenize_text(lambda part: list(part.encode()), text, 1000)
    assert len(ids) == 1000 and len(text.text) > 131_072 and text.sha256 == load_text(None).sha256


def test_draft_with_another_tokenizer_is_refused(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R22: two tokenizers of one size with two ids exchanged."""

    from specc.exporter.checkpoint.tokenizer import TokenizerJson

    text = fake_model.checkpoint.tokens
    parsed = json.loads(text)
    vocab = parsed["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    target = SimpleNamespace(**{**vars(fake_model.checkpoint), "tokens": TokenizerJson(text)})
    spec = replace(fake_model.spec, id_map_sha256="j" * 64)
    draft = SimpleNamespace(
        **{**vars(fake_model.checkpoint), "tokens": TokenizerJson(json.dumps(parsed)), "spec": spec}
    )
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(
        "specc.pipeline.checkpoint.open_once", lambda s, *_: draft if s.checkpoint == "other" else target
    )
    path = write_recipe(draft={"kind": "model", "checkpoint": "other"})
    with pytest.raises(InputError, match="different tokenizers"):
        build(path, out=tmp_path / "b")
    assert not (tmp_path / "b").exists() and fake_model.exports == 0
    draft.tokens = TokenizerJson(text)
    assert "draft.onnx.data" in {file.path for file in build(path, out=tmp_path / "b").bundle.files}


def test_disk_full_while_exporting(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(checkpoint: Any, engine: Any, folder: Path, progress: Any = None) -> None:
        (folder / "target.onnx.data").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "target.onnx.data"))

    monkeypatch.setattr("specc.exporter.export.export_graph", full)
    with pytest.raises(EnvironmentFault, match="building tiny failed: No space left on device"):
        build(write_recipe(), out=tmp_path / "b")
    assert not (tmp_path / "b").exists() and hidden(tmp_path) == []
    assert not list((tmp_path / "cache" / "engine").glob("*"))


def test_a_missing_package_is_an_environment_fault(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("specc.exporter.export.export_graph", missing)
    with pytest.raises(EnvironmentFault, match=r"needs the package 'torch'.*pip install 'specc\[build\]'"):
        build(write_recipe(), out=tmp_path / "b")


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
from specc.cli import main
main(["build", sys.argv[1], "-o", sys.argv[2]])
"""


def test_a_write_that_the_system_refuses(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    """The kernel itself stops the write of the calibration ids (32 KB) in another process."""
    build(write_recipe(), out=tmp_path / "b")
    command = [sys.executable, "-c", FULL, str(tmp_path / "recipe.yaml"), str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert (
        done.returncode == 3 and "File too large; free some space" in last and "Traceback" not in done.stderr
    )
    assert not (tmp_path / "c").exists() and hidden(tmp_path) == []


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from specc.contracts.bundle import writer
from specc.contracts.bundle.writer import copy_file
from specc.contracts.files import describe_file
def slow(source, target, file):
    copy_file(source, target, file)
    print("copied", flush=True)
    time.sleep(60)
writer.copy_file = slow
folder = Path(sys.argv[1])
made = folder / "made"
file = describe_file(made, "target.onnx")
writer.write_bundle(folder / "b", {"format": 1, "files": []}, {"target.onnx": (made / "target.onnx", file)})
"""


def test_kill_minus_nine_while_packing(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "target.onnx").write_bytes(b"graph")
    command = [sys.executable, "-c", KILLED, str(tmp_path), "x", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "copied"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not (tmp_path / "b").exists() and len(hidden(tmp_path)) == 1
    build(write_recipe(), out=tmp_path / "b")
    assert hidden(tmp_path) == [] and verify_bundle(read_bundle(tmp_path / "b"))


def test_a_second_build_is_quick(tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace) -> None:
    """No checkpoint is opened, no exporter and no torch is imported when everything is known."""
    build(write_recipe(), out=tmp_path / "b")
    code = (
        "import sys, specc.pipeline.checkpoint, specc.cli\n"
        "def no(*_): raise AssertionError('opened')\n"
        "specc.pipeline.checkpoint.open_once = no\n"
        "try: specc.cli.main(['build', sys.argv[1], '-o', sys.argv[2]])\n"
        "except SystemExit as end: code = end.code\n"
        "print('exit', code, [m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    start = time.perf_counter()
    command = [sys.executable, "-c", code, str(tmp_path / "recipe.yaml"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "exit 0 []" in done.stdout, done.stdout + done.stderr
    assert "up to date" in done.stdout and time.perf_counter() - start < 10


@pytest.mark.parametrize("limits", [{"kl_max": 0.05}, {"top1_min": 0.95}, {"perplexity_max": 1.01}])
def test_a_quality_limit_that_is_missed_fails_the_build(
    write_recipe: Callable[..., Path], fake_model: SimpleNamespace, tmp_path: Path, limits: dict[str, float]
) -> None:
    """Exit code 1 and no bundle: a judge said no."""
    with pytest.raises(JudgeError, match="not good enough: (kl|top1|perplexity_ratio) is"):
        build(write_recipe(gate=limits), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
