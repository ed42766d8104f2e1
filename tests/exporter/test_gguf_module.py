"""GGUF files become the module that they were written from, or are refused by the name of a tensor or a
key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")

import torch
from support.gguf_files import write_gguf
from support.tiny import SHAPE

from specc.errors import InputError
from specc.exporter.checkpoint.gguf_architectures import ARCHITECTURES, read_rope_parameters
from specc.exporter.checkpoint.gguf_header import read_gguf_header
from specc.exporter.checkpoint.gguf_module import build_module

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}),
    "llama-attention-bias": ("llama", {"attention_bias": True}),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {"hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": ("gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3", {"sliding_window": 24, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "head_dim": None}),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.5,
            "head_dim": None,
        },
    ),
    "olmo2": ("olmo2", {"head_dim": None}),
}


def tiny_module(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A module of random weights, biases included, of one GGUF architecture's model type."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {key: value for key, value in {**SHAPE, **changes}.items() if value is not None}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(ARCHITECTURES[architecture].model_type, **{"pad_token_id": None, **shape})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def read_module(path: Path) -> Any:
    return build_module(path, read_gguf_header(path))


def logits(model: Any) -> np.ndarray:
    """Logits of 60 ids: past the windows of the tiny models."""
    with torch.no_grad():
        values: np.ndarray = model(torch.arange(60)[None], use_cache=False).logits[0].numpy()
    return values


@pytest.mark.parametrize("case", FAMILIES)
def test_module_computes_what_was_written(case: str, tmp_path: Path) -> None:
    """Bit for bit: weights, biases, norms, windows, caps, multipliers and rotary base all come back."""
    architecture, changes = FAMILIES[case]
    model = tiny_module(architecture, **changes)
    found = read_module(write_gguf(tmp_path / "model.gguf", model, architecture))
    assert np.array_equal(logits(found), logits(model))


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "output_norm.weight"])
def test_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny_module("llama"), "llama", without=[name])
    with pytest.raises(InputError, match=f"model.gguf lacks the tensor {name}"):
        read_module(path)


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.attn_sinks.weight", "cls.output.weight"])
def test_tensor_without_a_place_is_named(name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_module("llama"), "llama", extra={name: np.ones(16)})
    with pytest.raises(InputError, match=f"holds the tensor {name}, which the llama module has no place for"):
        read_module(path)


def test_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    changed = {"blk.0.ffn_up.weight": np.ones((32, 64))}
    path = write_gguf(tmp_path / "m.gguf", tiny_module("llama"), "llama", without=[], extra=changed)
    with pytest.raises(InputError, match=r"blk\.0\.ffn_up\.weight of m\.gguf has shape \[32, 64\]"):
        read_module(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    model = tiny_module("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = value
    path = write_gguf(tmp_path / "m.gguf", model, "llama")
    with pytest.raises(InputError, match=r"blk\.1\.ffn_up\.weight of m\.gguf holds NaN or infinity"):
        read_module(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 4),
        ("llama.attention.max_alibi_bias", 8.0),
        ("llama.attention.sliding_window", 32),
        ("llama.attn_logit_softcapping", 50.0),
        ("llama.attention.a_key_of_tomorrow", 1),
        ("llama.rope.scaling.type", "longrope"),
        ("llama.rope.dimension_count", 8),
        ("llama.attention.value_length", 8),
        ("llama.attention.causal", False),
        ("llama.use_parallel_residual", True),
    ],
)
def test_key_that_is_not_understood_is_named(key: str, value: Any, tmp_path: Path) -> None:
    """Whatever would change the computation is refused by name, keys of later releases too."""
    path = write_gguf(tmp_path / "m.gguf", tiny_module("llama"), "llama", metadata={key: value})
    with pytest.raises(InputError, match=key.replace(".", r"\.")):
        read_module(path)


def test_neutral_keys_are_accepted(tmp_path: Path) -> None:
    keys = {"llama.expert_count": 0, "llama.rope.scaling.type": "none", "llama.rope.dimension_count": 16}
    model = tiny_module("llama")
    found = read_module(write_gguf(tmp_path / "m.gguf", model, "llama", metadata=keys))
    assert np.array_equal(logits(found), logits(model))


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("rope", "metadata"),
    [
        (LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        (LINEAR, {"rope.scale_linear": 4.0}),
        (
            YARN,
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
        ),
    ],
)
def test_rotary_scaling_in_every_spelling(rope: Any, metadata: Any, tmp_path: Path) -> None:
    """R30: also the key that files had before `rope.scaling.*`."""
    model = tiny_module("llama", rope_parameters=rope)
    keys = {f"llama.{key}": value for key, value in metadata.items()}
    found = read_module(write_gguf(tmp_path / "m.gguf", model, "llama", metadata=keys))
    assert np.array_equal(logits(found), logits(model))


def test_rotary_factors_of_llama_3(tmp_path: Path) -> None:
    """`rope_freqs.weight` divides the frequencies: the llama3 scaling, written that way."""
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 1e4,
    }
    scaled, plain = tiny_module("llama", rope_parameters=rope), tiny_module("llama")
    factors = (plain.model.rotary_emb.inv_freq / scaled.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 7.9  # the scaling does something
    path = write_gguf(tmp_path / "m.gguf", scaled, "llama", extra={"rope_freqs.weight": factors})
    assert np.allclose(logits(read_module(path)), logits(scaled), atol=1e-5)


def test_yarn_without_its_original_length() -> None:
    own = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    with pytest.raises(InputError, match=r"lacks llama\.rope\.scaling\.original_context_length"):
        read_rope_parameters(own, ARCHITECTURES["llama"], "llama.", "m.gguf")


@pytest.mark.parametrize("kind", [4, 31, 42, 153, 2**32 - 1])
def test_type_that_is_not_known_is_named(kind: int, tmp_path: Path) -> None:
    """A type that is newer, was removed, or is a fork's, before anything is read."""
    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    path = write_gguf(tmp_path / "m.gguf", tiny_module("llama"), "llama")
    raw, name = bytearray(path.read_bytes()), b"blk.1.ffn_up.weight"
    at = raw.index(name) + len(name) + 4 + 16  # behind the rank and two dimensions
    raw[at : at + 4] = kind.to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(InputError, match=rf"blk\.1\.ffn_up\.weight of m\.gguf has the GGML type {kind}"):
        _ = open_checkpoint(str(path)).spec


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_files_that_hold_no_model(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_module("llama"), "llama", metadata={"general.type": kind})
    with pytest.raises(InputError, match=f"holds a {kind}, not a model"):
        read_module(path)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_block_types_have_the_values_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    """R40: each type read through our header equals what the reader of the `gguf` package gives."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, dequantize, quantize

    from specc.exporter.checkpoint.gguf_module import dequantize_tensor

    kind = GGMLQuantizationType[name]
    values = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a", quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(tmp_path / "m.gguf")
    data = np.fromfile(tmp_path / "m.gguf", np.uint8)[header.data_start :]
    reference = GGUFReader(tmp_path / "m.gguf").tensors[0]
    wanted = dequantize(reference.data, reference.tensor_type)
    assert np.array_equal(dequantize_tensor(data, header.tensors[0], "m.gguf"), wanted)
