"""The ids that end a text, and the special tokens by name: from everywhere a checkpoint writes them down.

End tokens are merged from config.json, generation_config.json, tokenizer_config.json, special_tokens_map.json
or the keys of a GGUF file, and from the chat template: the control token behind the assistant's content ends
a turn, so it is an end token.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.contracts.chat_template import TOKEN_NAMES
from specc.contracts.recipe import TokenNotFound
from specc.errors import InputError
from specc.exporter.checkpoint.source import Source
from specc.exporter.checkpoint.tokenizer import TokenizerJson
from specc.exporter.checkpoint.weights import read_json

GGUF_ENDS = ("eos", "eot", "eom")
GGUF_TOKENS = {
    "bos_token": ("bos",),
    "eos_token": ("eos",),
    "unk_token": ("unknown",),
    "sep_token": ("separator", "seperator"),
    "pad_token": ("padding",),
    "cls_token": ("cls",),
    "mask_token": ("mask",),
}
"""Name in a template -> names before `_token_id` under `tokenizer.ggml`."""
NORMAL, CONTROL = 1, 3
"""Kinds of tokens in `tokenizer.ggml.token_type`."""

Named = tuple[str, int]
"""Where an end token is written down, and its id."""


@dataclass(frozen=True)
class Overrides:
    """What a recipe sets in place of the checkpoint's own; see specc.contracts.recipe.Source."""

    template: str | None = None
    eos: tuple[int | str, ...] | None = None
    stop_ids: tuple[int | str, ...] = ()


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class NamedTokens:
    """The tokens of a checkpoint and what its files name as ends."""

    by_id: Mapping[int, str]
    ends: Sequence[Named]
    controls: Mapping[str, int]
    """Id by string of the tokens that may end a turn."""


def find_end_tokens(named: NamedTokens, turn_end: int | None, count: int, checkpoint: str) -> tuple[int, ...]:
    """All end tokens in rising order. turn_end: of the chat template; count: ids that the model and its
    tokenizer both know.

    Raises InputError for an end token beyond them.
    """
    for place, id in named.ends:
        if not 0 <= id < count:
            raise InputError(
                f"The checkpoint {checkpoint} names the end token {id} in {place}, but its ids are 0 to "
                f"{count - 1}; correct it there, or write eos: [...] into the recipe."
            )
    ends = {id for _, id in named.ends}
    return tuple(sorted(ends | ({turn_end} if turn_end is not None and turn_end < count else set())))


def resolve_tokens(
    key: str, tokens: Sequence[int | str], count: int, by_id: Mapping[int, str]
) -> tuple[int, ...]:
    """Ids of a recipe's tokens, each an id or a string. Raises TokenNotFound."""
    ids = {token: id for id, token in by_id.items()}
    found = set[int]()
    for token in tokens:
        id = ids.get(token) if isinstance(token, str) else token
        if id is None:
            raise TokenNotFound(
                key, f"{key} has {token!r}", "a token of the model's tokenizer is needed, or its id"
            )
        if not 0 <= id < count:
            raise TokenNotFound(key, f"{key} has {token!r}, id {id}", f"the ids are 0 to {count - 1}")
        found.add(id)
    return tuple(sorted(found))


# ---------------------------------------------------------------------- folders


def read_folder_tokens(folder: Path, tokens: TokenizerJson) -> NamedTokens:
    """The tokens of a folder with a tokenizer. Raises InputError for an end token that is no id."""
    added = {int(token["id"]): token for token in tokens.json.get("added_tokens") or ()}
    added = read_added_tokens(folder) | added
    by_id = {id: str(token.get("content")) for id, token in added.items()} | tokens.by_id
    controls = {str(t["content"]): id for id, t in added.items() if t.get("content") and is_control(t)}
    return NamedTokens(by_id, list_folder_ends(folder, by_id), controls)


def read_added_tokens(folder: Path) -> dict[int, Mapping[str, Any]]:
    """The added tokens of tokenizer_config.json by id."""
    listed = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    pairs = listed.items() if isinstance(listed, dict) else ()
    return {int(id): token for id, token in pairs if id.isdecimal() and isinstance(token, dict)}


def is_control(token: Mapping[str, Any]) -> bool:
    """Whether an added token may end a turn: it is special, or written as control tokens are."""
    return bool(token.get("special")) or is_bracketed(str(token["content"]))


def list_folder_ends(folder: Path, by_id: Mapping[int, str]) -> list[Named]:
    """Every end token that the files of a folder name. Raises InputError for one that is no id."""
    ids = {token: id for id, token in by_id.items()}
    named = list[Named]()
    for file in ("config.json", "generation_config.json"):
        settings = read_json(folder / file)
        inner = settings.get("text_config")
        for part in (settings, inner if isinstance(inner, dict) else {}):
            place = f"eos_token_id of {file}"
            named += [(place, id) for id in read_ids(part.get("eos_token_id"), place, folder.name)]
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        token = content_of(read_json(folder / file).get("eos_token"))
        if token is not None and token in ids:
            named.append((f"eos_token of {file}", ids[token]))
    return named


def read_ids(value: Any, place: str, checkpoint: str) -> list[int]:
    """An id, a list of ids or nothing, as a list. Raises InputError for anything else."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    for id in listed:
        if isinstance(id, bool) or not isinstance(id, int):
            raise InputError(
                f"The checkpoint {checkpoint} has {value!r} as {place}; an id or a list of ids is needed, or "
                "write eos: [...] into the recipe."
            )
    return listed


def content_of(token: Any) -> str | None:
    """A token given as a string or as {"content": ...}; None for neither."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def is_bracketed(token: str) -> bool:
    """Whether a token is written like <|im_end|>."""
    return len(token) > 2 and token[0] == "<" and token[-1] == ">" and not any(map(str.isspace, token))


def read_special_tokens(source: Source) -> dict[str, str]:
    """The strings by name that the chat template of a folder may use, as `transformers` sets them.

    Its tokenizer class knows defaults of its own. Where it cannot open the folder, the strings that the files
    name are taken.
    """
    from transformers import AutoTokenizer

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(
                source.path, local_files_only=True, trust_remote_code=False
            )
            return dict(list_strings(tokenizer.special_tokens_map))
    except Exception:  # transformers raises errors of many kinds for a tokenizer that it cannot open
        return read_named_strings(source.path)


def read_named_strings(folder: Path) -> dict[str, str]:
    """The special tokens by name in tokenizer_config.json and, where they are missing there, in
    special_tokens_map.json.
    """
    settings = read_json(folder / "tokenizer_config.json")
    return dict(list_strings(read_json(folder / "special_tokens_map.json") | settings))


def list_strings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Special tokens by name, where they are given."""
    for name in TOKEN_NAMES:
        token = content_of(settings.get(name))
        if token is not None:
            yield name, token


# ---------------------------------------------------------------------- GGUF files


def read_gguf_tokens(metadata: Mapping[str, Any], name: str) -> NamedTokens:
    """The tokens of a GGUF file. Raises InputError for an end token that is no id."""
    by_id = dict(enumerate(map(str, metadata.get("tokenizer.ggml.tokens", ()))))
    return NamedTokens(by_id, list_gguf_ends(metadata, name), list_gguf_controls(metadata))


def list_gguf_ends(metadata: Mapping[str, Any], name: str) -> list[Named]:
    """Every end token that the keys of a GGUF file name. Raises InputError for one that is no id."""
    named = list[Named]()
    for end in GGUF_ENDS:
        key = f"tokenizer.ggml.{end}_token_id"
        named += [(key, id) for id in read_ids(metadata.get(key), key, name)]
    return named


def list_gguf_controls(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Id by string of the tokens that may end a turn: control tokens, and others in angle brackets."""
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type")
    kinds = kinds or [NORMAL] * len(tokens)
    return {
        str(token): id
        for id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == CONTROL or is_bracketed(str(token))
    }


def read_gguf_special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The strings by name that the chat template of a GGUF file may use."""
    tokens, found = metadata.get("tokenizer.ggml.tokens", ()), {}
    for name, keys in GGUF_TOKENS.items():
        ids = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        for id in ids:
            if isinstance(id, int) and 0 <= id < len(tokens):
                found[name] = str(tokens[id])
    return found
