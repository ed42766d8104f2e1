"""The sampling options in plain numpy, written from the text of specc.h and independent of the C code.

Order: repetition, presence and frequency penalties; logit bias; temperature; top-k; top-p; min-p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specc.runtime import Options

Row = npt.NDArray[np.float64]


def distribution(
    options: Options, logits: npt.ArrayLike, history: Sequence[int] = (), n_prompt: int = 0
) -> Row:
    """p [n] of one row of logits; history: ids of the prompt (the first n_prompt of them) and of the
    output.
    """
    x = np.asarray(logits, np.float64)
    x = add_bias(options, apply_penalties(options, x, history, n_prompt))
    if options.temperature == 0:
        return one_hot(x.size, int(np.argmax(x)))
    p = softmax(x / options.temperature)
    return normalize(min_p(options.min_p, top_p(options.top_p, top_k(options.top_k, p))))


def apply_penalties(options: Options, x: Row, history: Sequence[int], n_prompt: int) -> Row:
    """Repetition penalty over prompt and output, presence and frequency penalty over the output."""
    x = x.copy()
    seen = np.bincount(np.asarray(history, np.int64), minlength=x.size) > 0
    counts = np.bincount(np.asarray(history[n_prompt:], np.int64), minlength=x.size)
    r = options.repetition_penalty
    x[seen] = np.where(x[seen] > 0, x[seen] / r, x[seen] * r)
    out: Row = x - options.presence_penalty * (counts > 0) - options.frequency_penalty * counts
    return out


def add_bias(options: Options, x: Row) -> Row:
    """The logits with the logit bias added."""
    x = x.copy()
    for token, value in options.logit_bias.items():
        x[token] += value
    return x


def top_k(k: int, p: Row) -> Row:
    """The k most probable stay, ties keep the lower id; 0 is off."""
    keep = sort_falling(p)[: k or p.size]
    return normalize(keep_only(p, keep))


def top_p(limit: float, p: Row) -> Row:
    """A token stays while the mass before it, in falling order, is below the limit; 1 is off."""
    order = sort_falling(p)
    before = np.concatenate(([0.0], np.cumsum(p[order])[:-1]))
    return normalize(keep_only(p, order[before < limit])) if limit < 1 else p


def min_p(fraction: float, p: Row) -> Row:
    """A token stays if its probability is at least this fraction of the largest; 0 is off."""
    return np.where(p >= fraction * p.max(), p, 0.0)


def sort_falling(p: Row) -> npt.NDArray[np.intp]:
    """Ids in falling order of p, the lower id first on ties."""
    return np.argsort(-p, kind="stable")


def keep_only(p: Row, keep: npt.NDArray[np.intp]) -> Row:
    """p on the kept ids, 0 elsewhere."""
    out = np.zeros_like(p)
    out[keep] = p[keep]
    return out


def softmax(x: Row) -> Row:
    return normalize(np.exp(x - x.max()))


def normalize(p: Row) -> Row:
    total: Row = p / p.sum()
    return total


def one_hot(n: int, token: int) -> Row:
    """[n] with a 1 at token."""
    row = np.zeros(n)
    row[token] = 1.0
    return row
