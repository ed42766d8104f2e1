"""A decoder that does more than joining bytes is refused, because text is streamed id by id."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.tiny import tokenizer_json

from specc.errors import InputError
from specc.exporter.checkpoint.decoder_steps import check_decoder
from specc.exporter.checkpoint.tokenizer import TokenizerJson

SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": False}


def sentence_piece(*steps: dict[str, Any]) -> TokenizerJson:
    """A byte-fallback tokenizer of a few pieces with a decoder of these steps."""
    pieces = ["<unk>", "<s>", "\n", f"{SPACE}a", f"{SPACE}b", "c", SPACE, "d"]
    vocab = (
        {p: i for i, p in enumerate(pieces)} | {f"<0x{b:02X}>": 8 + b for b in range(247)} | {"<end>": 255}
    )
    parsed = tokenizer_json(vocab)
    parsed["pre_tokenizer"] = METASPACE
    parsed["model"].update(byte_fallback=True, unk_token="<unk>")
    parsed["decoder"] = {"type": "Sequence", "decoders": list(steps)}
    return TokenizerJson(json.dumps(parsed))


@pytest.mark.parametrize(
    "steps",
    [
        (REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}),
        (
            REPLACE,
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
        ({"type": "ByteFallback"}, METASPACE, {"type": "Fuse"}),
    ],
)
def test_chains_that_join_bytes(steps: Any) -> None:
    check_decoder(sentence_piece(*steps), "m")


@pytest.mark.parametrize(
    "step",
    [
        {"type": "Replace", "pattern": {"String": "\n "}, "content": "\n"},
        {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "},
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        {"type": "Strip", "content": "\n", "start": 1, "stop": 0},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
    ],
)
def test_steps_over_joined_text_are_refused(step: Any) -> None:
    """Also where no sequence that was tried shows it."""
    tokens = sentence_piece({"type": "ByteFallback"}, METASPACE, {"type": "Fuse"}, step)
    with pytest.raises(InputError, match=f"The tokenizer of m decodes by a step {step['type']}"):
        check_decoder(tokens, "m")


def test_byte_level() -> None:
    check_decoder(TokenizerJson(json.dumps(tokenizer_json())), "m")


def test_missing_decoder_is_found_by_decoding() -> None:
    """Without a decoder the library puts a space between tokens; no step says so."""
    parsed = tokenizer_json()
    parsed["decoder"] = None
    with pytest.raises(InputError, match="its decoder cannot be streamed"):
        check_decoder(TokenizerJson(json.dumps(parsed)), "m")
