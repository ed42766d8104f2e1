"""What a head is trained for: the target's own distribution over the draft ids, and the target's features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import log_softmax, smooth_l1_loss

from specc.calib.batches import Rows
from specc.calib.unroll import shifted, unroll
from specc.exporter.draft_heads.modules import FeatureHead, MedusaHead

FEATURES = 0.1
"""Weight of the distance between features, beside the cross-entropy."""
DEEPER = 0.8
"""Weight of each further step or block, relative to the one before."""


def feature_loss(head: FeatureHead, rows: Rows, depth: int) -> torch.Tensor:
    """Scalar; mean over the counted rows of each step, steps weighted by depth."""
    output = output_rows(head)
    total = torch.zeros((), device=rows.hidden.device)
    place = torch.arange(rows.ids.shape[1], device=rows.ids.device).expand_as(rows.counts)[rows.counts]
    wanted = rows.wanted[rows.counts]
    with torch.no_grad():
        p = torch.softmax((wanted @ output.T).float(), -1)
    for j, out in enumerate(unroll(head, rows.ids, rows.hidden, depth)):
        got, begun = out[rows.counts], place >= j
        likely = -(p * log_softmax((got @ output.T).float(), -1)).sum(-1)[begun].mean()
        total = total + DEEPER**j * (likely + FEATURES * smooth_l1_loss(got[begun].float(), wanted[begun]))
    return total


def output_rows(head: FeatureHead) -> torch.Tensor:
    """The target's output rows of the draft ids, [Vd, H]."""
    rows: torch.Tensor = head.model.get_output_embeddings().weight
    return rows


def medusa_loss(head: MedusaHead, rows: Rows) -> torch.Tensor:
    """Scalar: block i at feature p + 1 foretells what feature p + 2 + i leads to."""
    blocks, total = len(head.blocks), torch.zeros((), device=rows.hidden.device)
    feature = head.features(rows.wanted)
    for i in range(blocks):
        counts = rows.counts[:, : rows.ids.shape[1] - i - 1] & rows.counts[:, i + 1 :]
        got, wanted = feature[:, : -i - 1, i][counts], rows.wanted[:, i + 1 :][counts]
        with torch.no_grad():
            p = torch.softmax(head.lm_head(wanted).float(), -1)
        total = total + DEEPER**i * -(p * log_softmax(head.lm_head(got).float(), -1)).sum(-1).mean()
    return total


@dataclass(frozen=True)
class Foretold:
    """What a head proposes greedily along known texts: at depth j, the draft begun at row p - j."""

    token: torch.Tensor
    """int64 [depth, b, L], target ids."""
    sure: torch.Tensor
    """fp32 [depth, b, L], probability of that token under the head."""


@torch.no_grad()
def foretell(head: FeatureHead, rows: Rows, ids: torch.Tensor, depth: int) -> Foretold:
    """Greedy proposals at every row and depth, given that the text's own tokens were drafted so far."""
    tokens, sure = [], []
    for out in unroll(head, rows.ids, rows.hidden, depth):
        best = torch.softmax((out @ output_rows(head).T).float(), -1).max(-1)
        tokens.append(ids[best.indices])
        sure.append(best.values)
    return Foretold(torch.stack(tokens), torch.stack(sure))


def accepted_at(foretold: Foretold, rows: Rows) -> list[tuple[int, int]]:
    """(accepted, tried) at each depth, greedy: tried where every earlier depth of the same draft was right."""
    place = torch.arange(rows.ids.shape[1])[None]
    right = torch.ones_like(rows.counts)
    out = []
    for j, token in enumerate(foretold.token):
        tried = rows.counts & (place >= j) & (shifted(right, 1, 1) if j else right)
        right = tried & (token == rows.next)
        out.append((int(right.sum()), int(tried.sum())))
    return out
