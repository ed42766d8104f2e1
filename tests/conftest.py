"""Fixtures: recipes from text, the command line, and a model whose export takes no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

RECIPE = """\
name: tiny
target: {checkpoint: tiny}
draft: {kind: ngram}
k: 4
context: 128
scheme: fp32
prompt_template: chat
"""
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's build cache."""
    monkeypatch.setenv("SPECC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def keyed_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stage of a build opens a checkpoint whose identity is not in the stage's key."""
    from specc.pipeline import cache
    from specc.pipeline.checkpoint import CheckpointRecord

    key_of, open_record = cache.key_of, CheckpointRecord.open
    stage = SimpleNamespace(kind="", checkpoints=())

    def note_stage(kind: str, inputs: Mapping[str, Any]) -> str:
        if kind != "file":
            stage.kind, stage.checkpoints = kind, inputs.get("checkpoints", ())
        return key_of(kind, inputs)

    def open_in_stage(record: CheckpointRecord) -> Any:
        known = record.identity.sha256 in stage.checkpoints
        assert known, f"the key of the stage {stage.kind} lacks the identity of {record.source.checkpoint}"
        return open_record(record)

    monkeypatch.setattr(cache, "key_of", note_stage)
    monkeypatch.setattr(CheckpointRecord, "open", open_in_stage)


@pytest.fixture
def specc(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line; returns exit code, standard output and standard error."""

    from specc.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recipe: the tiny one with keys replaced (None drops a key), or the text given."""

    def write(text: str | None = None, **keys: Any) -> Path:
        lines = [line for line in RECIPE.splitlines() if line.partition(":")[0] not in keys]
        lines += [f"{key}: {json.dumps(value)}" for key, value in keys.items() if value is not None]
        path = tmp_path / "recipe.yaml"
        path.write_text("\n".join(lines) + "\n" if text is None else text)
        return path

    return write


def byte_tokenizer() -> str:
    """tokenizer.json of a byte-level tokenizer: id 0 <s>, 1 </s>, 2.. one id a byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1, **{letter: i + 2 for i, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return str(tokenizer.to_str())


def fake_checkpoint(spec: Any) -> SimpleNamespace:
    """A checkpoint with a byte-level tokenizer."""
    text = byte_tokenizer()

    def save_tokenizer(place: Path) -> Path:
        (place / "tokenizer.json").write_text(text, encoding="utf-8")
        return place / "tokenizer.json"

    return SimpleNamespace(
        spec=spec,
        provenance={"source": "tiny"},
        chat_template=TEMPLATE,
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        stop_ids=(),
        strip_leading_space=False,
        id_bytes=lambda: [b"", b"", *(bytes([i]) for i in range(256))],
        save_tokenizer=save_tokenizer,
        tokens=text,
    )


@pytest.fixture
def fake_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A checkpoint folder `tiny` and an exporter that writes a few bytes; `.exports` counts the exports."""
    from specc.contracts.model_spec import ModelSpec
    from specc.pipeline import checkpoint as remembered
    from specc.pipeline.source_code import code_hash

    folder = tmp_path / "tiny"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    counter = SimpleNamespace(exports=0, folder=folder)
    shape = (258, 258, 2, 32, 4, 2, 8, 64, 2048)
    spec = ModelSpec("llama", *shape, True, (1,), 0, 20000, "i" * 64, "w" * 64, None, None)
    fake = fake_checkpoint(spec)

    def export(checkpoint: Any, engine: Any, place: Path, progress: Any = None) -> Any:
        counter.exports += 1
        (place / f"{engine.name}.onnx").write_bytes(b"graph of " + engine.name.encode())
        if not engine.shares:
            (place / f"{engine.name}.onnx.data").write_bytes(b"weights of " + engine.name.encode() * 100)
        quality = {"kl": 0.1, "top1": 0.9, "perplexity_ratio": 1.02}
        return SimpleNamespace(node_count=7, stage_errors={"trace": 1e-6}, quality=quality, notes=("a note",))

    remembered.open_once.cache_clear()
    code_hash.cache_clear()
    monkeypatch.setattr("specc.pipeline.checkpoint.open_once", lambda source, base, identity: fake)
    monkeypatch.setattr("specc.exporter.export.export_graph", export)
    monkeypatch.setattr("specc.pipeline.opening.call_model", lambda bundle: None)  # its graphs are no graphs
    monkeypatch.setattr("specc.gate.lint.lint_file", lambda path, engine="auto": [])
    groups = [{"group": f"layer {i}", "kl": 0.01 * i, "top1": 0.9} for i in range(5)]
    monkeypatch.setattr("specc.exporter.check.sensitivity.measure_sensitivity", lambda *_: groups)
    counter.checkpoint, counter.spec = fake, spec
    return counter
