"""How the target's chat template frames a user's turn, as the answers that drafts are made from need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specc.calib.answers import Dialogue
from specc.generate.template import Prompter

if TYPE_CHECKING:
    from specc.exporter.checkpoint.checkpoint import Checkpoint

MARK = "\x01user\x01"
"""Stands for the user's text while the template is rendered."""


def make_dialogue(checkpoint: Checkpoint) -> Dialogue:
    """The target's dialogue; without a chat template the text alone, behind a begin token if there is one.

    Special tokens in a user's text stay text, as in a prompt.
    """
    from tokenizers import Tokenizer

    tokenizer, spec = Tokenizer.from_str(checkpoint.tokens.text), checkpoint.spec
    prompter = Prompter(
        tokenizer,
        checkpoint.chat_template,
        spec.bos,
        spec.eos,
        spec.token_ids,
        checkpoint.special_tokens,
    )
    before, after = "", ""
    if prompter.has_template:
        before, _, after = prompter.render([{"role": "user", "content": MARK}]).partition(MARK)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    begin = [] if prompter.has_template or spec.bos is None else [spec.bos]
    return Dialogue((*begin, *encode(before)), tuple(encode(after)), prompter.encode_text, decode)
