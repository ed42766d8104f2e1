"""Whether decoded text is the concatenation of what each id adds: that is how the runtime streams text.

A tokenizer's decoder may do more (replace over the joined text, clean spaces up, put spaces between words).
Such a chain cannot be expressed by a table of bytes, and is refused.
"""

from __future__ import annotations

import random
from typing import Any

from specc.errors import InputError
from specc.exporter.checkpoint.tokenizer import (
    TokenizerJson,
    flatten_decoder,
    list_id_bytes,
    strips_leading_space,
)

SPACE = "\u2581"
SEQUENCES, LENGTH, SEED = 64, 16, 20261201


def check_decoder(tokens: TokenizerJson, name: str) -> None:
    """Raise InputError where the decoder of checkpoint `name` does more than joining bytes.

    First every step of the chain is looked at; then sequences of ids are decoded both ways and compared.
    """
    for step in flatten_decoder(tokens.json.get("decoder")):
        if not joins_bytes(step):
            raise InputError(
                f"The tokenizer of {name} decodes by a step {describe(step)}, which works on joined text "
                "and cannot be streamed id by id; take it out of the decoder in tokenizer.json if its "
                "output does not need it."
            )
    check_sequences(tokens, name)


def joins_bytes(step: dict[str, Any]) -> bool:
    """Whether a decoder step acts on each token by itself (or on the first token's leading space)."""
    kind = step.get("type")
    if kind in ("ByteLevel", "ByteFallback", "Fuse"):
        return True
    if kind == "Metaspace":
        return bool(step.get("replacement", SPACE) == SPACE)
    if kind == "Replace":
        return bool(step.get("pattern") == {"String": SPACE} and step.get("content") == " ")
    if kind == "Strip":
        return bool(step.get("content") == " " and step.get("start", 0) <= 1 and not step.get("stop", 0))
    return False


def describe(step: dict[str, Any]) -> str:
    """A decoder step for a sentence."""
    pattern = step.get("pattern", {})
    text = next(iter(pattern.values()), None) if isinstance(pattern, dict) else None
    return f"{step.get('type')}" + (f" of {text!r} by {step.get('content')!r}" if text is not None else "")


def check_sequences(tokens: TokenizerJson, name: str) -> None:
    """Decode sequences of ids by the library and by the table; they must agree. Ids with broken UTF-8 are
    left out.
    """
    from tokenizers import Tokenizer

    library, table = Tokenizer.from_str(tokens.text), list_id_bytes(tokens)
    written = {i for i, token in tokens.by_id.items() if token != "<0x20>"}  # no encoder writes a space so
    whole = [i for i, token in enumerate(table) if token and is_utf8(token) and i in written]
    if not whole:
        raise InputError(f"The tokenizer of {name} has no id that adds text; fetch its tokenizer.json again.")
    draw = random.Random(SEED)
    for _ in range(SEQUENCES):
        ids = [draw.choice(whole) for _ in range(LENGTH)]
        joined = b"".join(table[i] for i in ids).decode()
        if strips_leading_space(tokens):
            joined = joined.removeprefix(" ")
        decoded = library.decode(ids)
        if decoded != joined:
            raise InputError(
                f"The tokenizer of {name} decodes ids {ids[:4]}... to {decoded[:24]!r} and id by id to "
                f"{joined[:24]!r}; its decoder cannot be streamed, use a checkpoint with a byte-level or "
                "SentencePiece tokenizer."
            )


def is_utf8(data: bytes) -> bool:
    """Whether bytes are whole UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
