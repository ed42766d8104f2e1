"""What was built opens: a bundle is tried once before it is put in place; ids without an embedding row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import tiny

from specc.contracts.bundle.manifest import read_bundle
from specc.errors import InputError, InternalFault, RuntimeFault
from specc.generate.template import Prompter
from specc.pipeline import opening
from specc.pipeline.build import build

Write = Callable[..., Path]
TOKEN = {"special": False, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}


def folder_with(place: Path, vocab: dict[str, int], added: dict[str, int], **changes: Any) -> Path:
    """A tiny checkpoint with further ordinary and added tokens."""
    folder = tiny.tiny_folder(place, **changes)
    tokenizer = tiny.tokenizer_json({**tiny.byte_vocab(), **vocab})
    tokenizer["added_tokens"] += [{"id": i, "content": text, **TOKEN} for text, i in added.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_an_added_token_without_a_row(tmp_path: Path, write_recipe: Write) -> None:
    """The bundle is built and opens; a prompt with the token is refused by its id."""
    pytest.importorskip("torch")
    folder_with(tmp_path / "tiny", {}, {"<image>": 256, "<video>": 257})
    bundle = build(write_recipe(context=96), out=tmp_path / "b").bundle
    assert bundle.manifest["tokenizer"]["ids"] == 256
    prompter = Prompter.from_bundle(bundle)
    assert prompter.encode_raw("see")
    for text, found in (("see <image>", "'<image>' with id 256"), ("<video>", "'<video>' with id 257")):
        with pytest.raises(InputError, match=found):
            prompter.encode_raw(text)


@pytest.mark.parametrize(
    ("vocab", "changes", "found"),
    [
        ({"zz": 256}, {}, "'zz' with id 256, but the embedding has 256 rows"),
        ({}, {"vocab_size": 300, "eos_token_id": 299}, "end token 299 .*ids are 0 to 255"),
    ],
)
def test_ids_that_do_not_fit_are_refused(
    tmp_path: Path, write_recipe: Write, vocab: dict[str, int], changes: dict[str, Any], found: str
) -> None:
    """Before anything is exported, naming the id and the number of rows."""
    pytest.importorskip("torch")
    folder_with(tmp_path / "tiny", vocab, {}, **changes)
    with pytest.raises(InputError, match=found):
        build(write_recipe(context=96), out=tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "error", [RuntimeFault("bad value; build the bundle again", 1), InputError("bad value")]
)
def test_a_bundle_that_does_not_open_is_not_written(
    tmp_path: Path,
    write_recipe: Write,
    fake_model: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """The fault is ours (exit 70), and the advice to build again is not passed on; the old bundle stays."""
    old = build(write_recipe(), out=tmp_path / "b").bundle
    call = opening_call(error)
    monkeypatch.setattr("specc.pipeline.opening.call_model", call)
    with pytest.raises(InternalFault, match="cannot be opened .bad value.*not written") as caught:
        build(write_recipe(k=3), out=tmp_path / "b")
    assert caught.value.exit_code == 70 and "again" not in str(caught.value)
    assert read_bundle(tmp_path / "b").digest == old.digest


def opening_call(error: Exception) -> Callable[[Any], None]:
    """The real last look, over a runtime that refuses."""
    from specc.runtime import Model

    real = REAL_CALL

    def call(bundle: Any) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Model, "open", refuse)
            real(bundle)

    return call


REAL_CALL = opening.call_model


def test_tables_that_do_not_fit(tmp_path: Path, write_recipe: Write, fake_model: SimpleNamespace) -> None:
    """A bundle of any machine is checked as far as it can be read."""
    fake_model.checkpoint.id_bytes = lambda: [b"x"] * 257
    with pytest.raises(InternalFault, match="id_bytes.bin holds 257 ids and the tokenizer 258"):
        build(write_recipe(hardware="cpu-arm64"), out=tmp_path / "b")
    assert not (tmp_path / "b").exists()
