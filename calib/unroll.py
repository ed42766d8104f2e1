"""A feature head run as it drafts, some steps over whole texts: each step reads the features of the one before.

Row p of step j stands for depth j of the draft that began at row p - j: it reads token p + 1 and the feature of
position p (the target's own at depth 0), attends to the target's features up to row p - j and to its own draft's rows
behind them, and foretells feature p + 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from specc.exporter.draft_heads.modules import FeatureHead

ATTENTION = "specc_unroll"
LOW = -1e4


@dataclass
class Steps:
    """Keys and values of the steps so far, [b, kv_heads, L, dim] each."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


def unroll(head: FeatureHead, ids: torch.Tensor, hidden: torch.Tensor, depth: int) -> list[torch.Tensor]:
    """Features [b, L, H] of each of `depth` steps; ids [b, L] are tokens 1..L, hidden [b, L, H] features 0..L-1."""
    out, feature, steps = [], hidden, Steps()
    with attention_of(head, steps):
        for _ in range(depth):
            head.enter.feature = feature
            out.append(head.model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
            feature = shifted(out[-1], 1, 1)
        head.enter.feature = None
    return out


@contextlib.contextmanager
def attention_of(head: FeatureHead, steps: Steps) -> Iterator[None]:
    """The head's layer attends over `steps` while the block runs; its module counts one layer."""

    def attend(
        module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any
    ) -> Any:
        steps.keys.append(key)
        steps.values.append(value)
        return attention(steps, query, scaling if scaling is not None else query.shape[-1] ** -0.5), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
    config = head.model.config
    before = config._attn_implementation, config.num_hidden_layers
    config._attn_implementation, config.num_hidden_layers = ATTENTION, 1
    try:
        yield
    finally:
        config._attn_implementation, config.num_hidden_layers = before


def attention(steps: Steps, query: torch.Tensor, scaling: float) -> torch.Tensor:
    """query [b, heads, L, dim] of the newest step -> [b, L, heads, dim]."""
    b, heads, rows, dim = query.shape
    kv, last = steps.keys[0].shape[1], len(steps.keys) - 1
    grouped = query.reshape(b, kv, heads // kv, rows, dim)
    at = torch.arange(rows, device=query.device)
    seen = at[None, :] <= at[:, None] - last
    first = torch.matmul(grouped, steps.keys[0][:, :, None].transpose(-1, -2)).float() * scaling
    scores = [first.masked_fill(~seen, LOW)]
    own = [shifted(key, last - i, 2)[:, :, None] for i, key in enumerate(steps.keys) if i]
    scores += [(grouped * key).float().sum(-1, keepdim=True) * scaling for key in own]
    weights = torch.softmax(torch.cat(scores, -1), -1)
    out = torch.matmul(weights[..., :rows].to(query.dtype), steps.values[0][:, :, None])
    for i, value in enumerate(steps.values[1:], 1):
        part = weights[..., rows + i - 1 : rows + i].to(query.dtype)
        out = out + part * shifted(value, last - i, 2)[:, :, None]
    return out.reshape(b, heads, rows, dim).transpose(1, 2)


def shifted(x: torch.Tensor, by: int, axis: int) -> torch.Tensor:
    """x moved `by` places up along an axis, zeros in front."""
    if by == 0:
        return x
    length = x.shape[axis]
    return torch.cat(
        (torch.zeros_like(x.narrow(axis, 0, min(by, length))), x.narrow(axis, 0, max(0, length - by))), axis
    )
