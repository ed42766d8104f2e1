"""Training batches: samples of like length together, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from specc.calib.samples import Sample

GROUP = 256
"""Samples among which lengths are sorted."""


@dataclass(frozen=True)
class Rows:
    """One batch of texts, right-padded: row p reads token p + 1 and feature p and predicts feature p + 1."""

    ids: torch.Tensor
    """int64 [b, L], tokens 1..L."""
    hidden: torch.Tensor
    """fp32 [b, L, H], features 0..L-1."""
    wanted: torch.Tensor
    """fp32 [b, L, H], features 1..L."""
    next: torch.Tensor
    """int64 [b, L], tokens 2..L+1: what feature p + 1 led to in the text."""
    counts: torch.Tensor
    """bool [b, L]: rows that are measured or trained on."""


def stack_samples(samples: Sequence[Sample], whole: bool = False) -> Rows:
    """Stack samples that carry hidden states; each needs at least 3 ids.

    Rows count whose next token is the answer's. With `whole` all rows count: the target's distribution within
    the prompt trains as well, and costs little more.
    """
    longest = max(len(s.ids) for s in samples) - 2
    width = samples[0].hidden.shape[1]  # type: ignore[union-attr]
    ids, nexts = (torch.zeros(len(samples), longest, dtype=torch.int64) for _ in range(2))
    hidden, wanted = (torch.zeros(len(samples), longest, width) for _ in range(2))
    counts = torch.zeros(len(samples), longest, dtype=torch.bool)
    for row, s in enumerate(samples):
        assert s.hidden is not None
        n = len(s.ids) - 2
        text, states = (
            torch.from_numpy(np.asarray(s.ids, np.int64)),
            torch.from_numpy(np.array(s.hidden, np.float32)),
        )
        ids[row, :n], nexts[row, :n] = text[1 : n + 1], text[2 : n + 2]
        hidden[row, :n], wanted[row, :n] = states[:n], states[1 : n + 1]
        counts[row, 0 if whole else max(0, s.n_prompt - 2) : n] = True
    return Rows(ids, hidden, wanted, nexts, counts)


def plan_batches(lengths: Sequence[int], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Indices of each batch of one epoch; a batch has about `tokens` rows, padding included."""
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), GROUP):
        group = sorted(order[start : start + GROUP], key=lambda i: (lengths[i], i))
        batches += cut_batches(group, lengths, tokens)
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[i] for i in shuffled]


def cut_batches(group: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Runs of a sorted group whose padded size stays within `tokens` (one sample at least)."""
    batches: list[list[int]] = []
    for i in group:
        if batches and lengths[i] * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
