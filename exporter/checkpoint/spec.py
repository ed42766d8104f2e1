"""ModelSpec from a checkpoint's headers and configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.contracts.model_spec import ModelSpec
from specc.errors import InputError
from specc.exporter.checkpoint.gguf_header import GgufHeader
from specc.exporter.checkpoint.source import Source
from specc.exporter.checkpoint.tokenizer import TokenizerJson, hash_id_map
from specc.exporter.checkpoint.weights import read_json, read_tensor_shapes

GGUF_ARCHITECTURES = ("llama", "qwen2")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def read_gguf_spec(header: GgufHeader, source: Source, digest: str) -> ModelSpec:
    """Spec of a GGUF file without its end tokens.

    Raises InputError for an architecture or a rotary scaling that cannot be built.
    """
    meta, shapes = header.metadata, {t.name: t.dims for t in header.tensors}
    kind = str(meta.get("general.architecture"))
    check_gguf(kind, meta, shapes, source)

    def number(key: str, default: Any = None) -> int:
        return int(meta.get(f"{kind}.{key}", default))

    hidden, heads = number("embedding_length"), number("attention.head_count")
    tokens = dict(enumerate(meta["tokenizer.ggml.tokens"]))
    bos = meta.get("tokenizer.ggml.bos_token_id")
    vocab = int(shapes.get("output.weight", shapes["token_embd.weight"])[1])
    return ModelSpec(
        architecture=kind,
        vocab=vocab,
        token_ids=min(len(tokens), vocab),
        layers=number("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=number("attention.key_length", meta.get(f"{kind}.rope.dimension_count", hidden // heads)),
        intermediate=number("feed_forward_length"),
        max_context=number("context_length"),
        tied="output.weight" not in shapes,
        eos=(),
        bos=None if bos is None else int(bos),
        parameters=sum(t.elements for t in header.tensors),
        id_map_sha256=hash_id_map(tokens),
        weights_sha256=digest,
        revision=source.revision,
        licence=meta.get("general.license"),
    )


def check_gguf(kind: str, meta: dict[str, Any], shapes: dict[str, tuple[int, ...]], source: Source) -> None:
    """Refuse what the conversion to a Hugging Face module would drop without an error."""
    if kind not in GGUF_ARCHITECTURES:
        allowed = " and ".join(GGUF_ARCHITECTURES)
        raise InputError(
            f"The GGUF file {source.path.name} holds architecture {kind!r}; "
            f"{allowed} can be read, or use safetensors."
        )
    scaling = meta.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in shapes:
        raise InputError(
            f"The GGUF file {source.path.name} scales its rotary positions ({scaling}), which is lost in "
            "conversion; use the safetensors folder of the same model."
        )


def read_folder_spec(source: Source, tokens: TokenizerJson, digest: str) -> ModelSpec:
    """Spec of a folder without its end tokens.

    Raises InputError when config.json is missing or names an unknown rotary kind.
    """
    config = read_json(source.path / "config.json")
    if not config:
        raise InputError(
            f"The checkpoint folder {source.path.name} has no readable config.json; "
            "name a Hugging Face folder."
        )
    check_rope(config, source.path.name)
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    shapes = read_tensor_shapes(source.path)
    bos = find_token_id(read_json(source.path / "tokenizer_config.json").get("bos_token"), tokens)
    return ModelSpec(
        architecture=str(config.get("model_type")),
        vocab=int(config["vocab_size"]),
        token_ids=min(tokens.count, int(config["vocab_size"])),
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate=int(config["intermediate_size"]),
        max_context=int(config["max_position_embeddings"]),
        tied="lm_head.weight" not in shapes,
        eos=(),
        bos=bos if bos is not None else config.get("bos_token_id"),
        parameters=sum(count_elements(shape) for shape in shapes.values()),
        id_map_sha256=hash_id_map(tokens.by_id),
        weights_sha256=digest,
        revision=source.revision or config.get("_commit_hash"),
        licence=config.get("license"),
    )


def check_rope(config: Mapping[str, Any], checkpoint: str) -> None:
    """Refuse a rotary kind that is unknown or whose angles depend on the length of a call.

    `config`: a config.json, or the same keys of a loaded module. Raises InputError.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise InputError(
            f"The checkpoint {checkpoint} has rope_type {kind!r}, whose positions cannot be put into a table;"
            f" use a checkpoint with one of {', '.join(ROPE_TYPES)}."
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
