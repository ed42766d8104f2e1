"""End tokens and special tokens of checkpoints, from every place where they can stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specc.contracts.recipe import TokenNotFound
from specc.errors import InputError
from specc.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from specc.exporter.checkpoint.end_tokens import (
    Overrides,
    find_end_tokens,
    read_gguf_special_tokens,
    read_gguf_tokens,
)
from specc.exporter.checkpoint.gguf_header import GgufHeader
from specc.exporter.checkpoint.source import Source

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import tiny  # noqa: E402

CHATML = "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<turn>\n{% endfor %}"
TURN, START = 250, 251


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A tiny model whose configuration names no end token, with two more control tokens."""
    folder = tiny.tiny_folder(tmp_path / "model", eos_token_id=None)
    parsed = tiny.tokenizer_json()
    vocab = parsed["model"]["vocab"]
    for id, token in ((TURN, "<turn>"), (START, "<start>")):
        del vocab[next(letter for letter, known in vocab.items() if known == id)]
        vocab[token] = id
        parsed["added_tokens"].insert(0, {**parsed["added_tokens"][-1], "id": id, "content": token})
    (folder / "tokenizer.json").write_text(json.dumps(parsed))
    change(folder / "tokenizer_config.json", eos_token=None)
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert opened(folder).spec.eos == ()
    return folder


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**found, **values}))


def opened(folder: Path, **overrides: Any) -> Checkpoint:
    return open_checkpoint(str(folder), overrides=Overrides(**overrides))


ENDS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("config.json", {"eos_token_id": 3}, (3,)),
    ("config.json", {"eos_token_id": [3, 9]}, (3, 9)),
    ("config.json", {"text_config": {"eos_token_id": 4}}, (4,)),
    ("generation_config.json", {"eos_token_id": [7, 3]}, (3, 7)),
    ("tokenizer_config.json", {"eos_token": "<end>"}, (255,)),
    ("tokenizer_config.json", {"eos_token": {"content": "<end>", "lstrip": False}}, (255,)),
    ("special_tokens_map.json", {"eos_token": "<turn>"}, (TURN,)),
    ("special_tokens_map.json", {"eos_token": {"content": "<turn>"}}, (TURN,)),
    ("tokenizer_config.json", {"chat_template": CHATML}, (TURN,)),
    ("tokenizer_config.json", {"chat_template": CHATML.replace("<turn>", "{{ eos_token }}")}, ()),
]


@pytest.mark.parametrize(("file", "values", "found"), ENDS)
def test_each_place_alone(own: Path, file: str, values: dict[str, Any], found: tuple[int, ...]) -> None:
    change(own / file, **values)
    assert opened(own).spec.eos == found


def test_all_places_together(own: Path) -> None:
    change(own / "config.json", eos_token_id=3)
    change(own / "generation_config.json", eos_token_id=[4])
    change(own / "tokenizer_config.json", eos_token="<end>")
    (own / "chat_template.jinja").write_text(CHATML)
    assert opened(own).spec.eos == (3, 4, TURN, 255)


@pytest.mark.parametrize("is_special", [True, False])
def test_a_turn_end_need_not_be_marked_special(own: Path, is_special: bool) -> None:
    """As in checkpoints whose <|im_end|> is an ordinary added token; its text is not shown."""
    parsed = json.loads((own / "tokenizer.json").read_text())
    next(t for t in parsed["added_tokens"] if t["id"] == TURN)["special"] = is_special
    (own / "tokenizer.json").write_text(json.dumps(parsed))
    (own / "chat_template.jinja").write_text(CHATML)
    checkpoint = opened(own)
    assert checkpoint.spec.eos == (TURN,) and checkpoint.id_bytes()[TURN] == b""


def test_an_end_token_of_tokenizer_config_alone(own: Path) -> None:
    """Its id is beyond what tokenizer.json and the model know: refused, not dropped."""
    added = {"300": {"content": "<late>", "special": True}}
    change(own / "tokenizer_config.json", eos_token="<late>", added_tokens_decoder=added)
    with pytest.raises(InputError, match="end token 300 in eos_token of tokenizer_config.json"):
        opened(own).spec  # noqa: B018


@pytest.mark.parametrize("id", [256, 100000, -1])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_id_beyond_the_vocabulary_is_refused_by_name(own: Path, file: str, id: int) -> None:
    change(own / file, eos_token_id=[3, id])
    with pytest.raises(InputError, match=f"end token {id} in eos_token_id of {file}.* 0 to 255; .*eos:"):
        opened(own).spec  # noqa: B018
    assert opened(own, eos=(7, "<turn>")).spec.eos == (7, TURN), "a recipe sets it right"


@pytest.mark.parametrize("value", ["<end>", True, 2.5, {"id": 2}, [None]])
def test_what_is_no_id_is_refused_by_name(own: Path, value: Any) -> None:
    change(own / "generation_config.json", eos_token_id=value)
    with pytest.raises(InputError, match="eos_token_id of generation_config.json"):
        opened(own).spec  # noqa: B018


def test_a_recipe_sets_template_ends_and_stops(own: Path) -> None:
    """Its template counts as the checkpoint's would; its end tokens take the place of all others."""
    change(own / "config.json", eos_token_id=3)
    checkpoint = opened(own, template=CHATML, stop_ids=("<start>", 9))
    assert checkpoint.chat_template == CHATML and checkpoint.spec.eos == (3, TURN)
    assert checkpoint.stop_ids == (9, START)
    assert opened(own, template=CHATML, eos=()).spec.eos == ()


@pytest.mark.parametrize("key", ["eos", "stop_ids"])
@pytest.mark.parametrize(("token", "found"), [("<nobody>", "'<nobody>'"), (256, "256")])
def test_a_token_of_a_recipe_that_is_none(own: Path, key: str, token: Any, found: str) -> None:
    checkpoint = opened(own, **{key: (token,)})
    with pytest.raises(TokenNotFound, match=f"{key} has {found}") as caught:
        (checkpoint.spec.eos, checkpoint.stop_ids)  # noqa: B018
    assert caught.value.key == key


@pytest.mark.parametrize(
    "settings",
    [
        {"bos_token": None, "eos_token": "<end>"},
        {
            "bos_token": {"__type": "AddedToken", "content": "<start>"},
            "eos_token": "<end>",
            "pad_token": "<turn>",
        },
        {"eos_token": "<end>", "unk_token": "<start>", "additional_special_tokens": ["<turn>"]},
        {},
    ],
)
def test_the_strings_of_templates_equal_transformers(own: Path, settings: dict[str, Any]) -> None:
    """llama.cpp#5040: they are the tokenizer's, whatever the configuration names."""
    from transformers import AutoTokenizer

    from specc.contracts.chat_template import render_chat

    change(own / "config.json", eos_token_id=[255, 3], bos_token_id=3)
    names = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ bos_token is defined }}"
    template = names + "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    kept = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (own / "tokenizer_config.json").write_text(json.dumps({**kept, **settings}))
    talk = [{"role": "user", "content": "hi"}]
    wanted = AutoTokenizer.from_pretrained(own).apply_chat_template(talk, tokenize=False)
    checkpoint = opened(own)
    assert render_chat(template, talk, checkpoint.special_tokens, False) == wanted


def test_a_tokenizer_that_transformers_cannot_open(own: Path) -> None:
    """The strings of its files are taken then."""
    custom = {"tokenizer_class": "Nobodys", "auto_map": {"AutoTokenizer": ["nobody.Nobody", None]}}
    change(own / "tokenizer_config.json", chat_template="x", eos_token="<end>", **custom)
    change(own / "special_tokens_map.json", bos_token={"content": "<start>"})
    assert opened(own).special_tokens == {"bos_token": "<start>", "eos_token": "<end>"}


# ---------------------------------------------------------------------- GGUF keys

GGUF = {
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<|im_end|>", "a", "<|eom|>"],
    "tokenizer.ggml.token_type": [2, 3, 3, 3, 1, 3],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("keys", "turn_end", "found"),
    [
        ({}, None, (2,)),
        ({"tokenizer.ggml.eot_token_id": 3}, None, (2, 3)),
        ({"tokenizer.ggml.eom_token_id": 5, "tokenizer.ggml.eot_token_id": 3}, None, (2, 3, 5)),
        ({}, 3, (2, 3)),
    ],
)
def test_the_keys_of_a_gguf_file(keys: dict[str, Any], turn_end: int | None, found: tuple[int, ...]) -> None:
    """llama.cpp#6745."""
    named = read_gguf_tokens({**GGUF, **keys}, "m.gguf")
    assert find_end_tokens(named, turn_end, 6, "m.gguf") == found
    assert named.controls == {"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_end|>": 3, "<|eom|>": 5}


@pytest.mark.parametrize("key", ["eos", "eot", "eom"])
def test_a_gguf_id_beyond_the_vocabulary(key: str) -> None:
    named = read_gguf_tokens({**GGUF, f"tokenizer.ggml.{key}_token_id": 6}, "m.gguf")
    with pytest.raises(InputError, match=rf"m.gguf names the end token 6 in tokenizer.ggml.{key}_token_id"):
        find_end_tokens(named, None, 6, "m.gguf")


def test_the_strings_of_a_gguf_file() -> None:
    found = read_gguf_special_tokens({**GGUF, "tokenizer.ggml.padding_token_id": 2**32 - 1})
    assert found == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("overrides", "found"),
    [(Overrides(), (2, 3)), (Overrides(eos=("a",)), (4,)), (Overrides(template="{{ messages }}"), (2,))],
)
def test_a_gguf_file_whose_turns_end_otherwise(overrides: Overrides, found: tuple[int, ...]) -> None:
    """llama.cpp#6745: eos is </s>, the template's turns end with <|im_end|>; target and draft alike."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    checkpoint = Checkpoint(Source("m", Path("m.gguf"), None), overrides)
    header = GgufHeader({**GGUF, "tokenizer.chat_template": template}, (), 0)
    checkpoint.__dict__["header"] = header
    assert checkpoint.find_ends(6) == found
    assert checkpoint.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
