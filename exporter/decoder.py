"""Where a causal LM keeps its decoder: the list of layers, the norm before the LM head, the rotary module.

Families name these parts differently (layers, h, decoder.layers; norm, ln_f, final_layernorm), so they are
found by
what they are: the list as long as the model has layers, the last module beside it that a call runs, the
rotary embedding beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specc.errors import InputError


@dataclass(frozen=True)
class Decoder:
    """Names of the parts: `path` leads from the causal LM to the module that holds them."""

    path: tuple[str, ...]
    layers: str
    norm: str
    rotary: str | None


def find_decoder(model: Any, layers_kept: int) -> Decoder:
    """The parts of `model`, a causal LM of transformers; raises InputError where one cannot be told.

    `layers_kept`: the layers of the engine. A draft head has so many under its target's configuration.
    """
    counts = (int(model.config.get_text_config().num_hidden_layers), layers_kept)
    path, layers = find_layers(model, counts)
    parent = model.get_submodule(".".join(path))
    rotary = [name for name, part in parent.named_children() if "RotaryEmbedding" in type(part).__name__]
    return Decoder(path, layers, find_last_norm(model, parent, layers), rotary[0] if rotary else None)


def find_layers(model: Any, counts: Sequence[int]) -> tuple[tuple[str, ...], str]:
    """Path and name of the first list of so many modules, the first of `counts` that has one."""
    for count in counts:
        for name, module in model.named_modules():
            for child, part in module.named_children():
                if isinstance(part, torch.nn.ModuleList) and len(part) == count:
                    return tuple(name.split(".")) if name else (), child
    raise InputError(f"{type(model).__name__} has no list of {counts[0]} layers; it is not supported.")


def find_last_norm(model: Any, parent: Any, layers: str) -> str:
    """The direct child of `parent` that runs last: what it returns is what the LM head multiplies."""
    if "norm" in dict(parent.named_children()):
        return "norm"
    order: list[str] = []
    handles = [
        part.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, part in parent.named_children()
        if name != layers
    ]
    ids = torch.arange(4)[None]
    try:
        with torch.no_grad():
            model(input_ids=ids, position_ids=torch.arange(4)[None], use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    if not order or "embed" in order[-1]:
        raise InputError(f"{type(model).__name__} has no norm before its LM head; it is not supported.")
    return order[-1]
