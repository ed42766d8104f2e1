"""How a GGUF file's text is cut before its merges apply: `tokenizer.ggml.pre`, as llama.cpp understands it.

transformers converts the vocabulary of a GGUF file and guesses the pre-tokenizer from the architecture; the
file names it. Patterns are those of llama.cpp (llama-vocab.cpp), written for the `tokenizers` library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specc.errors import InputError

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's pattern: a contraction, a word, a number or signs, each with one space before it."""
CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TRIPLES = CASELESS + r"\p{N}{1,3}" + SIGNS
DIGITS = CASELESS + r"\p{N}" + SIGNS
EACH_DIGIT = r"\p{N}"

PATTERNS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "mpt", "gigachat"), (WORDS,)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"), (TRIPLES,)),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"), (DIGITS,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        (EACH_DIGIT, WORDS),
    ),
}
"""Patterns by name; one after the other they cut what the one before left whole."""
WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3"})
"""Names under which a word that is a token is taken whole, whatever its merges say."""


def apply_pre_tokenizer(tokenizer: str, metadata: Mapping[str, Any], name: str) -> str:
    """The tokenizer.json text with the pre-tokenizer that the GGUF file `name` states.

    Raises InputError for a byte-level vocabulary whose pre-tokenizer is not named or not known, and for a
    kind of vocabulary that is not read.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model == "llama":  # SentencePiece: spaces are part of the tokens, nothing is cut before
        return tokenizer
    if model != "gpt2":
        raise InputError(
            f"The GGUF file {name} has tokenizer.ggml.model = {model!r}; gpt2 and llama can be read, or "
            "use the safetensors folder of the same model."
        )
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    if pre not in PATTERNS:
        found = "has no tokenizer.ggml.pre" if not pre else f"has tokenizer.ggml.pre = {pre!r}"
        raise InputError(
            f"The GGUF file {name} {found}, so how its text is cut is not known; known are "
            f"{', '.join(sorted(PATTERNS))}. Use the safetensors folder of the same model."
        )
    parsed = json.loads(tokenizer)
    parsed["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            *(
                {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
                for p in PATTERNS[pre]
            ),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }
    parsed["model"]["ignore_merges"] = pre in WHOLE_WORDS_FIRST
    return json.dumps(parsed, ensure_ascii=False)
