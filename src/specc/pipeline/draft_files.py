"""The build's part of drafts: their files checked before anything is built, heads exported, tables packed."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from specc.contracts.bundle.tables import encode_draft_ids
from specc.contracts.draft_head import DraftHead, check_exit_norm, check_head, is_published, read_draft_head
from specc.contracts.draft_table import check_ngram_table
from specc.contracts.files import describe_file
from specc.contracts.model_spec import ModelSpec
from specc.contracts.plan import Plan
from specc.contracts.recipe import Recipe
from specc.pipeline.cache import Stage, code_hash, stage, tool_versions
from specc.pipeline.checkpoint import Described, build_extra
from specc.pipeline.clock import Steps
from specc.pipeline.engines import lend

TABLE, IDS = "draft_table.bin", "draft_ids.bin"


def open_head(recipe: Recipe, target: ModelSpec) -> DraftHead | None:
    """The recipe's trained head, if it has one; its n-gram table is checked too. Raises InputError for wrong files."""
    part, table = recipe.draft.engine_part, recipe.draft.table_part
    if table is not None and table.file:
        check_ngram_table(recipe.folder / table.file, target)
    if part is not None and part.norm:
        check_exit_norm(recipe.folder / part.norm, part.layers, target)
    if part is None or not part.head:
        return None
    path = recipe.folder / part.head
    head = read_draft_head(converted(path, target) if is_published(path) else path)
    check_head(head, part.kind, target, path)
    return head


def norm_of(plan: Plan) -> Path | None:
    """The file with the norm that was trained for an early exit."""
    part = plan.recipe.draft.engine_part
    return plan.recipe.folder / part.norm if part is not None and part.norm else None


def converted(path: Path, target: ModelSpec) -> Path:
    """A head of Medusa's or EAGLE's published layout as a head file of ours, made once. Raises InputError."""
    with build_extra():
        from specc.exporter.draft_heads.published import convert_published, find_weights
    weights = find_weights(path)
    files = [weights, weights.parent / "config.json"]
    inputs = {
        "files": [describe_file(file.parent, file.name).sha256 if file.is_file() else None for file in files],
        "target": asdict(target),
        "code": code_hash("specc.exporter"),
    }

    def make(folder: Path) -> dict[str, Any]:
        convert_published(weights, target, folder / "head.safetensors")
        return {}

    return stage("published-head", inputs, make).folder / "head.safetensors"


def head_path(plan: Plan) -> Path:
    """Where the head of a plan that has one lies."""
    assert plan.head is not None
    return Path(plan.head.file)


def head_stage(plan: Plan, target: Described, steps: Steps, built: Stage) -> Stage:
    """The head as draft.onnx; `built` is the target's stage, whose weight file it may read too."""
    assert plan.draft is not None and plan.head is not None
    inputs = {
        "engine": asdict(plan.draft),
        "head": plan.head.sha256,
        "shared": built.key if plan.draft.shares else None,
        "code": code_hash("specc.exporter"),
        "tools": tool_versions(),
    }
    return stage("head", inputs, partial(write_head, plan, target, steps, built))


def write_head(plan: Plan, target: Described, steps: Steps, built: Stage, folder: Path) -> dict[str, Any]:
    """Export into `folder`."""
    assert plan.draft is not None
    with build_extra():
        from specc.exporter.draft_heads.export import export_draft_head

        lent = lend(built, folder) if plan.draft.shares else []
        exported = export_draft_head(head_path(plan), plan.draft, target.open(), folder, steps)
        for path in lent:
            path.unlink()
    errors = {name: float(error) for name, error in exported.stage_errors.items()}
    return {
        "nodes": exported.node_count,
        "stage_errors": errors,
        "quality": {},
        "notes": list(exported.notes),
    }


def file_stages(plan: Plan) -> list[Stage]:
    """The map of a reduced vocabulary and the n-gram table, as files of the bundle."""
    stages, table = [], plan.recipe.draft.table_part
    if plan.head is not None and plan.head.ids is not None:
        content = encode_draft_ids(plan.head.ids)
        stages.append(stage("draft-ids", {"head": plan.head.sha256}, partial(write_file, IDS, content)))
    if table is not None and table.file:
        path = plan.recipe.folder / table.file
        inputs = {"sha256": describe_file(path.parent, path.name).sha256}
        stages.append(
            stage("draft-table", inputs, lambda folder: write_file(TABLE, path.read_bytes(), folder))
        )
    return stages


def write_file(name: str, content: bytes, folder: Path) -> dict[str, Any]:
    """One file of a stage."""
    (folder / name).write_bytes(content)
    return {"bytes": len(content)}


def origin(plan: Plan) -> dict[str, Any] | None:
    """Where a trained head comes from, for the manifest."""
    if plan.head is None:
        return None
    part, head = plan.recipe.draft.engine_part, plan.head
    name = Path(part.head).name if part is not None and part.head else ""
    origin = {"head": name, "kind": head.kind, "sha256": head.sha256}
    return origin | (
        {"layout": head.published, "weights_sha256": None, "note": head.note} if head.published else {}
    )
