"""Chat templates: Jinja texts that write a conversation out, rendered as `transformers` renders them.

`bos_token`, `eos_token` and the other names of TOKEN_NAMES are the tokenizer's own strings. A name that the
tokenizer leaves out, or sets to null, is undefined there and is written as the empty string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import Template, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specc.errors import InputError

Messages = Sequence[Mapping[str, Any]]

TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""Special tokens that every template may name."""
REFUSALS = (
    TemplateError,
    SecurityError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""What a template raises that does not fit the conversation."""


class AbsentToken(Undefined):
    """A special token that the tokenizer does not have: not defined, and empty where text is joined to it."""

    def __add__(self, other: Any) -> Any:
        return other

    def __radd__(self, other: Any) -> Any:
        return other


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's part for training; here it is its
    content.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Messages,
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool = True,
) -> str:
    """The conversation as text. `special_tokens`: strings by name, such as `bos_token`.

    Raises InputError with the template's own words where it refuses the conversation.
    """
    tokens = {name: AbsentToken(name=name) for name in TOKEN_NAMES} | dict(special_tokens)
    try:
        return compile_template(template).render(
            messages=[drop_missing(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **tokens,
        )
    except REFUSALS as error:
        raise InputError(
            f"the chat template refused the conversation: {error}; use --raw to go without"
        ) from error


def drop_missing(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without the keys whose value is None, which templates would write out as "None"."""
    return {key: value for key, value in message.items() if value is not None}


@cache
def compile_template(template: str) -> Template:
    """The compiled template. Raises TemplateError for a text that is none."""
    extensions = [Generation, "jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    environment.globals.update(raise_exception=refuse, strftime_now=strftime_now)
    return environment.from_string(template)


def check_template(template: str) -> str | None:
    """Why the text is no Jinja template; None where it is one."""
    try:
        compile_template(template)
    except REFUSALS as error:
        return str(error)
    return None


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """`tojson` as chat templates expect it: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def refuse(message: str) -> None:
    """`raise_exception(...)` of a template."""
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    """`strftime_now(...)` of a template."""
    return datetime.now().strftime(form)


MARK = "specc:content"
"""Stands for the assistant's content where a turn's end is looked for."""
TURN = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": MARK})
PROBES: tuple[Messages, ...] = (
    TURN,
    tuple({**message, "content": [{"type": "text", "text": message["content"]}]} for message in TURN),
    (*TURN, {"role": "user", "content": "Hi"}),
)
"""Conversations in the forms that templates ask for: contents as strings or in parts, a user's turn last."""


def find_turn_end(
    template: str, special_tokens: Mapping[str, str], control_tokens: Mapping[str, int]
) -> int | None:
    """Id of the control token that the template writes behind the assistant's content; it ends a turn.

    control_tokens: id by string. None where no such token follows, or where the template refuses every
    conversation with an assistant's message.
    """
    for messages in PROBES:
        try:
            text = render_chat(template, messages, special_tokens, add_generation_prompt=False)
        except InputError:
            continue
        _, mark, after = text.rpartition(MARK)
        if mark:
            after = after.lstrip()
            found = [token for token in control_tokens if token.strip() and after.startswith(token.strip())]
            return control_tokens[max(found, key=len)] if found else None
    return None
