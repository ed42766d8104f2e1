"""From what a user types to token ids: chat template, tokenizer, exactly one begin token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specc.contracts.bundle.manifest import Bundle
from specc.contracts.chat_template import Messages, render_chat
from specc.errors import InputError, describe_read_error
from specc.generate.user_text import QuotingTokenizer, locate_contents

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


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
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """special_tokens: the strings that templates may name; None: those of `bos` and `eos`."""
        self._tokenizer, self._template = tokenizer, template
        self._bos, self._eos, self._ids = bos, tuple(eos), ids
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._special_tokens = self._tokens_of_ids() if special_tokens is None else dict(special_tokens)
        self.notes = list[str]()
        """What could not be done for a conversation, as sentences."""

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Prompter:
        """The prompter of a bundle; without a template where its recipe says `prompt_template: none`."""
        part = bundle.manifest["tokenizer"]
        chat = part["chat_template"] if bundle.manifest.get("prompt_template", "chat") == "chat" else None
        template = read_template(bundle.folder / chat) if chat else None
        tokenizer = load_tokenizer(bundle.folder / part["file"])
        return cls(tokenizer, template, part["bos"], part["eos"], part["ids"], part.get("special_tokens"))

    @property
    def has_template(self) -> bool:
        """Whether messages can be rendered."""
        return self._template is not None

    def encode_raw(self, text: str) -> list[int]:
        """Ids of the text as it stands; a begin token that is already written out is not put there twice.

        Raises InputError for a token that the model has no row for.
        """
        ids = list(self._tokenizer.encode(text, add_special_tokens=True).ids)
        twice = self._bos is not None and ids[:2] == [self._bos, self._bos]
        return self._check(ids[1:] if twice else ids)

    def encode_chat(self, messages: Messages, parse_special: bool = False) -> list[int]:
        """Ids of the rendered template; its begin token, if any, is the template's own.

        Special tokens that the messages write out stay text unless `parse_special`.
        """
        text = self.render(messages)
        if not parse_special:
            contents = locate_contents(self.render, messages, self._quoting.pattern)
            ids = None if contents is None else self._quoting.encode(text, contents)
            if ids is not None:
                return self._check(ids)
            self.notes.append(
                "the chat template changes the text, so special tokens in it could not be told from the "
                "template's own and were taken as tokens"
            )
        return self._check(list(self._tokenizer.encode(text, add_special_tokens=False).ids))

    def encode_text(self, text: str) -> list[int]:
        """Ids of a part of a message, in which special tokens stay text."""
        return self._quoting.encode_text(text)

    def encode_user(self, text: str, parse_special: bool = False) -> list[int]:
        """One question of a user; raw where the bundle has no template."""
        if not self.has_template:
            return self.encode_raw(text)
        return self.encode_chat([{"role": "user", "content": text}], parse_special)

    def _check(self, ids: list[int]) -> list[int]:
        """The ids, all of which the model has. Raises InputError."""
        return ids if self._ids is None else check_ids(ids, self._ids, "the prompt", self._tokenizer)

    def render(self, messages: Messages) -> str:
        """The conversation as text, ready for the assistant's turn. Raises InputError with the template's own
        words.
        """
        if self._template is None:
            raise InputError(
                "this bundle has no chat template; use --raw or put a template into the checkpoint"
            )
        return render_chat(self._template, messages, self._special_tokens)

    @cached_property
    def _quoting(self) -> QuotingTokenizer:
        """Encodes the user's text without the tokens that steer the model: special ones, those that the
        bundle names, and added ones that the template writes.
        """
        named, template = set(self._special_tokens.values()), self._template or ""

        def is_control(id: int, token: AddedToken) -> bool:
            text = token.content
            is_written = len(text) > 2 and text in template
            return token.special or id in self._eos or text in named or is_written

        added = self._tokenizer.get_added_tokens_decoder()
        control = {id: t.content for id, t in added.items() if t.content.strip() and is_control(id, t)}
        return QuotingTokenizer(self._tokenizer, control)

    def _tokens_of_ids(self) -> dict[str, str]:
        """Begin and end token by their ids, for a bundle that does not name its special tokens."""
        ends = [self._tokenizer.id_to_token(id) for id in self._eos]
        begin = self._tokenizer.id_to_token(self._bos) if self._bos is not None else None
        return {"bos_token": begin or "", "eos_token": next((end for end in ends if end), "")}


def check_ids(ids: list[int], count: int, where: str, tokenizer: Tokenizer | None = None) -> list[int]:
    """The ids. Raises InputError for one that a model of ids 0 to `count` - 1 has no row for."""
    past = next((id for id in ids if id >= count), None)
    if past is None:
        return ids
    token = "" if tokenizer is None else f" {tokenizer.id_to_token(past)!r}"
    raise InputError(
        f"{where} holds the token{token} with id {past}, for which the model has no embedding row (its ids "
        f"are 0 to {count - 1}); leave it out"
    )


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
