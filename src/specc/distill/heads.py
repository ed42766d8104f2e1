"""Draft heads in training: parameters, loss, tensors. One function a kind, named by its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.calib.batches import Rows, stack_samples
from specc.calib.head_predictions import count_accepted, predict
from specc.calib.samples import Sample
from specc.contracts.draft_kinds import TRAININGS, import_function
from specc.contracts.model_spec import ModelSpec
from specc.distill.data import TrainingData, select_frequent_ids
from specc.distill.losses import feature_loss, medusa_loss
from specc.distill.request import DistillRequest
from specc.distill.train import TrainingSettings, checkpoint_path, train
from specc.exporter.draft_heads.file import save_draft_head
from specc.exporter.draft_heads.modules import MedusaHead, build_feature_head
from specc.progress import Progress

MEDUSA_BLOCKS = 4
DEPTH = 4
"""Depths at which acceptance is measured."""


@dataclass(frozen=True)
class HeadTraining:
    """A head in training."""

    parts: torch.nn.Module
    """The trained modules."""
    loss: Callable[[Rows], torch.Tensor]
    shape: dict[str, int]
    """Metadata of the file, by which a build checks that the head fits."""
    prefix: str = ""
    """Of the tensors' names in the file."""
    measure_acceptance: Callable[[Sequence[Sample]], dict[str, list[float]]] = lambda tuning: {}
    """(tuning samples) -> class -> greedy acceptance at depth 1.."""


def feature_training(
    target: Any, spec: ModelSpec, ids: torch.Tensor, settings: TrainingSettings
) -> HeadTraining:
    """A feature head; one decoder layer of the target's shape."""
    head = build_feature_head(target, ids)
    head.parts.requires_grad_(True)
    shape = {"layers": 1, "heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim}

    def measure_acceptance(tuning: Sequence[Sample]) -> dict[str, list[float]]:
        return {
            kind: measure_class(head, ids, [s for s in tuning if s.kind == kind])
            for kind in sorted({s.kind for s in tuning})
        }

    return HeadTraining(
        head.parts,
        lambda rows: feature_loss(head, rows, settings.depth),
        {**shape, "intermediate": spec.intermediate},
        measure_acceptance=measure_acceptance,
    )


def measure_class(head: Any, ids: torch.Tensor, samples: Sequence[Sample]) -> list[float]:
    """Greedy acceptance of a feature head at each depth where all before it were accepted, on one class."""
    totals = [(0, 0)] * DEPTH
    for sample in samples:
        if sample.temperature == 0 and len(sample.ids) > 3:
            rows = stack_samples([sample])
            counts = count_accepted(predict(head, rows, ids, DEPTH), rows)
            totals = [(a + c, b + d) for (a, b), (c, d) in zip(totals, counts, strict=True)]
    return [round(accepted / tried, 4) if tried else 0.0 for accepted, tried in totals]


def medusa_training(
    target: Any, spec: ModelSpec, ids: torch.Tensor, settings: TrainingSettings
) -> HeadTraining:
    """Parallel heads; their acceptance is not measured here."""
    head = MedusaHead(target.get_output_embeddings().weight.detach()[ids], MEDUSA_BLOCKS)
    shape = {"k": MEDUSA_BLOCKS}
    return HeadTraining(head.blocks, lambda rows: medusa_loss(head, rows), shape, prefix="blocks.")


def train_head(
    request: DistillRequest,
    target: Any,
    spec: ModelSpec,
    data: TrainingData,
    folder: Path,
    path: Path,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Train one head and write it to `path`; returns (settings, acceptance by class) as provenance has them.

    `target`: fp32, frozen. `folder`: where the checkpoint of a killed run is.
    """
    settings = TrainingSettings(seed=request.seed, epochs=request.epochs)
    ids = torch.tensor(select_frequent_ids(data.training, min(request.ids, spec.token_ids)))
    torch.manual_seed(settings.seed)
    start = import_function(TRAININGS[request.kind].head)
    head: HeadTraining = start(target, spec, ids, settings)
    record = settings.to_record()
    checkpoint = checkpoint_path(folder, record, request.kind, data.sha256, len(ids), spec.weights_sha256)
    train(list(head.parts.parameters()), head.loss, data.training, settings, checkpoint, progress)
    metadata = {
        **describe_target(spec),
        **{name: str(number) for name, number in head.shape.items()},
        "seed": str(request.seed),
        "data_sha256": data.sha256,
    }
    save_draft_head(path, request.kind, dict(head.parts.state_dict(prefix=head.prefix)), ids, metadata)
    return {**record, "ids": len(ids)}, head.measure_acceptance(data.tuning)


def describe_target(spec: ModelSpec) -> dict[str, str]:
    """Metadata by which a build checks that a file was trained for its target."""
    hashes = {"weights_sha256": spec.weights_sha256, "id_map_sha256": spec.id_map_sha256}
    return {**hashes, "hidden": str(spec.hidden), "vocab": str(spec.token_ids)}
