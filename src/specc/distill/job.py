"""One distillation from recipe to files: answers, n-gram table, head or model, provenance and card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.atomic import io_errors
from specc.calib import ngram_table
from specc.calib.samples import Sample
from specc.calib.shards import DataSettings, claim_folder, data_folder
from specc.contracts.files import File, describe_file
from specc.contracts.recipe import load_recipe
from specc.distill.card import make_card, make_provenance
from specc.distill.data import TrainingData, iterate_contexts, prepare_data, read_prompts
from specc.distill.request import DistillRequest
from specc.pipeline import cache
from specc.pipeline.checkpoint import CheckpointRecord, describe, require_build_extra
from specc.progress import Progress, no_progress

if TYPE_CHECKING:
    from specc.contracts.model_spec import ModelSpec

HEAD, TABLE = "head.safetensors", "draft_table.bin"
ORDERS = (1, 2, 3, 4, 5)
"""Lengths of the table's contexts, in ids."""


@dataclass(frozen=True)
class DistillResult:
    """What was written."""

    folder: Path
    files: tuple[File, ...]
    accepted: dict[str, list[float]]
    """Class -> greedy acceptance at depth 1.. on the tuning prompts; empty without a head or model."""
    provenance: dict[str, Any]


def distill(request: DistillRequest, progress: Progress = no_progress) -> DistillResult:
    """Train and write the drafts of a request; resumes a killed run. Raises InputError, EnvironmentFault."""
    request.check()
    recipe = load_recipe(request.recipe)
    described = describe(recipe.target, recipe.folder)
    out = request.out or Path(f"{recipe.name}-draft")
    with io_errors(f"writing {out}"):
        out.mkdir(parents=True, exist_ok=True)
    with require_build_extra():
        return make_drafts(request, described, out, progress)


def make_drafts(
    request: DistillRequest, target: CheckpointRecord, out: Path, progress: Progress
) -> DistillResult:
    """Prepare the data, write each draft into `out`, and describe them there."""
    checkpoint, spec, identity = target.open(), target.spec, target.identity
    user_prompts = read_prompts(request.prompts) if request.prompts else ()
    settings = DataSettings(seed=request.seed, tokens=request.tokens, prompts=user_prompts)
    folder = request.data or data_folder(cache.root(), identity.sha256, settings)
    if request.data:
        with io_errors(f"writing {folder}"):
            claim_folder(folder, identity.sha256)
    model = checkpoint.load()
    identity.check_unchanged()
    data = prepare_data(model, checkpoint, folder, settings, request.leave_out, progress)
    facts: dict[str, Any] = {"data": describe_data(data, settings), "settings": {"ids": request.ids}}
    if request.leave_out:
        facts["data"]["left_out"] = request.leave_out
    identity.check_unchanged()
    accepted: dict[str, list[float]] = {}
    names = []
    if request.table:
        facts["table"] = write_table(request, data.training, spec, out / TABLE)
        names.append(TABLE)
    if request.kind in ("small", "early-exit"):
        from specc.distill.models import train_model

        facts["settings"], accepted, files = train_model(
            request, freeze(model), checkpoint, data, folder, out, progress
        )
        names += files
    elif request.kind != "table":
        from specc.distill.heads import train_head

        facts["settings"], accepted = train_head(
            request, freeze(model), spec, data, folder, out / HEAD, progress
        )
        names.append(HEAD)
    return describe_drafts(request, out, names, spec, checkpoint.provenance, facts, accepted)


def describe_data(data: TrainingData, settings: DataSettings) -> dict[str, Any]:
    """What provenance says about the data."""
    return {
        "sha256": data.sha256,
        "samples": len(data.training),
        "dropped_for_held_out": data.dropped,
        "answer_tokens": int(sum(len(s.answer) for s in data.training)),
        "seed": settings.seed,
        "own_prompts": len(settings.prompts),
    }


def write_table(
    request: DistillRequest, samples: Sequence[Sample], spec: ModelSpec, path: Path
) -> dict[str, Any]:
    """Count and write the n-gram table; returns what provenance says about it."""
    contexts = iterate_contexts(samples, ORDERS[-1])
    counted = ngram_table.count_table(contexts, ORDERS, request.min_count, request.min_share)
    table = ngram_table.shrink_table(counted, request.table_bytes)
    ngram_table.write_table(path, table, spec.token_ids, spec.id_map_sha256)
    return {
        "min_count": request.min_count,
        "min_share": request.min_share,
        "contexts": {str(order): len(part) for order, part in sorted(table.items())},
    }


def freeze(model: Any) -> Any:
    """The target on the training device, its weights frozen."""
    import torch

    model.requires_grad_(False)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def describe_drafts(
    request: DistillRequest,
    out: Path,
    names: Sequence[str],
    spec: ModelSpec,
    origin: dict[str, Any],
    facts: dict[str, Any],
    accepted: dict[str, list[float]],
) -> DistillResult:
    """Write provenance and card beside the drafts."""
    files = tuple(describe_file(out, name) for name in names)
    provenance = make_provenance(request.kind, spec, origin, facts, files, accepted)
    text = json.dumps(provenance, indent=1, sort_keys=True) + "\n"
    (out / "provenance.json").write_text(text, encoding="utf-8")
    (out / "README.md").write_text(make_card(provenance), encoding="utf-8")
    return DistillResult(out, files, accepted, provenance)
