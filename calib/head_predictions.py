"""What a feature head proposes along known texts, and how much of it greedy verification accepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specc.calib.batches import Rows
from specc.calib.unroll import shift, unroll
from specc.exporter.draft_heads.modules import FeatureHead


@dataclass(frozen=True)
class Predictions:
    """Greedy proposals along known texts; row p at depth j belongs to the draft that starts at row p - j."""

    predicted: torch.Tensor
    """int64 [depth, b, L], target ids."""
    confidence: torch.Tensor
    """fp32 [depth, b, L], probability of that token under the head."""


def output_weight(head: FeatureHead) -> torch.Tensor:
    """The target's lm_head rows for the draft vocabulary, [Vd, H]."""
    weight: torch.Tensor = head.model.get_output_embeddings().weight
    return weight


@torch.no_grad()
def predict(head: FeatureHead, rows: Rows, ids: torch.Tensor, depth: int) -> Predictions:
    """Greedy proposals at every row and depth, given that the draft so far proposed the text's own tokens.

    `ids`: int64 [Vd], the target id of each column of the head.
    """
    predicted, confidence = [], []
    for features in unroll(head, rows.ids, rows.hidden, depth):
        best = torch.softmax((features @ output_weight(head).T).float(), -1).max(-1)
        predicted.append(ids[best.indices])
        confidence.append(best.values)
    return Predictions(torch.stack(predicted), torch.stack(confidence))


def count_accepted(predictions: Predictions, rows: Rows) -> list[tuple[int, int]]:
    """(accepted, tried) at each depth; a row is tried where all earlier depths of its draft were accepted."""
    row = torch.arange(rows.ids.shape[1])[None]
    is_accepted = torch.ones_like(rows.counts)
    counts = []
    for depth, token in enumerate(predictions.predicted):
        is_tried = rows.counts & (row >= depth) & (shift(is_accepted, 1, 1) if depth else is_accepted)
        is_accepted = is_tried & (token == rows.next)
        counts.append((int(is_accepted.sum()), int(is_tried.sum())))
    return counts
