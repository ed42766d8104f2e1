"""A feature head run as in drafting, over whole texts: each step reads the features of the one before.

Row p of step j is depth j of the draft that starts at row p - j. It reads token p + 1 and the feature of
position p (the target's own at depth 0), attends to the target's features up to row p - j and to its own
draft's rows after them, and predicts feature p + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specc.exporter.draft_heads.modules import FeatureHead
from specc.exporter.module_view import swap_attention

ATTENTION = "specc_unroll"
MASKED = -1e4
"""Attention score of a position that a row must not see."""


@dataclass
class StepCache:
    """Keys and values of the steps so far, [b, kv_heads, L, dim] each."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


def unroll(head: FeatureHead, ids: torch.Tensor, hidden: torch.Tensor, depth: int) -> list[torch.Tensor]:
    """Features [b, L, H] of `depth` steps; ids [b, L] are tokens 1..L, hidden [b, L, H] features 0..L-1."""
    features, feature, cache = [], hidden, StepCache()

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> tuple[torch.Tensor, None]:
        cache.keys.append(key)
        cache.values.append(value)
        return attend_steps(cache, query, scaling if scaling is not None else query.shape[-1] ** -0.5), None

    with swap_attention(head.model.config, ATTENTION, attend, layers=1):
        for _ in range(depth):
            head.enter.feature = feature
            features.append(head.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
            feature = shift(features[-1], 1, 1)
        head.enter.feature = None
    return features


def attend_steps(cache: StepCache, query: torch.Tensor, scaling: float) -> torch.Tensor:
    """query [b, heads, L, dim] of the newest step -> [b, L, heads, dim]."""
    b, heads, rows, dim = query.shape
    kv, last = cache.keys[0].shape[1], len(cache.keys) - 1
    grouped = query.reshape(b, kv, heads // kv, rows, dim)
    row = torch.arange(rows, device=query.device)
    is_visible = row[None, :] <= row[:, None] - last
    first = torch.matmul(grouped, cache.keys[0][:, :, None].transpose(-1, -2)).float() * scaling
    scores = [first.masked_fill(~is_visible, MASKED)]
    draft_keys = [shift(key, last - i, 2)[:, :, None] for i, key in enumerate(cache.keys) if i]
    scores += [(grouped * key).float().sum(-1, keepdim=True) * scaling for key in draft_keys]
    weights = torch.softmax(torch.cat(scores, -1), -1)
    out = torch.matmul(weights[..., :rows].to(query.dtype), cache.values[0][:, :, None])
    for i, value in enumerate(cache.values[1:], 1):
        weight = weights[..., rows + i - 1 : rows + i].to(query.dtype)
        out = out + weight * shift(value, last - i, 2)[:, :, None]
    return out.reshape(b, heads, rows, dim).transpose(1, 2)


def shift(x: torch.Tensor, by: int, axis: int) -> torch.Tensor:
    """x moved `by` places towards higher indices of an axis, zeros in front."""
    if by == 0:
        return x
    length = x.shape[axis]
    return torch.cat(
        (torch.zeros_like(x.narrow(axis, 0, min(by, length))), x.narrow(axis, 0, max(0, length - by))), axis
    )
