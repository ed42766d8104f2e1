"""From what a user types to token ids: chat template, tokenizer, exactly one begin token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specc.contracts.bundle.manifest import Bundle
from specc.errors import InputError, describe_read_error

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Messages = Sequence[Mapping[str, Any]]


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's part for training; here it is its
    content.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Prompter:
    """Turns text or messages into the ids that the bundle's model was trained on.

    >>> from pathlib import Path
    >>> from specc import Prompter, read_bundle
    >>> prompter = Prompter.from_bundle(read_bundle(Path("bundle")))
    >>> prompter.encode_user("Hi")  # the tiny model has no chat template and one id a byte
    [72, 105]
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        bos: int | None,
        eos: Sequence[int],
        ids: int | None = None,
    ) -> None:
        self._tokenizer, self._template = tokenizer, template
        self._bos, self._eos, self._ids = bos, tuple(eos), ids
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Prompter:
        """The prompter of a bundle; without a template where its recipe says `prompt_template: none`."""
        part = bundle.manifest["tokenizer"]
        chat = part["chat_template"] if bundle.manifest.get("prompt_template", "chat") == "chat" else None
        template = read_template(bundle.folder / chat) if chat else None
        return cls(
            load_tokenizer(bundle.folder / part["file"]), template, part["bos"], part["eos"], part["ids"]
        )

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    def encode_raw(self, text: str) -> list[int]:
        """Ids of the text as it stands; a begin token that is already written out is not put there twice."""
        ids = list(self._tokenizer.encode(text, add_special_tokens=True).ids)
        twice = self._bos is not None and ids[:2] == [self._bos, self._bos]
        return ids[1:] if twice else ids

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of the rendered template; its begin token, if any, is the template's own."""
        return list(self._tokenizer.encode(self.render(messages), add_special_tokens=False).ids)

    def encode_user(self, text: str) -> list[int]:
        """One question of a user; raw where the bundle has no template."""
        return (
            self.encode_chat([{"role": "user", "content": text}])
            if self.has_template
            else self.encode_raw(text)
        )

    def render(self, messages: Messages) -> str:
        """The conversation as text, ready for the assistant's turn. Raises InputError with the template's own
        words.
        """
        if self._template is None:
            raise InputError(
                "this bundle has no chat template; use --raw or put a template into the checkpoint"
            )
        try:
            compiled = self._environment.from_string(self._template)
            return compiled.render(
                messages=list(messages), add_generation_prompt=True, tools=None, **self._tokens
            )
        except (TemplateError, SecurityError, TypeError, ValueError) as error:
            raise InputError(
                f"the chat template refused the conversation: {error}; use --raw to go without"
            ) from error

    @cached_property
    def _environment(self) -> ImmutableSandboxedEnvironment:
        extensions = [Generation, "jinja2.ext.loopcontrols"]
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=extensions
        )
        environment.filters["tojson"] = to_json
        environment.globals.update(raise_exception=refuse, strftime_now=strftime_now)
        return environment

    @cached_property
    def _tokens(self) -> dict[str, str]:
        """Special tokens that templates may name."""
        ends = [self._tokenizer.id_to_token(id) for id in self._eos]
        begin = self._tokenizer.id_to_token(self._bos) if self._bos is not None else None
        return {"bos_token": begin or "", "eos_token": next((end for end in ends if end), "")}


def read_template(path: Path) -> str:
    """The chat template of a bundle. Raises InputError for a file that is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read {path}: {describe_read_error(error)}; build the bundle again"
        ) from error


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a bundle. Raises InputError for a file that is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise InputError(f"{path} is no tokenizer ({error}); build the bundle again") from error


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """`tojson` as chat templates expect it: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def refuse(message: str) -> None:
    """`raise_exception(...)` of a template."""
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    """`strftime_now(...)` of a template."""
    return datetime.now().strftime(form)
