"""A checkpoint: its spec, read without the weights; its module; its tokenizer."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError
from specc.exporter.checkpoint.gguf_cache import cache_gguf_reads
from specc.exporter.checkpoint.gguf_header import GgufHeader, check_complete, read_gguf_header
from specc.exporter.checkpoint.source import Source, find_source
from specc.exporter.checkpoint.spec import read_folder_spec, read_gguf_spec
from specc.exporter.checkpoint.tokenizer import TokenizerJson, hash_rules, list_id_bytes, strips_leading_space
from specc.exporter.checkpoint.weights import check_weights, hash_weights, read_dtype, read_json

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this disk; everything is read when it is asked for."""

    source: Source

    @cached_property
    def spec(self) -> ModelSpec:
        """Sizes of the model from headers and configuration files; the weights are hashed, not loaded."""
        digest = hash_weights(self.source.path)
        if self.header is not None:
            return read_gguf_spec(self.header, self.source, digest)
        return read_folder_spec(self.source, self.tokens, digest)

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
        path = self.source.path / "tokenizer.json"
        return TokenizerJson(
            path.read_text(encoding="utf-8") if path.is_file() else convert_tokenizer(self.source)
        )

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja text of the chat template, None when the checkpoint has none."""
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
        """The bytes that each id adds to decoded text; empty for special ids."""
        return list_id_bytes(self.tokens)

    def save_tokenizer(self, folder: Path) -> Path:
        """Write tokenizer.json into `folder`."""
        path = folder / "tokenizer.json"
        path.write_text(self.tokens.text, encoding="utf-8")
        return path

    def load(self) -> torch.nn.Module:
        """The Hugging Face module with its weights: fp32, eval, on CPU."""
        if self.header is None:
            check_weights(self.source.path)
        return load_module(self.source)

    def notes(self) -> tuple[str, ...]:
        """Notes on the weights for the report."""
        dtype = read_dtype(self.source.path)
        return () if dtype in ("F32", "GGUF") else (f"weights converted from {dtype} to fp32 for the build",)


def open_checkpoint(source: str, revision: str | None = None, base: Path = Path()) -> Checkpoint:
    """Find a checkpoint by the name that a recipe gives it; relative paths start at `base`.

    Raises InputError when it is missing, EnvironmentFault when the hub cannot be reached.
    """
    return Checkpoint(find_source(source, revision, base))


def load_module(source: Source) -> torch.nn.Module:
    """Load the module through transformers, without its progress bars."""
    import torch
    from transformers import AutoModelForCausalLM

    folder, file = (source.path.parent, source.path.name) if source.is_gguf else (source.path, None)
    extra = {} if file is None else {"gguf_file": file}
    with contextlib.redirect_stderr(io.StringIO()), cache_gguf_reads() if file else contextlib.nullcontext():
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, **extra
        )
    loaded: torch.nn.Module = model.eval()
    return loaded


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
