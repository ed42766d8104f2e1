"""What a tokenizer says, id by id: its map, its bytes, its end tokens, and whether two of them agree."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from specc.errors import InputError

RULES = ("normalizer", "pre_tokenizer", "decoder")
SPACE = "\u2581"  # SentencePiece's mark for a space


@dataclass(frozen=True)
class TokenizerJson:
    """A tokenizer as its tokenizer.json text."""

    text: str

    @cached_property
    def json(self) -> dict[str, Any]:
        """The parsed tokenizer.json."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed

    @cached_property
    def by_id(self) -> dict[int, str]:
        """Id -> token string, added tokens included."""
        vocab = self.json["model"]["vocab"]
        pairs = vocab.items() if isinstance(vocab, dict) else ((piece[0], i) for i, piece in enumerate(vocab))
        known = {int(i): str(token) for token, i in pairs}
        known.update({int(t["id"]): str(t["content"]) for t in self.json.get("added_tokens") or ()})
        return dict(sorted(known.items()))

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of special tokens, which add no text."""
        return frozenset(int(t["id"]) for t in self.json.get("added_tokens") or () if t.get("special"))

    @property
    def count(self) -> int:
        """Highest id plus one."""
        return max(self.by_id) + 1


def hash_id_map(by_id: dict[int, str]) -> str:
    """SHA-256 over the sorted (id, token) pairs."""
    digest = hashlib.sha256()
    for i, token in sorted(by_id.items()):
        digest.update(json.dumps([i, token]).encode())
    return digest.hexdigest()


def hash_rules(tokens: TokenizerJson) -> dict[str, str]:
    """SHA-256 of normalizer, pre-tokenizer and decoder, each by itself."""
    parts = {name: json.dumps(tokens.json.get(name), sort_keys=True) for name in RULES}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}


def compare_tokenizers(
    target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str] = ("the target", "the draft")
) -> tuple[str, ...]:
    """Notes on harmless differences; raises InputError naming the first id or rule in which two tokenizers differ.

    Harmless are special tokens that only one of them has: the other never writes them. Merges count, since the same
    words would be cut otherwise.
    """
    check_ids(target, draft, names)
    check_rules(target, draft, names)
    return tuple(note_extra_tokens(target, draft, names[1]) + note_extra_tokens(draft, target, names[0]))


def check_ids(target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str]) -> None:
    """Every id that both know must be the same token, and ids of one alone must be special."""
    for i in sorted(target.by_id.keys() | draft.by_id.keys()):
        ours, theirs = target.by_id.get(i), draft.by_id.get(i)
        if (
            ours == theirs
            or (theirs is None and i in target.special)
            or (ours is None and i in draft.special)
        ):
            continue
        raise InputError(
            f"{join_names(names)} have different tokenizers: id {i} is {ours!r} in {names[0]}, {theirs!r} in {names[1]}; "
            "take models that were trained with one tokenizer."
        )


def check_rules(target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str]) -> None:
    """Normalizer, pre-tokenizer, decoder and merges must be equal."""
    pairs = [(name, target.json.get(name), draft.json.get(name)) for name in RULES]
    pairs.append(("merges", list_merges(target), list_merges(draft)))
    for name, ours, theirs in pairs:
        if ours != theirs:
            raise InputError(
                f"{join_names(names)} have different tokenizers: the {name.replace('_', '-')} is not the same "
                "although the ids are; take models that were trained with one tokenizer."
            )


def join_names(names: tuple[str, str]) -> str:
    """Both names at the head of a sentence."""
    return f"{names[0][0].upper()}{names[0][1:]} and {names[1]}"


def list_merges(tokens: TokenizerJson) -> list[tuple[str, ...]]:
    """Merge rules as pairs; both spellings of tokenizer.json ("a b" and ["a", "b"]) read alike."""
    listed = tokens.json["model"].get("merges") or []
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in listed]


def note_extra_tokens(a: TokenizerJson, b: TokenizerJson, name: str) -> list[str]:
    """One note per special token that only `b` has."""
    return [
        f"id {i} {token!r} is a special token of {name} only"
        for i, token in b.by_id.items()
        if i not in a.by_id
    ]


def list_id_bytes(tokens: TokenizerJson) -> list[bytes]:
    """What each id 0..count-1 adds to decoded text; special tokens and unused ids add nothing."""
    kinds = list_decoder_kinds(tokens.json.get("decoder"))
    one = decode_byte_level if "ByteLevel" in kinds else decode_sentence_piece
    out = [b""] * tokens.count
    for i, token in tokens.by_id.items():
        out[i] = b"" if i in tokens.special else one(token)
    return out


def strips_leading_space(tokens: TokenizerJson) -> bool:
    """Whether a decoded text loses the space that its first token starts with (SentencePiece)."""
    for part in flatten_decoder(tokens.json.get("decoder")):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start", 0) > 0:
            return True
        if part.get("type") == "Metaspace":
            return part.get("prepend_scheme", "always") != "never" and bool(
                part.get("add_prefix_space", True)
            )
    return False


def flatten_decoder(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoders of a tokenizer, a sequence spread out."""
    if decoder is None:
        return []
    inner = decoder.get("decoders") if decoder.get("type") == "Sequence" else None
    return [p for d in inner for p in flatten_decoder(d)] if inner else [decoder]


def list_decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Type names of a tokenizer's decoders."""
    return {str(part.get("type")) for part in flatten_decoder(decoder)}


def decode_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; one with a character outside the byte alphabet stands for itself."""
    values = [BYTE_OF.get(c) for c in token]
    return token.encode() if any(v is None for v in values) else bytes(v for v in values if v is not None)


def decode_sentence_piece(token: str) -> bytes:
    """Bytes of a SentencePiece token: <0xE2> is one byte, the space mark is a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode()


def make_byte_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level alphabet."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(rest)}}


BYTE_OF = make_byte_alphabet()
