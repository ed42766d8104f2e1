"""The pre-tokenizer that a GGUF file names cuts its text; one that is not known is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.gguf_files import byte_tokens
from tokenizers import Regex, Tokenizer, pre_tokenizers

from specc.errors import InputError
from specc.exporter.checkpoint.gguf_tokenizer import PATTERNS, apply_pre_tokenizer

MERGES = ["3 4", "1 2", "12 3"]


def byte_level_json() -> str:
    """A byte-level tokenizer.json of the byte alphabet and three merges, its text cut in another way."""
    tokens = [*byte_tokens(257)[:256], "34", "12", "123"]
    model = {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": MERGES}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "post_processor": None,
            "decoder": None,
            "model": model,
        }
    )


def cut(pre: str, text: str) -> list[str]:
    """The tokens of `text` by the pre-tokenizer of that name."""
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
    found = Tokenizer.from_str(apply_pre_tokenizer(byte_level_json(), metadata, "m.gguf"))
    return list(found.encode(text, add_special_tokens=False).tokens)


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("llama-bpe", ["123", "4"]),  # up to three digits stay together
        ("gpt-2", ["12", "34"]),  # a whole number: the first merge that was learned wins
        ("qwen2", ["1", "2", "3", "4"]),  # each digit alone
        ("smollm", ["1", "2", "3", "4"]),
        ("refact", ["1", "2", "3", "4"]),
    ],
)
def test_digits_are_cut_as_the_file_says(pre: str, wanted: list[str]) -> None:
    assert cut(pre, "1234") == wanted


TEXTS = [
    "[\n    1,\n    2\n]",
    "def f(x):\n\treturn x  # it's\r\n\r\n",
    "  a  b   12345 !!\n",
    "été 你好 Ωx'LL",
]


@pytest.mark.parametrize("text", TEXTS)
def test_smollm_is_every_digit_alone_then_gpt2(text: str) -> None:
    """The two steps of SmolLM2's own tokenizer.json: Digits(individual) and ByteLevel with its pattern."""
    reference = Tokenizer.from_str(byte_level_json())
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    assert cut("smollm", text) == reference.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pre", sorted(PATTERNS))
def test_nothing_is_lost_in_cutting(pre: str, text: str) -> None:
    """The pieces put together are the bytes of the text."""
    letters = {t: i for i, t in enumerate(byte_tokens(257)[:256])}
    joined = bytes(letters[letter] for token in cut(pre, text) for letter in token)
    assert joined.decode() == text


@pytest.mark.parametrize("pre", [None, "default", "of-tomorrow"])
def test_unknown_pre_tokenizer_is_refused(pre: str | None) -> None:
    metadata: dict[str, Any] = {"tokenizer.ggml.model": "gpt2"}
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    with pytest.raises(InputError, match=r"tokenizer\.ggml\.pre"):
        apply_pre_tokenizer(byte_level_json(), metadata, "m.gguf")


def test_other_kinds_of_vocabulary() -> None:
    """SentencePiece needs no cutting; others are not read."""
    assert apply_pre_tokenizer("{}", {"tokenizer.ggml.model": "llama"}, "m.gguf") == "{}"
    with pytest.raises(InputError, match="tokenizer.ggml.model = 'rwkv'"):
        apply_pre_tokenizer("{}", {"tokenizer.ggml.model": "rwkv"}, "m.gguf")
