"""A checkpoint: its spec, read without the weights; its module; its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.chat_template import find_turn_end
from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError
from specc.exporter.checkpoint.decoder_steps import check_decoder
from specc.exporter.checkpoint.end_tokens import (
    NO_OVERRIDES,
    NamedTokens,
    Overrides,
    find_end_tokens,
    read_folder_tokens,
    read_gguf_special_tokens,
    read_gguf_tokens,
    read_named_strings,
    read_special_tokens,
    resolve_tokens,
)
from specc.exporter.checkpoint.folder_module import load_folder_module
from specc.exporter.checkpoint.gguf_header import GgufHeader, check_complete, read_gguf_header
from specc.exporter.checkpoint.gguf_module import build_module
from specc.exporter.checkpoint.gguf_tokenizer import apply_pre_tokenizer
from specc.exporter.checkpoint.source import Source, find_source
from specc.exporter.checkpoint.spec import read_folder_spec, read_gguf_spec
from specc.exporter.checkpoint.tokenizer import TokenizerJson, hash_rules, list_id_bytes, strips_leading_space
from specc.exporter.checkpoint.weights import (
    check_weights,
    hash_weights,
    read_dtype,
    read_json,
    read_tensor_shapes,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this disk; everything is read when it is asked for."""

    source: Source
    overrides: Overrides = NO_OVERRIDES

    @cached_property
    def spec(self) -> ModelSpec:
        """Sizes of the model from headers and configuration files; the weights are hashed, not loaded."""
        digest = hash_weights(self.source.path)
        if self.header is not None:
            spec = read_gguf_spec(self.header, self.source, digest)
        else:
            spec = read_folder_spec(self.source, self.tokens, digest)
        return replace(spec, eos=self.find_ends(min(spec.vocab, spec.token_ids)))

    def find_ends(self, count: int) -> tuple[int, ...]:
        """The ids below `count` that end a text: those of the recipe, or all that the checkpoint names.

        Raises InputError for an end token beyond them.
        """
        if self.overrides.eos is not None:
            return resolve_tokens("eos", self.overrides.eos, count, self.named_tokens.by_id)
        template, named = self.chat_template, self.named_tokens
        turn_end = find_turn_end(template, self.special_tokens, named.controls) if template else None
        return find_end_tokens(named, turn_end, count, self.source.path.name)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The recipe's stop ids. Raises TokenNotFound."""
        count = min(self.spec.vocab, self.spec.token_ids)
        return resolve_tokens("stop_ids", self.overrides.stop_ids, count, self.named_tokens.by_id)

    @cached_property
    def named_tokens(self) -> NamedTokens:
        """Every token, and what the files name as ends."""
        if self.header is not None:
            return read_gguf_tokens(self.header.metadata, self.source.path.name)
        return read_folder_tokens(self.source.path, self.tokens)

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """The strings by name that the chat template may use."""
        if self.header is not None:
            return read_gguf_special_tokens(self.header.metadata)
        if self.chat_template is None:
            return read_named_strings(self.source.path)
        return read_special_tokens(self.source)

    @cached_property
    def header(self) -> GgufHeader | None:
        """Header of the GGUF file, checked against the file's size; None for a folder."""
        if not self.source.is_gguf:
            return None
        header = read_gguf_header(self.source.path)
        check_complete(header, self.source.path)
        return header

    @cached_property
    def tokens(self) -> TokenizerJson:
        """The tokenizer; a GGUF's is converted by transformers, which takes seconds."""
        path, name = self.source.path / "tokenizer.json", self.source.path.name
        text = path.read_text(encoding="utf-8") if path.is_file() else convert_tokenizer(self.source)
        if self.header is not None:
            text = apply_pre_tokenizer(text, self.header.metadata, name)
        tokens = TokenizerJson(text)
        check_decoder(tokens, name)
        return tokens

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja text of the chat template, None when there is none; the recipe's where it has one."""
        if self.overrides.template is not None:
            return self.overrides.template
        if self.header is not None:
            text = self.header.metadata.get("tokenizer.chat_template")
            return None if text is None else str(text)
        file = self.source.path / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        listed = read_json(self.source.path / "tokenizer_config.json").get("chat_template")
        if isinstance(listed, list):
            listed = next((t["template"] for t in listed if t.get("name") == "default"), None)
        return listed

    @property
    def strip_leading_space(self) -> bool:
        """Whether decoding drops the first token's leading space."""
        return strips_leading_space(self.tokens)

    @property
    def provenance(self) -> dict[str, Any]:
        """The checkpoint's origin, and the hashes of what was read."""
        spec = self.spec
        return {
            "source": self.source.text,
            "revision": spec.revision,
            "licence": spec.licence,
            "weights_sha256": spec.weights_sha256,
            "id_map_sha256": spec.id_map_sha256,
            "tokenizer_rules_sha256": hash_rules(self.tokens),
            "weights_dtype": read_dtype(self.source.path),
        }

    def id_bytes(self) -> list[bytes]:
        """The bytes that each id adds to decoded text; empty for special ids and for control tokens that end
        a text.
        """
        ends = {id for id in self.named_tokens.controls.values() if id in self.spec.eos}
        return [b"" if id in ends else text for id, text in enumerate(list_id_bytes(self.tokens))]

    def save_tokenizer(self, folder: Path) -> Path:
        """Write tokenizer.json into `folder`."""
        path = folder / "tokenizer.json"
        path.write_text(self.tokens.text, encoding="utf-8")
        return path

    def load(self) -> torch.nn.Module:
        """The Hugging Face module with its weights: fp32, eval, on CPU."""
        if self.header is not None:
            return build_module(self.source.path, self.header)
        check_weights(self.source.path)
        return load_folder_module(self.source.path, read_tensor_shapes(self.source.path))

    def notes(self) -> tuple[str, ...]:
        """Notes on the weights for the report."""
        dtype = read_dtype(self.source.path)
        return () if dtype in ("F32", "GGUF") else (f"weights converted from {dtype} to fp32 for the build",)


def open_checkpoint(
    source: str, revision: str | None = None, base: Path = Path(), overrides: Overrides = NO_OVERRIDES
) -> Checkpoint:
    """Find a checkpoint by the name that a recipe gives it; relative paths start at `base`.

    Raises InputError when it is missing, EnvironmentFault when the hub cannot be reached.
    """
    return Checkpoint(find_source(source, revision, base), overrides)


def convert_tokenizer(source: Source) -> str:
    """The tokenizer.json text of a checkpoint without that file, converted by transformers.

    Raises InputError.
    """
    from transformers import AutoTokenizer

    folder, file = (source.path.parent, source.path.name) if source.is_gguf else (source.path, None)
    extra = {} if file is None else {"gguf_file": file}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **extra)
        return str(tokenizer.backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError, ImportError):
        raise InputError(
            f"The checkpoint {source.text!r} has no tokenizer that can be read; add its tokenizer.json."
        ) from None
