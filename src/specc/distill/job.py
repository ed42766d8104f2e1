"""One distillation from recipe to files: answers, draft ids, table, head, card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.atomic import io_errors
from specc.calib import answers, ngram_table
from specc.calib.answers import Sample
from specc.contracts.files import File, describe_file
from specc.contracts.recipe import load_recipe
from specc.distill.card import card_of, provenance_of
from specc.distill.data import (
    CAPACITY,
    SLOTS,
    DataSettings,
    Tell,
    banned_by,
    contexts,
    data_folder,
    dialogue_of,
    frequent_ids,
    gather,
    measured,
    own_prompts,
)
from specc.errors import InputError
from specc.pipeline import cache
from specc.pipeline.checkpoint import describe, require_build_extra

if TYPE_CHECKING:
    import torch

    from specc.contracts.model_spec import ModelSpec
    from specc.distill.train import Settings
    from specc.exporter.checkpoint.checkpoint import Checkpoint

KINDS = ("feature", "medusa", "small", "early-exit", "table")
HEAD, TABLE = "head.safetensors", "draft_table.bin"
ORDERS = (1, 2, 3, 4, 5)
"""Lengths of the table's contexts, in ids."""


@dataclass(frozen=True)
class Asked:
    """What the user wants."""

    recipe: Path
    kind: str = "feature"
    out: Path | None = None
    data: Path | None = None
    prompts: Path | None = None
    tokens: int = DataSettings.tokens
    epochs: int = 5
    leave_out: str | None = None
    """A prompt class that nothing is trained on, to see what a draft does for what it never saw."""
    ids: int = 2048
    seed: int = 2026
    table: bool = True
    min_count: int = 2
    min_share: float = 0.5
    table_bytes: int = 6_000_000
    layers: int = 0
    """Of a small model (0: 2) or before an early exit (0: half of the target's)."""


@dataclass(frozen=True)
class Made:
    """What was written."""

    folder: Path
    files: tuple[File, ...]
    accepted: dict[str, list[float]]
    """Class -> greedy acceptance at depth 1.. on the tuning prompts; empty without a head."""
    provenance: dict[str, Any]


def distill(asked: Asked, tell: Tell = lambda *_: None) -> Made:
    """Train the drafts that were asked for. Raises InputError, EnvironmentFault; a killed run goes on where it was."""
    if asked.kind not in KINDS:
        raise InputError(f"the kind is {asked.kind!r}; allowed are {', '.join(KINDS)}")
    recipe = load_recipe(asked.recipe)
    described = describe(recipe.target, recipe.folder)
    out = asked.out or Path(f"{recipe.name}-draft")
    with io_errors(f"writing {out}"):
        out.mkdir(parents=True, exist_ok=True)
    with require_build_extra():
        return made(asked, described.open(), described.spec, out, tell)


def made(asked: Asked, checkpoint: Checkpoint, spec: ModelSpec, out: Path, tell: Tell) -> Made:
    """The work itself."""
    own = own_prompts(asked.prompts) if asked.prompts else ()
    settings = DataSettings(seed=asked.seed, tokens=asked.tokens, prompts=own)
    folder = asked.data or data_folder(cache.root(), spec.weights_sha256, settings)
    model = checkpoint.load()
    tuning, samples, dropped = prepared(model, checkpoint, folder, settings, asked.leave_out, tell)
    facts: dict[str, Any] = {"data": facts_of(samples, dropped, settings), "settings": {"ids": asked.ids}}
    if asked.leave_out:
        facts["data"]["left_out"] = asked.leave_out
    accepted: dict[str, list[float]] = {}
    names = []
    if asked.table:
        table = ngram_table.shrink(
            ngram_table.count_table(contexts(samples, ORDERS[-1]), ORDERS, asked.min_count, asked.min_share),
            asked.table_bytes,
        )
        ngram_table.write_table(out / TABLE, table, spec.token_ids, spec.id_map_sha256)
        facts["table"] = {"min_count": asked.min_count, "min_share": asked.min_share}
        facts["table"]["contexts"] = {str(order): len(part) for order, part in sorted(table.items())}
        names.append(TABLE)
    if asked.kind in ("small", "early-exit"):
        from specc.distill import models

        shape, frozen = shape_of(asked.kind, spec), load_again(model)
        made_of = models.trained(asked, frozen, checkpoint, samples, tuning, folder, out, shape, tell)
        facts["settings"], accepted, files = made_of
        names += files
    elif asked.kind != "table":
        facts["settings"], accepted = trained(asked, model, spec, samples, tuning, folder, out / HEAD, tell)
        names.append(HEAD)
    return written(asked, out, names, spec, checkpoint.provenance, facts, accepted)


def prepared(
    model: Any,
    checkpoint: Checkpoint,
    folder: Path,
    settings: DataSettings,
    leave_out: str | None,
    tell: Tell,
) -> tuple[list[Sample], list[Sample], int]:
    """(tuning samples, training samples with nothing held out among them, how many were dropped for that)."""
    import torch

    from specc.calib.batch import Batch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fast = model.to(device, torch.bfloat16)
    batch, dialogue = Batch(fast, SLOTS, CAPACITY, checkpoint.spec.eos), dialogue_of(checkpoint)
    paths = gather(batch, dialogue, folder, settings, tell)
    held_out = measured(batch, dialogue, folder, "held-out")
    tuning = measured(batch, dialogue, folder, "tuning")
    read = (s for path in paths for s in answers.read_shard(path, with_hidden=True))
    every = [s for s in read if len(s.ids) > 3 and s.kind != leave_out]
    kept = answers.without(every, banned_by(held_out))
    if not kept:
        what = "the class left out and what shares text with the held-out prompts"
        raise InputError(f"no training sample is left without {what}; give more prompts")
    model.to(torch.float32)
    return tuning, kept, len(every) - len(kept)


def facts_of(samples: Sequence[Sample], dropped: int, settings: DataSettings) -> dict[str, Any]:
    """What provenance says about the data."""
    return {
        "sha256": answers.data_sha256(samples),
        "samples": len(samples),
        "dropped_for_held_out": dropped,
        "answer_tokens": int(sum(len(s.answer) for s in samples)),
        "seed": settings.seed,
        "own_prompts": len(settings.prompts),
    }


def trained(
    asked: Asked,
    model: Any,
    spec: ModelSpec,
    samples: list[Sample],
    tuning: list[Sample],
    folder: Path,
    path: Path,
    tell: Tell,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Train one head, save it, measure it on the tuning prompts."""
    import torch

    from specc.distill.train import Settings, heard_by, train
    from specc.exporter.draft_heads.file import save_draft_head

    checkpoint = load_again(model)
    settings = Settings(seed=asked.seed, epochs=asked.epochs)
    ids = torch.tensor(frequent_ids(samples, min(asked.ids, spec.token_ids)))
    head = HeadJob.of(asked.kind, checkpoint, ids, settings)
    key = digest([asdict(settings), asked.kind, answers.data_sha256(samples), len(ids), spec.weights_sha256])
    train(head.parameters, head.loss, samples, settings, folder / f"{key[:16]}.pt", heard_by(tell))
    metadata = {
        **shape_of(asked.kind, spec),
        "seed": str(asked.seed),
        "data_sha256": answers.data_sha256(samples),
    }
    save_draft_head(path, asked.kind, head.tensors(), ids, metadata)
    return {**asdict(settings), "ids": len(ids)}, head.accepted(tuning)


def load_again(model: Any) -> Any:
    """The target as a frozen fp32 module on the training device."""
    import torch

    model.requires_grad_(False)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class HeadJob:
    """A head in training: what moves, what is minimised, what is saved."""

    kind: str
    head: Any
    parts: Any
    ids: torch.Tensor
    loss: Callable[[Any], Any]

    @classmethod
    def of(cls, kind: str, target: Any, ids: torch.Tensor, settings: Settings) -> HeadJob:
        """A fresh head of a kind, from the settings' seed."""
        import torch

        from specc.distill.losses import feature_loss, medusa_loss
        from specc.exporter.draft_heads.modules import MedusaHead, build_feature_head

        torch.manual_seed(settings.seed)
        if kind == "medusa":
            medusa = MedusaHead(target.get_output_embeddings().weight.detach()[ids], 4)
            return cls(kind, medusa, medusa.blocks, ids, lambda rows: medusa_loss(medusa, rows))
        feature = build_feature_head(target, ids)
        feature.parts.requires_grad_(True)
        return cls(
            kind, feature, feature.parts, ids, lambda rows: feature_loss(feature, rows, settings.depth)
        )

    @property
    def parameters(self) -> list[Any]:
        """Trained weights in a fixed order."""
        return list(self.parts.parameters())

    def tensors(self) -> dict[str, Any]:
        """What is saved."""
        return dict(self.parts.state_dict(prefix="blocks." if self.kind == "medusa" else ""))

    def accepted(self, tuning: Sequence[Sample], depth: int = 4) -> dict[str, list[float]]:
        """Class -> greedy acceptance at each depth, given acceptance before it; a medusa head is not measured here."""
        from specc.calib.batches import batch_of
        from specc.distill.losses import accepted_at, foretell

        if self.kind == "medusa":
            return {}
        out = {}
        for kind in sorted({s.kind for s in tuning}):
            pairs = [(0, 0)] * depth
            for s in (s for s in tuning if s.kind == kind and s.temperature == 0 and len(s.ids) > 3):
                rows = batch_of([s])
                found = accepted_at(foretell(self.head, rows, self.ids, depth), rows)
                pairs = [(a + c, b + d) for (a, b), (c, d) in zip(pairs, found, strict=True)]
            out[kind] = [round(right / tried, 4) if tried else 0.0 for right, tried in pairs]
        return out


def shape_of(kind: str, spec: ModelSpec) -> dict[str, str]:
    """Metadata by which a build knows whose head this is."""
    numbers = {"hidden": spec.hidden, "vocab": spec.token_ids}
    if kind == "feature":
        layer = {"heads": spec.heads, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim}
        numbers |= {"layers": 1, **layer, "intermediate": spec.intermediate}
    elif kind == "medusa":
        numbers["k"] = 4
    hashes = {"weights_sha256": spec.weights_sha256, "id_map_sha256": spec.id_map_sha256}
    return {**hashes, **{name: str(number) for name, number in numbers.items()}}


def written(
    asked: Asked,
    out: Path,
    names: Sequence[str],
    spec: ModelSpec,
    origin: dict[str, Any],
    facts: dict[str, Any],
    accepted: dict[str, list[float]],
) -> Made:
    """Provenance and card beside the weights."""
    files = tuple(describe_file(out, name) for name in names)
    provenance = provenance_of(asked.kind, spec, origin, facts, files, accepted)
    (out / "provenance.json").write_text(
        json.dumps(provenance, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    (out / "README.md").write_text(card_of(provenance), encoding="utf-8")
    return Made(out, files, accepted, provenance)


def digest(parts: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
