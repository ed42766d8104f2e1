"""End tokens, stop ids and special tokens on their way from a recipe into the bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specc.errors import RecipeError
from specc.pipeline.build import build

Write = Callable[..., Path]


def test_the_manifest_holds_the_tokens_of_templates(
    write_recipe: Write, fake_model: Any, tmp_path: Path
) -> None:
    """A generation ends at stop ids too; the model's own end tokens are those that are not among them."""
    fake_model.checkpoint.stop_ids = (5,)
    part = build(write_recipe(stop_ids=[5]), out=tmp_path / "b").bundle.manifest["tokenizer"]
    assert part["special_tokens"] == {"bos_token": "<s>", "eos_token": "</s>"}
    assert part["eos"] == [1, 5] and part["stop_ids"] == [5]


def test_a_checkpoint_without_end_token_builds_with_a_note(
    write_recipe: Write, fake_model: Any, tmp_path: Path, specc: Any
) -> None:
    fake_model.checkpoint.spec = replace(fake_model.spec, eos=())
    built = build(write_recipe(), out=tmp_path / "b")
    assert built.bundle.manifest["tokenizer"]["eos"] == []
    assert len(built.notes) == 1 and built.as_dict()["notes"] == list(built.notes)
    code, out, _ = specc("build", write_recipe(), "-o", tmp_path / "b")
    assert code == 0 and "names no end token" in " ".join(out.split())


def test_a_token_that_the_model_lacks_is_named_with_its_line(
    write_recipe: Write, fake_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specc.contracts.recipe import TokenNotFound

    def refuse(source: Any, base: Path, identity: str) -> Any:
        raise TokenNotFound("eos", "eos has '<x>'", "a token of the model's tokenizer is needed, or its id")

    monkeypatch.setattr("specc.pipeline.checkpoint.open_once", refuse)
    path = write_recipe(eos=["<x>"])
    line = path.read_text().splitlines().index('eos: ["<x>"]') + 1
    with pytest.raises(RecipeError, match=rf"recipe.yaml:{line}: eos has '<x>'; a token of the model"):
        build(path)


def test_special_tokens_in_prompts_of_the_training_data_stay_text(fake_model: Any) -> None:
    """As in a prompt of `specc run`: the text between the ids before and after is encoded as text."""
    from specc.pipeline.dialogue import make_dialogue

    parts = {**vars(fake_model.checkpoint), "tokens": SimpleNamespace(text=fake_model.checkpoint.tokens)}
    dialogue = make_dialogue(SimpleNamespace(**parts))  # type: ignore[arg-type]
    ids = dialogue.encode_prompt("</s>hi")
    assert ids.count(0) == 1 and ids.count(1) == 0
    assert dialogue.decode(ids) == "<|user|></s>hi<|assistant|>"
