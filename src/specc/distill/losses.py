"""Training losses of draft heads: cross-entropy with the target's distribution, and distance of features."""

from __future__ import annotations

import torch
from torch.nn.functional import log_softmax, smooth_l1_loss

from specc.calib.batches import Rows
from specc.calib.head_predictions import output_weight
from specc.calib.unroll import unroll
from specc.exporter.draft_heads.modules import FeatureHead, MedusaHead

FEATURE_WEIGHT = 0.1
"""Of the smooth L1 distance between features, beside the cross-entropy."""
DEPTH_DECAY = 0.8
"""Weight of each further step or block, relative to the one before."""


def feature_loss(head: FeatureHead, rows: Rows, depth: int) -> torch.Tensor:
    """Scalar: the mean over the counted rows of each unrolled step, summed with the steps' weights."""
    weight = output_weight(head)
    total = torch.zeros((), device=rows.hidden.device)
    row = torch.arange(rows.ids.shape[1], device=rows.ids.device).expand_as(rows.counts)[rows.counts]
    wanted = rows.wanted[rows.counts]
    with torch.no_grad():
        p = torch.softmax((wanted @ weight.T).float(), -1)
    for j, features in enumerate(unroll(head, rows.ids, rows.hidden, depth)):
        feature, is_in_text = features[rows.counts], row >= j
        entropy = -(p * log_softmax((feature @ weight.T).float(), -1)).sum(-1)[is_in_text].mean()
        distance = smooth_l1_loss(feature[is_in_text].float(), wanted[is_in_text])
        total = total + DEPTH_DECAY**j * (entropy + FEATURE_WEIGHT * distance)
    return total


def medusa_loss(head: MedusaHead, rows: Rows) -> torch.Tensor:
    """Scalar: block i at feature p + 1 predicts the token that feature p + 2 + i leads to."""
    blocks, total = len(head.blocks), torch.zeros((), device=rows.hidden.device)
    features = head.features(rows.wanted)
    for i in range(blocks):
        is_counted = rows.counts[:, : rows.ids.shape[1] - i - 1] & rows.counts[:, i + 1 :]
        feature, wanted = features[:, : -i - 1, i][is_counted], rows.wanted[:, i + 1 :][is_counted]
        with torch.no_grad():
            p = torch.softmax(head.lm_head(wanted).float(), -1)
        entropy = -(p * log_softmax(head.lm_head(feature).float(), -1)).sum(-1).mean()
        total = total + DEPTH_DECAY**i * entropy
    return total
