"""Checkpoint folders: every parameter has its tensor, every tensor its parameter, every key its meaning."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from support.tiny import tiny_folder, tiny_model

from specc.errors import InputError
from specc.exporter.checkpoint.config_keys import check_config_keys, check_quantization
from specc.exporter.checkpoint.folder_module import load_folder_module

Tensors = dict[str, torch.Tensor]


def changed_folder(folder: Path, change: Callable[[Tensors], Tensors], **config: Any) -> Path:
    """A tiny checkpoint whose tensors were changed on disk."""
    tiny_folder(folder, **config)
    file = folder / "model.safetensors"
    tensors = change(load_file(file))
    save_file({name: t.clone().contiguous() for name, t in tensors.items()}, file, {"format": "pt"})
    return folder


def load(folder: Path) -> Any:
    return load_folder_module(folder, load_file(folder / "model.safetensors"))


def test_whole_folder_loads(tmp_path: Path) -> None:
    loaded = load(tiny_folder(tmp_path / "m"))
    for (name, weight), (_, wanted) in zip(
        loaded.named_parameters(), tiny_model().named_parameters(), strict=True
    ):
        assert torch.equal(weight, wanted), name


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "base_model.model."])
def test_prefix_of_a_wrapper_is_named(prefix: str, tmp_path: Path) -> None:
    folder = changed_folder(tmp_path / "m", lambda t: {prefix + name: w for name, w in t.items()})
    with pytest.raises(InputError, match=f"Every tensor of m has the prefix '{prefix}' of"):
        load(folder)


@pytest.mark.parametrize("prefix", ["student.", "model.model."])
def test_another_prefix_is_refused(prefix: str, tmp_path: Path) -> None:
    folder = changed_folder(tmp_path / "m", lambda t: {prefix + name: w for name, w in t.items()})
    with pytest.raises(InputError, match=r"lack the tensors lm_head|lack the tensors"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder = changed_folder(tmp_path / "m", lambda t: {key: w for key, w in t.items() if key != name})
    with pytest.raises(InputError, match=f"lack the tensors? .*{name}"):
        load(folder)


def test_missing_lm_head_of_an_untied_model(tmp_path: Path) -> None:
    folder = changed_folder(
        tmp_path / "m",
        lambda t: {key: w for key, w in t.items() if key != "lm_head.weight"},
        tie_word_embeddings=False,
    )
    with pytest.raises(InputError, match=r"lack the tensor lm_head\.weight"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight"]
)
def test_tensor_without_a_place_is_named(name: str, tmp_path: Path) -> None:
    folder = changed_folder(tmp_path / "m", lambda t: {**t, name: torch.ones(64)})
    with pytest.raises(InputError, match=f"hold the tensor {name}, which the module has no place for"):
        load(folder)


def test_buffers_of_older_releases_are_ignored(tmp_path: Path) -> None:
    load(
        changed_folder(
            tmp_path / "m", lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
        )
    )


def test_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = changed_folder(tmp_path / "m", lambda t: {**t, "model.norm.weight": torch.ones(32)})
    with pytest.raises(InputError, match=r"model\.norm\.weight of m has shape \[32\] .* asks for \[64\]"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = value
        return tensors

    with pytest.raises(InputError, match=r"layers\.1\.mlp\.down_proj\.weight of m holds NaN or infinity"):
        load(changed_folder(tmp_path / "m", spoil))


def test_model_type_that_transformers_does_not_know(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "of-tomorrow"}))
    with pytest.raises(InputError, match=r"cannot be loaded by transformers: .*of-tomorrow"):
        load(folder)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
def test_quantized_checkpoints_are_refused_by_name(method: str) -> None:
    with pytest.raises(InputError, match=rf"folder m is quantized already \({method}\)"):
        check_quantization({"quantization_config": {"quant_method": method, "bits": 4}}, "m")
    check_quantization({"quantization_config": None}, "m")


@pytest.mark.parametrize(
    ("key", "value"), [("attention_sinks", 4), ("use_mup", True), ("rope_interleaved", True)]
)
def test_unknown_key_of_a_configuration_is_named(key: str, value: Any) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "torch_dtype": "bfloat16"}
    check_config_keys(config, frozenset({"hidden_size"}), "m")
    check_config_keys({**config, key: False}, frozenset({"hidden_size"}), "m")
    with pytest.raises(InputError, match=f"The key '{key}' of m/config.json"):
        check_config_keys({**config, key: value}, frozenset({"hidden_size"}), "m")
