"""From text to ids: exactly one begin token, the template's own words in errors."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from specc.errors import InputError
from specc.generate.template import Prompter

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}>"


def tokenizer(adds_bos: bool) -> Tokenizer:
    """Byte-level, one id a byte, <s> = 0 and </s> = 1; `adds_bos` as Llama's does."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(
        models.BPE(vocab={"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(letters)}}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    if adds_bos:
        made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def prompter(adds_bos: bool = True, template: str | None = TEMPLATE) -> Prompter:
    return Prompter(tokenizer(adds_bos), template, 0, (1,))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_one_begin_token_whoever_writes_it(adds_bos: bool) -> None:
    """R23: the template writes it, or the text does, or the tokenizer does; never two of them."""
    made = prompter(adds_bos)
    assert made.encode_user("hi").count(0) == 1 and made.encode_user("hi")[0] == 0
    rendered = made.render([{"role": "user", "content": "hi"}])
    assert rendered == "<s>[user]hi>" and made.encode_raw(rendered) == made.encode_user("hi")
    assert made.encode_raw("hi").count(0) == int(adds_bos)


def test_template_without_begin_token_adds_none() -> None:
    assert 0 not in prompter(True, TEMPLATE.replace("{{ bos_token }}", "")).encode_user("hi")


def test_ids_equal_transformers(tmp_path: Any) -> None:
    """R23: the same ids as apply_chat_template(tokenize=True)."""
    transformers = pytest.importorskip("transformers")
    for adds_bos in (False, True):
        reference = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer(adds_bos), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE
        )
        messages = [{"role": "system", "content": "é"}, {"role": "user", "content": "hi\n"}]
        wanted = reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
        wanted = wanted["input_ids"] if hasattr(wanted, "keys") else wanted
        assert prompter(adds_bos).encode_chat(messages) == list(wanted)


def test_without_a_template_text_is_taken_as_it_is() -> None:
    made = prompter(True, None)
    assert made.encode_user("hi") == made.encode_raw("hi") and not made.has_template
    with pytest.raises(InputError, match="no chat template; use --raw"):
        made.encode_chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "refused the conversation"),
        ("{% for m in messages %}", "refused the conversation"),
        ("{{ messages.append(1) }}", "refused the conversation"),
    ],
)
def test_templates_that_refuse_or_try_to_break_out(template: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        prompter(True, template).encode_user("hi")


def test_what_templates_expect_is_there() -> None:
    text = (
        "{% generation %}{{ messages|tojson }}{% endgeneration %}{% for i in [1, 2] %}{% break %}{% endfor %}"
    )
    assert (
        prompter(True, text).render([{"role": "user", "content": "<é>"}])
        == '[{"role": "user", "content": "<é>"}]'
    )
    assert len(prompter(True, "{{ strftime_now('%Y') }}").render([])) == 4


def test_long_texts_are_not_cut() -> None:
    made = tokenizer(True)
    made.enable_truncation(4)
    assert len(Prompter(made, None, 0, (1,)).encode_raw("x" * 100)) == 101
