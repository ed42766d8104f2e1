"""Chat templates are written out as transformers writes them, and their turn ends are found."""

from __future__ import annotations

from typing import Any

import pytest

from specc.contracts.chat_template import find_turn_end, render_chat
from specc.errors import InputError

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
        + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{% set role = 'model' %}"
    "{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{%- if messages[0].role == 'system' %}{%- set system = messages[0].content %}"
    "{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}"
    "{{ bos_token }}{% for message in rest %}{% if message.role == 'user' %}"
    "{{ '[INST] ' + (system + '\n\n' if system is defined and loop.first else '') "
    "+ message.content + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
NAMES = (
    "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ pad_token }}|{{ sep_token }}|"
    "{{ 'yes' if bos_token is defined else 'no' }}|{{ 'yes' if pad_token else 'no' }}|"
    "{{ tools }}|{{ documents }}|"
    "{% generation %}{{ messages[-1].content }}{% endgeneration %}{{ messages | tojson }}"
)
TEMPLATES = {"ChatML": CHATML, "Llama-3": LLAMA_3, "Gemma": GEMMA, "Mistral": MISTRAL, "names": NAMES}
SYSTEM = {"role": "system", "content": "  You are <kind>. "}
TALKS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": " hi\n"}],
    [SYSTEM, {"role": "user", "content": "é <|im_end|>"}],
    [
        {"role": "user", "content": "one", "tool_calls": None},
        {"role": "assistant", "content": " two "},
        {"role": "user", "content": "three"},
    ],
)
TOKENS: tuple[dict[str, str], ...] = (
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    {"eos_token": "<|im_end|>"},
    {},
)


def outcome(render: Any) -> str:
    """The text, or that the template refused."""
    try:
        return str(render())
    except Exception:
        return "refused"


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("tokens", TOKENS, ids=["all", "eos", "none"])
def test_text_equals_transformers(template: str, tokens: dict[str, str]) -> None:
    """Every conversation, with and without the generation prompt; a token that is absent is no text.

    transformers refuses to join text to a token that is absent; there is a test of its own for that.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3, "<|im_end|>": 4}
    reference = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, "<unk>")), chat_template=template, **tokens
    )
    for talk in TALKS:
        for prompt in (True, False):
            wanted = outcome(
                lambda talk=talk, prompt=prompt: reference.apply_chat_template(
                    talk, tokenize=False, add_generation_prompt=prompt
                )
            )
            found = outcome(lambda talk=talk, prompt=prompt: render_chat(template, talk, tokens, prompt))
            if wanted != "refused" or "eos_token" in tokens:
                assert found == wanted


def test_an_absent_token_is_empty_where_text_is_joined() -> None:
    """llama.cpp#5040: `transformers` raises there; a missing begin token is no reason not to answer."""
    assert render_chat("{{ bos_token + 'a' + eos_token }}", [], {}) == "a"


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        ("<|im_end|>\n", 5),
        (" </s>", 2),
        ("{{ eos_token }}", 2),
        ("\n<|end|><|im_end|>", 6),
        ("<|end|>ing", 6),
        ("", None),
        ("\n### User:\n<|im_end|>", None),
        ("{{ raise_exception('no') }}", None),
        ("{% if add_generation_prompt %}<|end|>{% else %}<|return|>{% endif %}", 7),
    ],
)
def test_the_turn_end_is_the_control_token_behind_the_content(behind: str, found: int | None) -> None:
    """llama.cpp#6745."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}" + behind + "{% endfor %}"
    )
    controls = {"<|im_start|>": 4, "<|im_end|>": 5, "</s>": 2, "<|end|>": 6, "<|return|>": 7}
    assert find_turn_end(template, {"eos_token": "</s>"}, controls) == found


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% endif %}{% endfor %}<e>{% endfor %}",
        "{% if messages[-1].role != 'user' %}{{ raise_exception('user last') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<e>{% endfor %}",
    ],
)
def test_templates_with_wishes_of_their_own(template: str) -> None:
    assert find_turn_end(template, {}, {"<e>": 1}) == 1


def test_the_longest_of_two_control_tokens() -> None:
    assert find_turn_end("{{ messages[-1].content }}<e><n>", {}, {"<e>": 1, "<e><n>": 2}) == 2


def test_no_template_text() -> None:
    with pytest.raises(InputError, match="refused the conversation"):
        render_chat("{% for %}", [], {})
