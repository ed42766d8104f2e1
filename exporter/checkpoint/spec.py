"""ModelSpec from a checkpoint's headers and configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError
from specc.exporter.checkpoint.config_keys import check_quantization, read_config, read_intermediate_size
from specc.exporter.checkpoint.gguf_architectures import read_config_values
from specc.exporter.checkpoint.gguf_header import GgufHeader
from specc.exporter.checkpoint.source import Source
from specc.exporter.checkpoint.tokenizer import TokenizerJson, hash_id_map
from specc.exporter.checkpoint.weights import read_json, read_tensor_shapes

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def read_gguf_spec(header: GgufHeader, source: Source, digest: str) -> ModelSpec:
    """Spec of a GGUF file without its end tokens.

    Raises InputError for a key or an architecture that is not carried over.
    """
    meta, shapes = header.metadata, {t.name: t.dims for t in header.tensors}
    config = read_config_values(meta, shapes, source.path.name)
    tokens = dict(enumerate(meta.get("tokenizer.ggml.tokens", ())))
    bos = meta.get("tokenizer.ggml.bos_token_id")
    vocab = int(shapes.get("output.weight", shapes["token_embd.weight"])[1])
    return ModelSpec(
        architecture=str(meta["general.architecture"]),
        vocab=vocab,
        token_ids=min(len(tokens), vocab),
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        heads=int(config["num_attention_heads"]),
        kv_heads=int(config["num_key_value_heads"]),
        head_dim=int(config["head_dim"]),
        intermediate=int(config["intermediate_size"]),
        max_context=int(config["max_position_embeddings"]),
        tied=bool(config["tie_word_embeddings"]),
        eos=(),
        bos=None if bos is None else int(bos),
        parameters=sum(t.elements for t in header.tensors),
        id_map_sha256=hash_id_map(tokens),
        weights_sha256=digest,
        revision=source.revision,
        licence=meta.get("general.license"),
    )


def read_folder_spec(source: Source, tokens: TokenizerJson, digest: str) -> ModelSpec:
    """Spec of a folder without its end tokens.

    Raises InputError when config.json is missing or says what is not carried over.
    """
    raw, name = read_json(source.path / "config.json"), source.path.name
    if not raw:
        raise InputError(
            f"The checkpoint folder {name} has no readable config.json; name a Hugging Face folder."
        )
    check_quantization(raw, name)
    check_rope(raw, name)
    config = read_config(source.path)
    heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
    shapes = read_tensor_shapes(source.path)
    bos = find_token_id(read_json(source.path / "tokenizer_config.json").get("bos_token"), tokens)
    return ModelSpec(
        architecture=str(config.model_type),
        vocab=int(config.vocab_size),
        token_ids=min(tokens.count, int(config.vocab_size)),
        layers=int(config.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        intermediate=read_intermediate_size(config),
        max_context=int(config.max_position_embeddings),
        tied=not any(key.endswith("lm_head.weight") for key in shapes),
        eos=(),
        bos=bos if bos is not None else raw.get("bos_token_id"),
        parameters=sum(count_elements(shape) for shape in shapes.values()),
        id_map_sha256=hash_id_map(tokens.by_id),
        weights_sha256=digest,
        revision=source.revision or raw.get("_commit_hash"),
        licence=raw.get("license"),
    )


def check_rope(config: Mapping[str, Any], checkpoint: str) -> None:
    """Refuse a rotary kind that is unknown or whose angles depend on the length of a call.

    `config`: a config.json, or the same keys of a loaded module. Raises InputError.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    for own in by_layer_type or [parameters]:
        kind = own.get("rope_type", own.get("type", "default"))
        if kind not in ROPE_TYPES:
            raise InputError(
                f"The checkpoint {checkpoint} has rope_type {kind!r}, whose positions cannot be put into a "
                f"table; use a checkpoint with one of {', '.join(ROPE_TYPES)}."
            )


def find_token_id(token: Any, tokens: TokenizerJson) -> int | None:
    """Id of a token given as a string or as {"content": ...}."""
    text = token.get("content") if isinstance(token, dict) else token
    return next((i for i, known in tokens.by_id.items() if known == text), None)


def count_elements(shape: list[int]) -> int:
    """Elements of a tensor of this shape."""
    count = 1
    for dim in shape:
        count *= int(dim)
    return count
