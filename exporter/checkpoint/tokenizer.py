"""A tokenizer.json id by id: its map, its bytes, its special tokens, and whether two of them agree."""

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
    """The text of a tokenizer.json and what it says."""

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
        """The highest id plus one."""
        return max(self.by_id) + 1


def check_rows(tokens: TokenizerJson, name: str, rows: int, ends: tuple[int, ...]) -> None:
    """Raise InputError unless the tokenizer of the checkpoint `name` fits an embedding of `rows` rows.

    Added tokens past the last row are harmless until a prompt holds one. Ordinary ones are not, since any
    text may hold them; nor are the `ends`, which must be tokens with a row.
    """
    added = {int(token["id"]) for token in tokens.json.get("added_tokens") or ()}
    for i in sorted({i for i in tokens.by_id if i not in added}.union(ends)):
        kind = "end token" if i in ends else "token"
        if i in tokens.by_id and i >= rows:
            raise InputError(
                f"the tokenizer of the checkpoint {name!r} has the {kind} {tokens.by_id[i]!r} with id {i}, "
                f"but the embedding has {rows} rows; take the tokenizer that the model was trained with"
            )
        if i not in tokens.by_id:
            raise InputError(
                f"the checkpoint {name!r} has the {kind} {i}, which its tokenizer of {tokens.count} ids does "
                "not know; correct eos_token_id in its config.json and generation_config.json"
            )


def hash_id_map(by_id: dict[int, str]) -> str:
    """SHA-256 over the sorted (id, token) pairs."""
    digest = hashlib.sha256()
    for i, token in sorted(by_id.items()):
        digest.update(json.dumps([i, token]).encode())
    return digest.hexdigest()


def hash_rules(tokens: TokenizerJson) -> dict[str, str]:
    """SHA-256 of the normalizer, the pre-tokenizer and the decoder, by name."""
    parts = {name: json.dumps(tokens.json.get(name), sort_keys=True) for name in RULES}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in parts.items()}


def compare_tokenizers(
    target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str] = ("the target", "the draft")
) -> tuple[str, ...]:
    """Notes on harmless differences. Raises InputError that names the first id or rule that differs.

    Special tokens that only one tokenizer has are harmless: the other never writes them. Merges must be
    equal, since they decide how words are split.
    """
    check_ids(target, draft, names)
    check_rules(target, draft, names)
    return tuple(note_extra_tokens(target, draft, names[1]) + note_extra_tokens(draft, target, names[0]))


def check_ids(target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str]) -> None:
    """An id of both must be the same token in both, and an id of one alone must be special.

    Raises InputError.
    """
    for i in sorted(target.by_id.keys() | draft.by_id.keys()):
        of_target, of_draft = target.by_id.get(i), draft.by_id.get(i)
        if (
            of_target == of_draft
            or (of_draft is None and i in target.special)
            or (of_target is None and i in draft.special)
        ):
            continue
        raise InputError(
            f"{join_names(names)} have different tokenizers: id {i} is {of_target!r} in {names[0]}, "
            f"{of_draft!r} in {names[1]}; take models that were trained with one tokenizer."
        )


def check_rules(target: TokenizerJson, draft: TokenizerJson, names: tuple[str, str]) -> None:
    """Normalizer, pre-tokenizer, decoder and merges must be equal. Raises InputError."""
    pairs = [(name, target.json.get(name), draft.json.get(name)) for name in RULES]
    pairs.append(("merges", list_merges(target), list_merges(draft)))
    for name, of_target, of_draft in pairs:
        if of_target != of_draft:
            raise InputError(
                f"{join_names(names)} have different tokenizers: the {name.replace('_', '-')} is not the same"
                " although the ids are; take models that were trained with one tokenizer."
            )


def join_names(names: tuple[str, str]) -> str:
    """Both names, as a sentence starts."""
    return f"{names[0][0].upper()}{names[0][1:]} and {names[1]}"


def list_merges(tokens: TokenizerJson) -> list[tuple[str, ...]]:
    """Merge rules as pairs, from either form in tokenizer.json ("a b" or ["a", "b"])."""
    listed = tokens.json["model"].get("merges") or []
    return [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in listed]


def note_extra_tokens(a: TokenizerJson, b: TokenizerJson, name: str) -> list[str]:
    """One note for each special token that only `b` has."""
    return [
        f"id {i} {token!r} is a special token of {name} only"
        for i, token in b.by_id.items()
        if i not in a.by_id
    ]


def list_id_bytes(tokens: TokenizerJson) -> list[bytes]:
    """The bytes that each id 0..count-1 adds to decoded text; empty for special tokens and unused ids."""
    kinds = list_decoder_kinds(tokens.json.get("decoder"))
    decode = decode_byte_level if "ByteLevel" in kinds else decode_sentence_piece
    out = [b""] * tokens.count
    for i, token in tokens.by_id.items():
        out[i] = b"" if i in tokens.special else decode(token)
    return out


def strips_leading_space(tokens: TokenizerJson) -> bool:
    """Whether decoding drops the space at the start of the first token (SentencePiece)."""
    for part in flatten_decoder(tokens.json.get("decoder")):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start", 0) > 0:
            return True
        if part.get("type") == "Metaspace":
            return part.get("prepend_scheme", "always") != "never" and bool(
                part.get("add_prefix_space", True)
            )
    return False


def flatten_decoder(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoders of a tokenizer; the parts of a sequence one by one."""
    if decoder is None:
        return []
    inner = decoder.get("decoders") if decoder.get("type") == "Sequence" else None
    return [p for d in inner for p in flatten_decoder(d)] if inner else [decoder]


def list_decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    """The type names of a tokenizer's decoders."""
    return {str(part.get("type")) for part in flatten_decoder(decoder)}


def decode_byte_level(token: str) -> bytes:
    """Bytes of a byte-level token; a token with a character outside the byte alphabet is taken as UTF-8."""
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
