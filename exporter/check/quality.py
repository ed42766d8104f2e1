"""Quality of a graph on held-out text, against the float module."""

from __future__ import annotations

import numpy as np

from specc.exporter.check.logits import log_softmax
from specc.exporter.graph.graph import Graph
from specc.exporter.graph.session import open_runner

CHUNK = 64  # rows of a call


def measure_quality(
    graph: Graph, float_logits: np.ndarray, ids: np.ndarray, chunk: int = CHUNK
) -> dict[str, float]:
    """The distance of a graph from the float module over one text.

    `ids`: int64 [n], n >= 2; `float_logits`: fp32 [n, vocab], the module's at every position. The graph reads
    the text in calls of `chunk` rows. Returns

    - `kl`: mean over positions of KL(float || graph), in nats
    - `top1`: fraction of the positions at which both have the same largest logit
    - `perplexity`, `float_perplexity` of ids[1:], and `perplexity_ratio`, the first over the second
    - `tokens`: n

    A NaN among the logits makes the results NaN, which no limit accepts.
    """
    run, parts = open_runner(graph), []
    for at in range(0, len(ids), chunk):
        got, wanted = run.call(ids[at : at + chunk], at), float_logits[at : at + chunk]
        parts.append(compare_rows(log_softmax(wanted), log_softmax(got), ids[at + 1 : at + chunk + 1]))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return summarize_quality(columns, len(ids))


def compare_rows(p: np.ndarray, q: np.ndarray, following: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of log probabilities [r, vocab]: KL(p || q), equal argmax, -log p, -log q of `following`; all [r]."""
    rows = np.arange(len(following))
    return row_divergences(p, q), p.argmax(-1) == q.argmax(-1), -p[rows, following], -q[rows, following]


def row_divergences(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL(p || q) of each row of log probabilities [r, vocab], in nats.

    An id of probability 0 in p adds nothing.
    """
    with np.errstate(invalid="ignore"):  # minus infinity times zero
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    rows: np.ndarray = np.maximum(terms.sum(-1), 0)
    return rows


def summarize_quality(columns: list[np.ndarray], tokens: int) -> dict[str, float]:
    """The result of `measure_quality` from the columns of `compare_rows` over all positions."""
    kl, same, float_nats, nats = columns
    return {
        "kl": float(kl.mean()),
        "top1": float(same.mean()) if np.isfinite(kl).all() else float("nan"),
        "perplexity": float(np.exp(nats.mean())),
        "float_perplexity": float(np.exp(float_nats.mean())),
        "perplexity_ratio": float(np.exp(nats.mean() - float_nats.mean())),
        "tokens": tokens,
    }
