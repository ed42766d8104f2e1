"""Recipes: what they may say, and one sentence with file, line, found and allowed for what they may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specc.contracts.recipe import GateLimits, Sampling, load_recipe
from specc.contracts.scheme import Scheme
from specc.errors import InputError, RecipeError

Write = Callable[..., Path]


def test_tiny_recipe_is_read(write_recipe: Write) -> None:
    recipe = load_recipe(write_recipe())
    assert (recipe.name, recipe.k, recipe.context) == ("tiny", 4, 128)
    assert recipe.draft.kind == "ngram" and (recipe.draft.min_match, recipe.draft.max_match) == (2, 4)
    assert recipe.sampling == Sampling() and recipe.gate == GateLimits()
    assert len(recipe.sha256) == 64 and recipe.folder == Path(recipe.file).parent


@pytest.mark.parametrize(
    ("value", "scheme"),
    [
        ("w4", Scheme("w4", "w8")),
        ("fp32", Scheme("fp32", "fp32")),
        ("dynamic-int8", Scheme("dynamic-int8", "dynamic-int8")),
        ({"layers": "w8", "head": "fp32"}, Scheme("w8", "fp32")),
        ({"layers": "w4", "block": 64}, Scheme("w4", "w8", 64)),
        (None, Scheme("w4", "w8")),
    ],
)
def test_scheme_in_short_and_in_full(write_recipe: Write, value: Any, scheme: Scheme) -> None:
    assert load_recipe(write_recipe(scheme=value)).scheme == scheme


def test_head_of_four_bit_layers_has_eight_bits_unless_said(write_recipe: Write) -> None:
    """R40: a 4-bit head makes models repeat themselves; target and draft heads are set apart."""
    draft = {"kind": "model", "checkpoint": "d", "scheme": {"layers": "w4", "head": "fp32"}}
    recipe = load_recipe(write_recipe(scheme="w4", draft=draft))
    assert recipe.scheme.head == "w8"
    assert recipe.draft.scheme == Scheme("w4", "fp32")


@pytest.mark.parametrize("k", ["auto", None])
def test_k_may_be_left_to_the_plan(write_recipe: Write, k: Any) -> None:
    assert load_recipe(write_recipe(k=k)).k is None


BAD = [
    ({"contxt": 9}, "unknown key 'contxt'", "did you mean 'context'?"),
    ({"sampling": {"temprature": 1}}, "unknown key 'sampling.temprature'", "did you mean 'temperature'?"),
    ({"k": 0}, "k is 0", "whole numbers from 1 to 16 or 'auto'"),
    ({"k": 17}, "k is 17", "whole numbers from 1 to 16 or 'auto'"),
    ({"k": "four"}, "k is 'four'", "whole numbers from 1 to 16 or 'auto'"),
    ({"k": True}, "k is True", "whole numbers from 1 to 16"),
    ({"k": 2.5}, "k is 2.5", "whole numbers from 1 to 16"),
    ({"k": [4]}, "k is [4]", "whole numbers from 1 to 16"),
    ({"context": 5}, "context is 5", "whole numbers from 6 (K + 2)"),
    ({"context": None}, "'context' is missing", "whole numbers"),
    ({"context": "long"}, "context is 'long'", "whole numbers"),
    ({"target": None}, "'target' is missing", "a mapping"),
    ({"target": "tiny"}, "target is 'tiny'", "a mapping"),
    ({"target": {"checkpoint": 3}}, "target.checkpoint is 3", "a non-empty string"),
    ({"target": {}}, "'target.checkpoint' is missing", "a non-empty string"),
    ({"draft": {"kind": "eagle"}}, "draft.kind is 'eagle'", "ngram, model, early-exit, none"),
    ({"draft": {"kind": "ngram", "layers": 3}}, "unknown key 'draft.layers'", "a draft of kind ngram"),
    ({"draft": {"kind": "model"}}, "'draft.checkpoint' is missing", "a non-empty string"),
    ({"draft": {"min_match": 5, "max_match": 3}}, "draft.max_match is 3", "from 5 (min_match) to 16"),
    ({"scheme": "int3"}, "scheme is 'int3'", "fp32, w8, w4, dynamic-int8"),
    ({"scheme": {"layers": "w4", "head": "dynamic-int8"}}, "the head is dynamic-int8", "for both or none"),
    ({"scheme": {"block": 33}}, "scheme.block is 33", "16, 32, 64"),
    ({"sampling": {"temperature": -1}}, "sampling.temperature is -1", "numbers from 0"),
    ({"sampling": {"temperature": "hot"}}, "sampling.temperature is 'hot'", "numbers from 0"),
    ({"sampling": {"top_p": 0}}, "sampling.top_p is 0", "numbers above 0 to 1"),
    ({"sampling": {"top_p": 2}}, "sampling.top_p is 2", "numbers above 0 to 1"),
    ({"sampling": {"top_k": -1}}, "sampling.top_k is -1", "whole numbers from 0"),
    ({"sampling": {"repetition_penalty": 0}}, "repetition_penalty is 0", "numbers above 0"),
    ({"gate": {"top1_min": 1.5}}, "gate.top1_min is 1.5", "numbers from 0 to 1"),
    ({"gate": {"allow_bounded": True}}, "gate.allow_bounded is True", "numbers from 0 to 1"),
    ({"certify": ["temperature", "typical_p"]}, "certify is", "a list is needed of words from temperature"),
    ({"threads": -1}, "threads is -1", "whole numbers from 0"),
    ({"prompt_template": "alpaca"}, "prompt_template is 'alpaca'", "chat, none"),
    ({"name": "a/b"}, "name is 'a/b'", "letters, digits"),
    ({"eos": 2}, "eos is 2", "a list is needed of at most 100 token ids or token strings"),
    ({"eos": [True]}, "eos is [True]", "token ids or token strings"),
    ({"eos": [-1]}, "eos is [-1]", "token ids or token strings"),
    ({"eos": ["</s>", 2.5]}, "eos is ['</s>', 2.5]", "token ids or token strings"),
    ({"eos": list(range(300))}, "eos is [0, 1", "at most 100"),
    ({"stop_ids": "\n"}, "stop_ids is '\\n'", "a list is needed"),
    ({"stop_ids": [""]}, "stop_ids is ['']", "token ids or token strings"),
    ({"template": 3}, "template is 3", "a non-empty string"),
    ({"template": "nowhere.jinja"}, "template is 'nowhere.jinja'", "a file's path relative to the recipe"),
    ({"template": "{% for m in messages %}"}, "template is no Jinja text", "correct it"),
    ({"template": "{{ m }}", "prompt_template": "none"}, "prompt_template is none", "keep one of them"),
]


@pytest.mark.parametrize(("keys", "found", "allowed"), BAD, ids=[found for _, found, _ in BAD])
def test_what_no_recipe_may_say(write_recipe: Write, keys: dict[str, Any], found: str, allowed: str) -> None:
    path = write_recipe(**keys)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:") and found in message and allowed in message and "\n" not in message


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf"])
def test_numbers_must_be_finite(write_recipe: Write, value: str) -> None:
    path = write_recipe(f"target: {{checkpoint: x}}\ncontext: 64\nsampling:\n  temperature: {value}\n")
    with pytest.raises(
        RecipeError, match=r"recipe.yaml:4: sampling.temperature is -?(nan|inf); allowed are numbers"
    ):
        load_recipe(path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("context: 0x" + "f" * 5000, "context is a very long number; allowed are whole numbers"),
        ("context: [0x" + "f" * 5000 + "]", "context is a very long number"),
        ("sampling: {temperature: " + "9" * 400 + "}", "temperature is 99999"),
        (
            "sampling: {temperature: 0x" + "f" * 5000 + "}",
            "temperature is a very long number; allowed are numbers",
        ),
        ('target: {checkpoint: "a\\0b"}', "target.checkpoint is 'a\\x00b'; a string without NUL"),
        ('target: {checkpoint: "a\\uD800b"}', "target.checkpoint is 'a\\ud800b'; a string without NUL"),
    ],
)
def test_values_beyond_what_python_takes(write_recipe: Write, line: str, found: str) -> None:
    key = line.partition(":")[0]
    path = write_recipe(**{key: None})
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert found in str(caught.value) and len(str(caught.value)) < 400


def test_the_line_is_that_of_the_key(write_recipe: Write) -> None:
    path = write_recipe(
        "# comment\ntarget:\n  checkpoint: x\n\ndraft:\n  kind: ngram\n  max_mtch: 4\ncontext: 64\n"
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.line == 7


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("context: 64\ncontext: 65\n", 2, "stands twice (first in line 1)"),
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("- 1\n", 1, "the file holds no mapping"),
        ("", 1, "the file holds no mapping"),
        ("1: 2\n", 1, "a key is '1'"),
        ("context: !!python/object:os.system x\n", 1, "context is"),
        ("context: 64\na: &a [1, 2]\nb: &b [*a, *a]\nc: [*b, *b]\n", 3, "aliases are not used here"),
        ("a: &a [*a]\n", 1, "aliases are not used here"),
        ("a: " + "[" * 5000 + "]" * 5000, 1, "nested too deeply"),
        ("a: " + "{a: " * 5000 + "1" + "}" * 5000, 1, "nested too deeply"),
        ("a: 1\nb: !!bool x\n", 2, "b is 'x'"),
        ("a: !!timestamp x\n", 1, "a is 'x'"),
        ("a: !!int ''\n", 1, "a is ''"),
        ("a: !!float '" + "1:" * 600 + "1'\n", 1, "a is '1:1:"),
        ('a: "\\UFFFFFFFF"\n', 1, "not YAML"),
        ("a: " + "9" * 5000 + "\n", 1, "a is '999"),
    ],
)
def test_files_that_are_no_recipe(write_recipe: Write, text: str, line: int, found: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write_recipe(text))
    assert caught.value.line == line and found in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        load_recipe(tmp_path / "bytes.yaml")


def test_template_ends_and_stops(write_recipe: Write) -> None:
    """The template is written out, or stands in a file beside the recipe; they belong to the target."""
    text = "{% for m in messages %}{{ m.content }}<e>{% endfor %}"
    path = write_recipe(template=text, eos=[2, "<e>", 2], stop_ids=["\n"])
    target = load_recipe(path).target
    assert (target.template, target.eos, target.stop_ids) == (text, (2, "<e>"), ("\n",))
    (path.parent / "chat.jinja").write_text(text)
    assert load_recipe(write_recipe(template="chat.jinja")).target.template == text
    plain = load_recipe(write_recipe()).target
    assert (plain.template, plain.eos, plain.stop_ids) == (None, None, ())
