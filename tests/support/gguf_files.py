"""GGUF files of tiny modules, as llama.cpp's converter would write them, with the faults that a test asks
for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specc.exporter.checkpoint.gguf_architectures import ARCHITECTURES, COMMON_KEYS
from specc.exporter.checkpoint.gguf_module import TensorNames


def byte_tokens(count: int) -> list[str]:
    """`count` tokens: the byte alphabet of byte-level tokenizers, then `<|endoftext|>` as the last one."""
    plain = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    letter = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(rest)}}
    letters = [letter[byte] for byte in range(256)]
    spare = [f"<spare{i}>" for i in range(max(0, count - 257))]
    return [*letters[: count - 1], *spare, "<|endoftext|>"]


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
) -> Path:
    """Write `model` (a module of a Hugging Face causal LM) as fp32.

    metadata: further keys by their whole names, None to leave one out. without: names of tensors or metadata
    keys to leave out. extra: further tensors. tokenizer: `tokenizer.ggml` keys instead of a byte-level one's.
    """
    from gguf import GGUFWriter

    config, kind = model.config, ARCHITECTURES[architecture]
    writer = GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        f"{architecture}.{key}": getattr(config, name)
        for key, name in {**COMMON_KEYS, **kind.keys}.items()
        if getattr(config, name, None) is not None
    }
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    keys[f"{architecture}.rope.freq_base"] = float(rope["rope_theta"])
    keys |= {f"tokenizer.ggml.{key}": value for key, value in (tokenizer or byte_tokenizer(config)).items()}
    for key, value in {**keys, **(metadata or {})}.items():
        if value is not None and key not in without:
            add_value(writer, key, value)
    stored = tensors_of(model, architecture)
    for name, values in {**stored, **(extra or {})}.items():
        if name not in without:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_tokenizer(config: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer without merges that matter; the last id ends a text."""
    count = config.vocab_size
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": byte_tokens(count),
        "token_type": [1] * (count - 1) + [3],
        "merges": ["a b"],
        "eos_token_id": count - 1,
    }


def add_value(writer: Any, key: str, value: Any) -> None:
    """One metadata value in the type that its Python value suggests."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def tensors_of(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """The module's parameters under their GGUF names and in llama.cpp's order."""
    config, kind = model.config, ARCHITECTURES[architecture]
    names = TensorNames(architecture, config.num_hidden_layers)
    stored = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if kind.norm_offset and name.endswith("norm.weight"):
            values = values + kind.norm_offset
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if kind.permuted and f".{part}." in name:
                halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
        stored[str(names.get(name))] = values
    return stored
