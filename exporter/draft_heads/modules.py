"""Draft heads as torch modules beside their target.

`feature`: fc([embedding of a token; feature before it]) -> one decoder layer of the target's kind -> norm.
The result is the next feature, in the space of the target's final normalised hidden states; the lm_head rows
of the draft vocabulary give its logits. `medusa`: k residual blocks over one hidden state, then the same
lm_head rows.

H: hidden size of the target; Vd: ids of the draft vocabulary; R: rows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from specc.exporter.module_view import copy_shallow


class FeatureInput(torch.nn.Module):
    """Replaces the embedding: ids [1, R] and `feature` [1, R, H], set before the call -> fp [1, R, H]."""

    def __init__(self, embedding: torch.nn.Module, hidden: int) -> None:
        super().__init__()
        self.embedding = embedding
        self.fc = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.feature: torch.Tensor | None = None

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert self.feature is not None
        joined = torch.cat((self.embedding(input_ids), self.feature), -1)
        out: torch.Tensor = self.fc(joined)
        return out


@dataclass(frozen=True)
class FeatureHead:
    """A causal model that shares the target's embedding and lm_head rows; only `parts` are its own."""

    model: Any
    enter: FeatureInput
    parts: torch.nn.ModuleDict
    """fc, layer, norm: what is trained and saved."""


class MedusaHead(torch.nn.Module):
    """Block i: h + silu(W_i h + b_i), then the lm_head rows: logits [k, Vd] of later tokens."""

    def __init__(self, rows: torch.Tensor, k: int) -> None:
        super().__init__()
        hidden = rows.shape[1]
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(k))
        for block in self.blocks:
            torch.nn.init.zeros_(block.weight)  # type: ignore[arg-type]
            torch.nn.init.zeros_(block.bias)  # type: ignore[arg-type]
        self.lm_head = torch.nn.Linear(hidden, len(rows), bias=False)
        self.lm_head.weight = torch.nn.Parameter(rows.clone(), requires_grad=False)

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return self.lm_head.in_features

    def cut(self, k: int) -> None:
        """Keep the first k heads."""
        self.blocks = self.blocks[:k]

    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp [..., H] -> [..., k, H]."""
        return torch.stack([hidden + torch.nn.functional.silu(block(hidden)) for block in self.blocks], -2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.features(hidden))
        return out


class OwnRowsMedusaHead(MedusaHead):
    """Medusa as published: each head has several residual blocks and its own lm_head rows."""

    def __init__(self, k: int, depth: int, columns: int, hidden: int) -> None:
        torch.nn.Module.__init__(self)
        blocks_of = [[torch.nn.Linear(hidden, hidden) for _ in range(depth)] for _ in range(k)]
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleList(blocks) for blocks in blocks_of)
        self.outputs = torch.nn.ModuleList(torch.nn.Linear(hidden, columns, bias=False) for _ in range(k))

    @property
    def width(self) -> int:
        """Numbers of a hidden state."""
        return int(self.outputs[0].in_features)  # type: ignore[arg-type]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = []
        for blocks, output in zip(self.blocks, self.outputs, strict=False):
            feature = hidden
            for block in blocks:  # type: ignore[union-attr,attr-defined]
                feature = feature + torch.nn.functional.silu(block(feature))
            rows.append(output(feature))
        return torch.stack(rows, -2)


def build_feature_head(target: Any, ids: torch.Tensor) -> FeatureHead:
    """An untrained feature head for `target` over draft ids [Vd], which passes the feature on."""
    base = target.base_model
    layer = copy.deepcopy(list(base.layers)[-1])
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0
        if hasattr(module, "config"):
            module.config = target.config  # shared, so that swap_attention reaches this layer
    hidden = target.config.hidden_size
    enter = FeatureInput(target.get_input_embeddings(), hidden)
    norm = copy.deepcopy(base.norm)
    initialize_weights(enter, layer, norm)
    inner = copy_shallow(base)
    inner._modules["layers"] = torch.nn.ModuleList([layer])
    inner._modules["norm"] = norm
    inner._modules[find_child_name(base, target.get_input_embeddings())] = enter
    rows = torch.nn.Linear(hidden, len(ids), bias=False)
    rows.weight = torch.nn.Parameter(
        target.get_output_embeddings().weight.detach()[ids].clone(), requires_grad=False
    )
    view = copy_shallow(target)
    view._modules[target.base_model_prefix] = inner
    view._modules[find_child_name(target, target.get_output_embeddings())] = rows
    return FeatureHead(view, enter, torch.nn.ModuleDict({"fc": enter.fc, "layer": layer, "norm": norm}))


def find_child_name(parent: Any, child: Any) -> str:
    """The name of `child` in `parent`."""
    return next(str(name) for name, module in parent._modules.items() if module is child)


def initialize_weights(enter: FeatureInput, layer: Any, norm: Any) -> None:
    """Initialize with small random numbers; fc passes the feature on, divided by the norm's weights."""
    with torch.no_grad():
        scale = norm.weight.float()
        scale = torch.where(scale.abs() < 0.05, torch.ones_like(scale), scale)
        hidden = len(scale)
        torch.nn.init.normal_(enter.fc.weight, std=0.02)
        enter.fc.weight[:, hidden:] += torch.diag(1 / scale)
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                torch.nn.init.normal_(
                    weight, std=0.02 if "o_proj" not in name and "down_proj" not in name else 0.005
                )
            elif name.endswith("bias"):
                torch.nn.init.zeros_(weight)
            else:
                torch.nn.init.ones_(weight)


def compute_feature_logits(head: FeatureHead, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [1, R, Vd] of a feature head over ids [1, R] and features [1, R, H], no cache."""
    config = head.model.config
    head.enter.feature, before = hidden, config.num_hidden_layers
    config.num_hidden_layers = 1
    try:
        logits: torch.Tensor = head.model(input_ids=ids, use_cache=False).logits
    finally:
        head.enter.feature, config.num_hidden_layers = None, before
    return logits
