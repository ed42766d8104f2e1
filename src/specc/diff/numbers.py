"""Rows of logits against rows of logits: pure functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]
BATCH = 16
"""Neighbouring rows that count as one for a confidence interval: they are not independent."""
NORMAL_95 = 1.96


@dataclass(frozen=True, eq=False)
class RowComparison:
    """Of each row [r]; `following` numbers have one entry less where the text ends with the last row."""

    kl_ab: Rows
    kl_ba: Rows
    tv: Rows
    top_a: npt.NDArray[np.int64]
    top_b: npt.NDArray[np.int64]
    p_aa: Rows
    """Probability that A gives to A's most probable id; p_ab: that A gives to B's, and so on."""
    p_ab: Rows
    p_ba: Rows
    p_bb: Rows
    same_bits: npt.NDArray[np.bool_]
    nats_a: Rows
    """-log p of the id that follows."""
    nats_b: Rows


def compare_rows(a: Logits, b: Logits, following: npt.NDArray[np.int64]) -> RowComparison:
    """Logits [r, n] of both at the same places, and the ids that follow [r or r - 1]."""
    p, q = log_softmax(a), log_softmax(b)
    rows, next_rows = np.arange(len(a)), np.arange(len(following))
    top_a, top_b = a.argmax(-1), b.argmax(-1)
    return RowComparison(
        kl_divergence(p, q),
        kl_divergence(q, p),
        0.5 * np.abs(np.exp(p) - np.exp(q)).sum(-1),
        top_a,
        top_b,
        np.exp(p[rows, top_a]),
        np.exp(p[rows, top_b]),
        np.exp(q[rows, top_a]),
        np.exp(q[rows, top_b]),
        same_bits(a, b),
        -p[next_rows, following],
        -q[next_rows, following],
    )


def log_softmax(logits: Logits) -> Rows:
    """Logarithm of the softmax of each row, in double."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    out: Rows = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return out


def kl_divergence(p: Rows, q: Rows) -> Rows:
    """KL(p || q) of rows of log probabilities, in nats; an id that p never gives adds nothing."""
    with np.errstate(invalid="ignore"):  # minus infinity times zero
        terms = np.where(np.isneginf(p), 0.0, np.exp(p) * (p - q))
    out: Rows = np.maximum(terms.sum(-1), 0)
    return out


def same_bits(a: Logits, b: Logits) -> npt.NDArray[np.bool_]:
    """Whether rows agree bit for bit."""
    ours, theirs = (np.ascontiguousarray(x, np.float32).view(np.uint32) for x in (a, b))
    out: npt.NDArray[np.bool_] = (ours == theirs).all(-1)
    return out


def join_blocks(parts: Sequence[RowComparison]) -> RowComparison:
    """All rows of several blocks."""
    return RowComparison(
        *(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(RowComparison))
    )


def describe_spread(values: Rows) -> dict[str, float]:
    """Mean with its 95 % interval from means of BATCH neighbouring rows, 99th percentile and largest."""
    mean, half = float(values.mean()), half_interval(values)
    return {
        "mean": mean,
        "low": max(mean - half, 0.0),
        "high": mean + half,
        "p99": float(np.quantile(values, 0.99)),
        "max": float(values.max()),
    }


def half_interval(values: Rows) -> float:
    """Half the 95 % interval of the mean; infinite where there are fewer than two batches."""
    count = len(values) // BATCH
    if count < 2:
        return math.inf
    means = values[: count * BATCH].reshape(count, BATCH).mean(1)
    return NORMAL_95 * float(means.std(ddof=1)) / math.sqrt(count)


def summarize_comparison(rows: RowComparison) -> dict[str, Any]:
    """What a diff tells of all rows; NaN where a logit is no number."""
    same = rows.top_a == rows.top_b
    good = bool(np.isfinite(rows.kl_ab).all() and np.isfinite(rows.kl_ba).all())
    return {
        "rows": len(same),
        "same_bits": int(rows.same_bits.sum()),
        "kl": {"a_b": describe_spread(rows.kl_ab), "b_a": describe_spread(rows.kl_ba)},
        "tv": describe_spread(rows.tv),
        "top1": {"agreement": float(same.mean()) if good else math.nan, "flips": int((~same).sum())},
        "perplexity": compute_perplexity(rows),
    }


def compute_perplexity(rows: RowComparison) -> dict[str, float]:
    """Of both over the text, and B's over A's."""
    a, b = float(rows.nats_a.mean()), float(rows.nats_b.mean())
    return {"a": exp(a), "b": exp(b), "ratio": exp(b - a)}


def exp(nats: float) -> float:
    """e to the nats; infinite where that is too large for a float."""
    return math.exp(nats) if nats < 700 else math.inf


def find_worst_flips(rows: RowComparison, most: int) -> list[int]:
    """Rows whose largest logits differ, the most decided ones first."""
    flips = np.flatnonzero(rows.top_a != rows.top_b)
    lost = (rows.p_aa - rows.p_ab + rows.p_bb - rows.p_ba)[flips]
    return [int(i) for i in flips[np.argsort(-lost, kind="stable")][:most]]
