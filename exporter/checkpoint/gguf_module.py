"""The Hugging Face module of a GGUF file: built from its metadata, filled tensor by tensor, each tensor
accounted for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specc.errors import InputError
from specc.exporter.checkpoint.gguf_architectures import (
    Architecture,
    find_architecture,
    read_config_values,
)
from specc.exporter.checkpoint.gguf_header import GgufHeader, TensorInfo
from specc.exporter.checkpoint.weights import list_tensors

if TYPE_CHECKING:
    import torch

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, [head_dim / 2]: how llama.cpp stores the scaling of Llama 3.1."""


def build_module(path: Path, header: GgufHeader) -> torch.nn.Module:
    """The module with the file's weights: fp32, eval, on CPU.

    Raises InputError that names the first tensor or key that the module has no place for, or that the file
    lacks.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    architecture = find_architecture(header.metadata, path.name)
    shapes = {tensor.name: tensor.dims for tensor in header.tensors}
    values = read_config_values(header.metadata, shapes, path.name)
    auto_model: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(architecture.model_type, **values)
    with no_init_weights():
        model = auto_model.from_config(config, dtype=torch.float32)
    model.tie_weights()
    fill_module(model, path, header, architecture)
    built: torch.nn.Module = model.eval()
    return built


def fill_module(model: Any, path: Path, header: GgufHeader, architecture: Architecture) -> None:
    """Copy every tensor of the file to its parameter; each must have exactly one counterpart."""
    import torch

    data = np.memmap(path, np.uint8, mode="r", offset=header.data_start)
    waiting = {tensor.name: tensor for tensor in header.tensors}
    for parameter, tensor in match_tensors(model, header, path.name):
        weight = dequantize_tensor(data, waiting.pop(tensor.name), path.name)
        weight = restore_order(weight, parameter, model.config, architecture)
        place = model.get_parameter(parameter)
        if tuple(place.shape) != weight.shape:
            raise InputError(
                f"The tensor {tensor.name} of {path.name} has shape {list(weight.shape)} and its place "
                f"{parameter} has {list(place.shape)}; fetch another file."
            )
        check_finite(weight, tensor.name, path.name)
        with torch.no_grad():
            place.copy_(torch.from_numpy(np.require(weight, requirements=["C", "W"])))
    if ROPE_FACTORS in waiting:
        scale_rotary(model, dequantize_tensor(data, waiting.pop(ROPE_FACTORS), path.name), path.name)
    if waiting:
        raise InputError(
            f"The GGUF file {path.name} holds {list_tensors(waiting)}, which the {model.config.model_type} "
            "module has no place for; use the safetensors folder of the same model."
        )


def match_tensors(model: Any, header: GgufHeader, name: str) -> Iterator[tuple[str, TensorInfo]]:
    """(parameter name, tensor) of every parameter of the module; tied weights once. Raises InputError for
    a missing one.
    """
    table = TensorNames(str(header.metadata["general.architecture"]), model.config.num_hidden_layers)
    by_name = {tensor.name: tensor for tensor in header.tensors}
    pairs = [(parameter, table.get(parameter)) for parameter, _ in model.named_parameters()]
    missing = {parameter: stored for parameter, stored in pairs if stored not in by_name}
    if missing:
        lacks = list_tensors(str(stored or parameter) for parameter, stored in missing.items())
        raise InputError(
            f"The GGUF file {name} lacks {lacks}; fetch the whole file (all of its parts) again."
        )
    for parameter, stored in pairs:
        yield parameter, by_name[str(stored)]


class TensorNames:
    """GGUF names of module parameters, by the tables of the `gguf` package."""

    def __init__(self, architecture: str, layers: int) -> None:
        import gguf

        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        self.table: Any = gguf.get_tensor_name_map(kinds[architecture], layers)

    def get(self, parameter: str) -> str | None:
        """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`; None where the table has no such
        name.
        """
        name: str | None = self.table.get_name(parameter, try_suffixes=(".weight", ".bias"))
        return name


def dequantize_tensor(data: np.ndarray, tensor: TensorInfo, name: str) -> np.ndarray:
    """fp32 values of one tensor, slowest dimension first, as the `gguf` package computes them."""
    import gguf

    kind = gguf.GGMLQuantizationType(tensor.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = tensor.elements // block * size
    raw = np.asarray(data[tensor.offset : tensor.offset + count])
    shape = tuple(reversed(tensor.dims))
    try:
        values = gguf.dequantize(raw.reshape(*shape[:-1], -1), kind)
    except NotImplementedError:
        raise InputError(
            f"The tensor {tensor.name} of {name} has the type {kind.name}, which cannot be read; "
            "requantize the file."
        ) from None
    return np.asarray(values, np.float32).reshape(shape)


def restore_order(weight: np.ndarray, parameter: str, config: Any, architecture: Architecture) -> np.ndarray:
    """The tensor as the module wants it: rotary halves put back together, the norms' offset taken off."""
    if architecture.norm_offset and parameter.endswith("norm.weight"):
        shifted: np.ndarray = weight - np.float32(architecture.norm_offset)
        return shifted
    match = re.search(r"\.(q|k)_proj\.(weight|bias)$", parameter)
    if not architecture.permuted or match is None:
        return weight
    heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
    halves = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    ordered: np.ndarray = halves.swapaxes(1, 2).reshape(weight.shape)
    return ordered


def scale_rotary(model: Any, factors: np.ndarray, name: str) -> None:
    """Divide the rotary frequencies by the file's factors, as llama.cpp does."""
    import torch

    rotary = model.base_model.rotary_emb
    if getattr(rotary, "rope_type", None) != "default" or factors.shape != tuple(rotary.inv_freq.shape):
        raise InputError(
            f"The GGUF file {name} has {ROPE_FACTORS} of shape {list(factors.shape)} beside another rotary "
            "scaling, which is not understood; use the safetensors folder of the same model."
        )
    with torch.no_grad():
        rotary.inv_freq /= torch.tensor(factors)


def check_finite(weight: np.ndarray, tensor: str, name: str) -> None:
    """Refuse NaN and infinities."""
    if not np.isfinite(weight).all():
        raise InputError(f"The tensor {tensor} of {name} holds NaN or infinity; fetch the file again.")
