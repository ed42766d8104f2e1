"""A checkpoint's identity: any byte of any file that is read changes it, and with it the key of every stage
that opens the checkpoint. That no other stage opens one is held in all tests (conftest.keyed_reads).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import tiny

from specc.contracts.files import hash_file
from specc.contracts.recipe import load_recipe
from specc.errors import EnvironmentFault, InputError
from specc.pipeline import identity
from specc.pipeline.build import build
from specc.pipeline.checkpoint import describe
from specc.pipeline.clock import Clock
from specc.pipeline.export import export_graphs
from specc.pipeline.identity import identify, run_reading_stage
from specc.pipeline.pack import checkpoint_origin
from specc.pipeline.plan import plan_build
from specc.pipeline.tokenizer import write_tokenizer

Write = Callable[..., Path]
TEXTS = {
    "config.json": '{"model_type": "llama"}',
    "generation_config.json": '{"eos_token_id": [1]}',
    "tokenizer.json": '{"model": {"vocab": {}}}',
    "tokenizer_config.json": '{"chat_template": "A"}',
    "special_tokens_map.json": "{}",
    "added_tokens.json": "{}",
    "vocab.json": "{}",
    "merges.txt": "a b\n",
    "tokenizer.model": "\x01\x02",
    "chat_template.jinja": "{{ messages }}",
    "chat_templates/tool.jinja": "{{ tools }}",
    "model.safetensors.index.json": '{"weight_map": {"x": "parts/0.safetensors"}}',
    "parts/0.safetensors": "weights",
}
ADDED = ("adapter_config.json", "chat_template.json", "added.jinja", "vocab.txt", "more.safetensors")
STAGES = {"spec", "tokenizers", "choice", "tokenizer", "engine", "sensitivity"}


def write_texts(folder: Path) -> Path:
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], bool]]:
    """(kind, identities, came from the cache) of each stage that opens checkpoints, as they run."""
    log: list[tuple[str, list[str], bool]] = []
    run_stage = identity.run_stage

    def run_and_note(kind: str, inputs: Any, run: Any) -> Any:
        entry = run_stage(kind, inputs, run)
        if kind != "file":
            log.append((kind, inputs["checkpoints"], entry.cached))
        return entry

    monkeypatch.setattr(identity, "run_stage", run_and_note)
    return log


@pytest.fixture
def build_pair(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Builds target `tiny` with the draft model `other` and K open; a call a build."""

    def measure(planned: Any, progress: Any, folder: Path) -> dict[str, Any]:
        planned.target.open()
        planned.draft.open()
        return {"k": 2, "stages": [0]}

    monkeypatch.setattr("specc.pipeline.choice.measure_choice", measure)
    monkeypatch.setattr("specc.exporter.checkpoint.tokenizer.compare_tokenizers", lambda *_: ())
    write_texts(fake_model.folder)
    write_texts(tmp_path / "other")
    recipe = write_recipe(k="auto", draft={"kind": "model", "checkpoint": "other"})
    return lambda: build(recipe, out=tmp_path / "b", sensitivity=True) and None


def test_every_byte_counts(tmp_path: Path) -> None:
    """Each byte of each file, each file removed, each file added."""
    folder = write_texts(tmp_path / "m")
    seen = {identify(folder).sha256}
    for name, text in TEXTS.items():
        content, before = text.encode(), len(seen)
        for at in range(len(content)):
            (folder / name).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            seen.add(identify(folder).sha256)
        (folder / name).unlink()
        seen.add(identify(folder).sha256)
        assert len(seen) == before + len(content) + 1, name
        (folder / name).write_bytes(content)
    for name in ADDED:
        (folder / name).write_text("{}")
        seen.add(identify(folder).sha256)
    assert len(seen) == 1 + sum(len(text.encode()) + 1 for text in TEXTS.values()) + len(ADDED)


def test_what_a_recipe_sets_instead_counts(
    tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace
) -> None:
    """A template and end tokens of the recipe are a part of what the stages read."""
    changes: list[dict[str, Any]] = [{}, {"template": "{{ messages }}"}, {"eos": [3]}, {"eos": []}]
    records = [describe(load_recipe(write_recipe(**keys)).target, tmp_path) for keys in changes]
    assert len({record.identity.sha256 for record in records}) == len(changes)


@pytest.mark.parametrize("folder", ["tiny", "other"])
def test_no_stage_serves_a_changed_checkpoint(
    tmp_path: Path, build_pair: Callable[[], None], served: Any, folder: str
) -> None:
    """One byte of a file changes, a file goes, a file comes: in the target, in the draft."""

    def identities() -> dict[str, str]:
        overrides = {"template": None, "eos": None}
        return {place: identify(tmp_path / place, overrides).sha256 for place in ("tiny", "other")}

    build_pair()
    for name in ("config.json", "chat_templates/tool.jinja", "merges.txt", "added.json"):
        before, path = identities(), tmp_path / folder / name
        if name == "merges.txt":
            path.unlink()
        else:
            path.write_bytes((path.read_bytes() if path.exists() else b"") + b" ")
        del served[:]
        build_pair()
        after = identities()
        assert [place for place in after if after[place] != before[place]] == [folder]
        assert {kind for kind, _, _ in served} == STAGES
        new = [cached for _, checkpoints, cached in served if after[folder] in checkpoints]
        old = [cached for _, checkpoints, cached in served if after[folder] not in checkpoints]
        assert len(new) >= 4 and not any(new) and old and all(old)
        assert not any(before[folder] in checkpoints for _, checkpoints, _ in served)


def test_an_untouched_checkpoint_is_served(
    tmp_path: Path, build_pair: Callable[[], None], served: Any
) -> None:
    """The control: nothing changed, files touched, files that are not read."""
    build_pair()
    assert {kind for kind, _, _ in served} == STAGES and not any(cached for _, _, cached in served)
    del served[:]
    os.utime(tmp_path / "tiny" / "config.json")
    (tmp_path / "tiny" / "README.md").write_text("prose")
    (tmp_path / "other" / ".gitattributes").write_text("*.bin lfs")
    build_pair()
    found_in_plan = {"choice"}
    assert {kind for kind, _, _ in served} == STAGES - found_in_plan
    assert all(cached for _, _, cached in served)


def test_the_stages_read_what_changed(
    tmp_path: Path, write_recipe: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and ids stay; configuration, template, tokenizer rules and end tokens change."""

    def export(checkpoint: Any, engine: Any, place: Path, progress: Any) -> Any:
        (place / "target.onnx").write_text(str(checkpoint.load().config.rms_norm_eps))
        return SimpleNamespace(node_count=1, stage_errors={}, quality={}, notes=())

    def run_stages() -> tuple[tuple[int, ...], dict[str, str]]:
        clock = Clock(None)
        planned = plan_build(load_recipe(recipe), None, clock)
        entries = [write_tokenizer(planned, clock), *export_graphs(planned, {}, clock).values()]
        files = [path for entry in entries for path, _ in entry.sources().values()]
        texts = {path.name: path.read_text() for path in files if path.suffix != ".bin"}
        assert checkpoint_origin(planned.target)["files"]["config.json"] == hash_file(folder / "config.json")
        return planned.target.spec.eos, texts

    monkeypatch.setattr("specc.exporter.export.export_graph", export)
    (tmp_path / "text.txt").write_text("a text of some length " * 9)
    folder, recipe = tiny.tiny_folder(tmp_path / "tiny"), write_recipe(calibration={"text": "text.txt"})
    eos, texts = run_stages()
    assert eos == (255,) and "chat_template.jinja" not in texts
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.125}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 255]}')
    rules = {**tiny.tokenizer_json(), "normalizer": {"type": "Lowercase"}}
    (folder / "tokenizer.json").write_text(json.dumps(rules))
    eos, texts = run_stages()
    assert eos == (7, 255) and texts["chat_template.jinja"] == "{{ messages }}"
    assert texts["target.onnx"] == "0.125"
    assert json.loads(texts["tokenizer.json"])["normalizer"] == rules["normalizer"]


# ------------------------------------------------------------ what is remembered of a file


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose hash is remembered from the first look on; its folder is a checkpoint."""
    monkeypatch.setattr(identity, "SMALL", 0)
    monkeypatch.setattr(identity, "SETTLED_NS", 0)
    (tmp_path / "m").mkdir()
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read to the end."""
    names: list[str] = []

    def note(path: Path) -> str:
        names.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(identity, "hash_file", note)
    return names


def test_large_files_are_read_once(weights: Path, hashed: list[str]) -> None:
    first = identify(weights.parent)
    assert identify(weights.parent) == first and hashed == ["model.safetensors"]


def test_an_edit_that_keeps_size_and_time_is_seen(weights: Path) -> None:
    first, stat = identify(weights.parent).sha256, weights.stat()
    while True:
        weights.write_bytes(b"WEIGHTS")
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if weights.stat().st_ctime_ns != stat.st_ctime_ns:
            break
    assert weights.stat().st_mtime_ns == stat.st_mtime_ns
    assert identify(weights.parent).sha256 != first


def test_a_file_of_this_moment_is_read_again(
    weights: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit within one step of the file system's clock leaves even the change time as it was."""
    monkeypatch.setattr(identity, "SETTLED_NS", 2_000_000_000)
    now = time.time_ns()
    monkeypatch.setattr(identity, "file_signature", lambda path: [7, now, now, 1])
    first = identify(weights.parent).sha256
    weights.write_bytes(b"WEIGHTS")
    assert identify(weights.parent).sha256 != first and len(hashed) == 2
    old = now - 10**10
    monkeypatch.setattr(identity, "file_signature", lambda path: [7, old, old, 1])
    identify(weights.parent), identify(weights.parent)
    assert len(hashed) == 3, "of an older file the stamps are trusted"


def test_links_that_lead_elsewhere_are_seen(tmp_path: Path, weights: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode())
    weights.unlink()
    seen = []
    for name in ("one", "two"):
        weights.unlink(missing_ok=True)
        weights.symlink_to(tmp_path / name)
        seen.append(identify(weights.parent).sha256)
    (tmp_path / "two").write_bytes(b"2!!")
    seen.append(identify(weights.parent).sha256)
    (tmp_path / "link").symlink_to(weights.parent)
    assert identify(tmp_path / "link").sha256 == seen[2]
    assert len(set(seen)) == 3


def test_each_part_of_a_split_gguf_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    first = identify(parts[0])
    assert list(first.files) == [part.name for part in parts]
    parts[1].write_bytes(b"GGUf")
    assert identify(parts[0]).sha256 != first.sha256


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(identity, "hash_file", refuse)
    with pytest.raises(EnvironmentFault, match=r"reading the checkpoint .*config.json"):
        identify(tmp_path)


# ------------------------------------------------------------ changes while a stage runs


@pytest.mark.parametrize("name", ["model.safetensors", "chat_template.jinja"])
def test_a_change_while_a_stage_runs_is_refused(weights: Path, own_cache: Path, name: str) -> None:
    checkpoint = identify(weights.parent)

    def run(folder: Path) -> dict[str, Any]:
        (weights.parent / name).write_bytes(b"changed")
        return {}

    with pytest.raises(InputError, match=f"changed while it was read .{name}"):
        run_reading_stage("engine", {}, [checkpoint], run)
    assert not list((own_cache / "engine").glob("*"))


def test_a_change_while_a_file_is_hashed_is_refused(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_meanwhile(path: Path) -> str:
        path.write_bytes(b"longer than before")
        return "0" * 64

    monkeypatch.setattr(identity, "hash_file", write_meanwhile)
    with pytest.raises(InputError, match="changed while it was read"):
        identify(weights.parent)
