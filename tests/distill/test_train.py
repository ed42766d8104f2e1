"""Training: unrolled steps are what drafting computes, a killed run ends in the very same weights, acceptance
rises.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny

from specc.calib.batch import AnswerRequest, Batch
from specc.calib.batches import plan_batches, stack_samples
from specc.calib.head_predictions import count_accepted, predict
from specc.calib.samples import Sample
from specc.calib.unroll import unroll
from specc.distill.losses import feature_loss, medusa_loss
from specc.distill.train import TrainingSettings, train
from specc.exporter.draft_heads.modules import (
    FeatureHead,
    MedusaHead,
    build_feature_head,
    compute_feature_logits,
)

IDS = torch.arange(0, 250, 2)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    batch = Batch(tiny.tiny_model(), 8, 96, eos=())
    draws = np.random.default_rng(1)
    requests = [
        AnswerRequest(tuple(int(i) for i in draws.integers(0, 250, 4 + n % 5)), 0.0, 12 + n % 7)
        for n in range(24)
    ]
    pairs = zip(requests, batch.answer(requests, 1), strict=True)
    return [
        Sample("chat", 0.0, np.asarray([*a.ids, *x.ids], np.int32), len(a.ids), 0, x.hidden.numpy())
        for a, x in pairs
    ]


def fresh() -> FeatureHead:
    torch.manual_seed(4)
    head = build_feature_head(tiny.tiny_model(), IDS)
    head.model.requires_grad_(False)
    head.parts.requires_grad_(True)
    return head


def test_unrolled_steps_are_what_drafting_computes(samples: list[Sample]) -> None:
    head, rows = fresh(), stack_samples(samples[:1])
    with torch.no_grad():
        steps = unroll(head, rows.ids, rows.hidden, 3)
        start = 5  # a draft begun at row 5: its own features follow the target's
        features = rows.hidden[:, : start + 1]
        for depth in range(3):
            last = start + depth
            logits = compute_feature_logits(head, rows.ids[:, : last + 1], features)[0, -1]
            expected = steps[depth][0, last] @ head.model.lm_head.weight.T
            assert torch.allclose(logits, expected, atol=1e-4), depth
            features = torch.cat((features, steps[depth][:, last : last + 1]), 1)


def test_rows_predict_the_answer(samples: list[Sample]) -> None:
    s = samples[0]
    rows = stack_samples([s])
    first = int(rows.counts[0].nonzero()[0])
    assert rows.next[0, first] == s.answer[0] and rows.counts[0].sum() == len(s.answer)
    assert stack_samples([s], whole=True).counts[0].sum() == len(s.ids) - 2
    assert s.hidden is not None and torch.equal(rows.wanted[0, :-1], rows.hidden[0, 1:])


def run(samples: list[Sample], path: Path, stop_at: int = 0, **changes: Any) -> list[torch.Tensor]:
    head = fresh()
    parameters = list(head.parts.parameters())
    settings = TrainingSettings(
        **{"epochs": 2, "batch_tokens": 120, "checkpoint_steps": 2, "warmup_steps": 2, "depth": 2, **changes}
    )
    train(
        parameters,
        lambda r: feature_loss(head, r, settings.depth),
        samples,
        settings,
        path,
        on_step=lambda step, loss: step == stop_at,
    )
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("killed", [4, 5])
def test_a_killed_run_ends_in_the_same_weights(killed: int, samples: list[Sample], tmp_path: Path) -> None:
    whole = run(samples, tmp_path / "whole.pt")
    stopped = run(samples, tmp_path / "cut.pt", stop_at=killed)
    assert not all(torch.equal(a, b) for a, b in zip(whole, stopped, strict=True))
    resumed = run(samples, tmp_path / "cut.pt")
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
    other = run(samples, tmp_path / "other.pt", seed=1)
    assert not all(torch.equal(a, b) for a, b in zip(whole, other, strict=True))


def test_training_raises_acceptance(samples: list[Sample], tmp_path: Path) -> None:
    head, rows = fresh(), stack_samples(samples)
    before = count_accepted(predict(head, rows, IDS, 2), rows)
    train(
        list(head.parts.parameters()),
        lambda r: feature_loss(head, r, 2),
        samples,
        TrainingSettings(epochs=25, batch_tokens=400, learning_rate=5e-3, warmup_steps=5),
        tmp_path / "c.pt",
    )
    after = count_accepted(predict(head, rows, IDS, 2), rows)
    assert after[0][0] > before[0][0] + 20 and after[0][1] == int(rows.counts.sum())
    assert after[1][1] <= after[0][0]


def test_medusa_blocks_learn_their_own_distance(samples: list[Sample], tmp_path: Path) -> None:
    rows = tiny.tiny_model().get_output_embeddings().weight.detach()[IDS]
    head, batch = MedusaHead(rows, 2), stack_samples(samples)
    before = float(medusa_loss(head, batch).detach())
    train(
        list(head.blocks.parameters()),
        lambda r: medusa_loss(head, r),
        samples,
        TrainingSettings(epochs=20, batch_tokens=400, learning_rate=2e-2, warmup_steps=2),
        tmp_path / "m.pt",
    )
    assert float(medusa_loss(head, batch).detach()) < before - 0.05


def test_batches_hold_every_sample_once_and_follow_the_seed() -> None:
    lengths = [5 + i % 40 for i in range(700)]
    plan = plan_batches(lengths, 200, 1, 0)
    assert sorted(i for batch in plan for i in batch) == list(range(700))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 200 for batch in plan)
    assert plan == plan_batches(lengths, 200, 1, 0) != plan_batches(lengths, 200, 1, 1)
