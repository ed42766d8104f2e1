"""The quality judge: what the graph that ships says about held-out text, against the float module."""

from __future__ import annotations

from typing import Any

import numpy as np

from specc.exporter.check import log_softmax
from specc.exporter.graph import Graph
from specc.exporter.session import runner

CHUNK = 64  # rows a call and rows held in double at a time


def measure(graph: Graph, float_logits: np.ndarray, ids: np.ndarray, chunk: int = CHUNK) -> dict[str, float]:
    """How far a graph is from the float module over one text.

    `ids` int64 [n], n >= 2; `float_logits` fp32 [n, vocab], the module's for every position. The graph reads the text
    in calls of `chunk` rows, a row count it was checked at. Returns

    - `kl`: mean over positions of KL(float || graph), in nats
    - `top1`: part of the positions in which both have the same largest logit
    - `perplexity`, `float_perplexity` of ids[1:], and `perplexity_ratio`, the first over the second
    - `tokens`: n

    A logit that is not a number makes the numbers NaN, which no limit lets pass (see `misses`).
    """
    run, parts = runner(graph), []
    for at in range(0, len(ids), chunk):
        got, wanted = run.call(ids[at : at + chunk], at), float_logits[at : at + chunk]
        parts.append(compared(log_softmax(wanted), log_softmax(got), ids[at + 1 : at + chunk + 1]))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return summary(columns, len(ids))


def compared(p: np.ndarray, q: np.ndarray, following: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of log probabilities [r, vocab]: KL(p || q) [r], same largest [r], and -log p, -log q of the following ids."""
    rows = np.arange(len(following))
    return divergences(p, q), p.argmax(-1) == q.argmax(-1), -p[rows, following], -q[rows, following]


def divergences(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p || q) of each row of log probabilities [r, vocab], in nats; an id that p never gives adds nothing."""
    with np.errstate(invalid="ignore"):  # minus infinity times zero
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    rows: np.ndarray = np.maximum(terms.sum(-1), 0)
    return rows


def summary(columns: list[np.ndarray], tokens: int) -> dict[str, float]:
    """The numbers of `measure` from those of `compared` at all positions."""
    kl, same, float_nats, nats = columns
    return {
        "kl": float(kl.mean()),
        "top1": float(same.mean()) if np.isfinite(kl).all() else float("nan"),
        "perplexity": float(np.exp(nats.mean())),
        "float_perplexity": float(np.exp(float_nats.mean())),
        "perplexity_ratio": float(np.exp(nats.mean() - float_nats.mean())),
        "tokens": tokens,
    }


def misses(
    measured: dict[str, float],
    kl_max: float | None = None,
    top1_min: float | None = None,
    perplexity_max: float | None = None,
) -> list[str]:
    """One sentence for each limit that is not met; a number that is NaN meets none. None means no limit.

    `perplexity_max` limits the ratio to the float module's perplexity: 1.005 is half a percent worse.
    """
    limits = (("kl", kl_max, "above"), ("top1", top1_min, "below"), ("perplexity_ratio", perplexity_max, "above"))
    return [
        f"{name} is {measured[name]:.4g}, {side} the limit {limit:.4g}"
        for name, limit, side in limits
        if limit is not None and not (measured[name] >= limit if side == "below" else measured[name] <= limit)
    ]


def float_rows(model: Any, layers: int, ids: np.ndarray) -> np.ndarray:
    """Logits fp32 [n, vocab] of the module's first `layers` layers for all of `ids`; it is left as it was."""
    import torch

    before, model.config.num_hidden_layers = model.config.num_hidden_layers, layers
    try:
        with torch.no_grad():
            logits: np.ndarray = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].float().numpy()
    finally:
        model.config.num_hidden_layers = before
    return logits
