"""The files that a recipe's draft brings along: checked while planning, converted, and packed into the
bundle.
"""

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
from specc.pipeline.cache import CacheEntry, run_stage
from specc.pipeline.checkpoint import require_build_extra
from specc.pipeline.source_code import code_hash

TABLE, IDS = "draft_table.bin", "draft_ids.bin"
PUBLISHED_CODE = ("specc.exporter.draft_heads.published",)


def read_recipe_head(recipe: Recipe, target: ModelSpec) -> DraftHead | None:
    """What the recipe's trained draft head says of itself; None without one.

    An n-gram table and an early exit's norm are checked too. Raises InputError for files that do not fit the
    target.
    """
    part, table = recipe.draft.engine_part, recipe.draft.table_part
    if table is not None and table.file:
        check_ngram_table(recipe.folder / table.file, target)
    if part is not None and part.norm:
        check_exit_norm(recipe.folder / part.norm, part.layers, target)
    if part is None or not part.head:
        return None
    path = recipe.folder / part.head
    head = read_draft_head(convert_once(path, target) if is_published(path) else path)
    check_head(head, part.kind, target, path)
    return head


def convert_once(path: Path, target: ModelSpec) -> Path:
    """A draft head of Medusa's or EAGLE's published layout as a file of our layout, in the cache. Raises
    InputError.
    """
    with require_build_extra():
        from specc.exporter.draft_heads.published import convert_published, find_weights
    weights = find_weights(path)
    files = [weights, weights.parent / "config.json"]
    inputs = {
        "files": [describe_file(file.parent, file.name).sha256 if file.is_file() else None for file in files],
        "target": asdict(target),
        "code": code_hash(*PUBLISHED_CODE),
    }

    def run(folder: Path) -> dict[str, Any]:
        convert_published(weights, target, folder / "head.safetensors")
        return {}

    return run_stage("published-head", inputs, run).folder / "head.safetensors"


def exit_norm_file(plan: Plan) -> Path | None:
    """The file with the norm that was trained for an early exit; None without one."""
    part = plan.recipe.draft.engine_part
    return plan.recipe.folder / part.norm if part is not None and part.norm else None


def head_file(plan: Plan) -> Path:
    """The file of the trained draft head, of a plan that has one."""
    assert plan.head is not None
    return Path(plan.head.file)


def write_draft_files(plan: Plan) -> list[CacheEntry]:
    """The map of a reduced vocabulary and the n-gram table, as files of the bundle; empty where there are
    none.
    """
    entries, table = [], plan.recipe.draft.table_part
    if plan.head is not None and plan.head.ids is not None:
        content = encode_draft_ids(plan.head.ids)
        entries.append(run_stage("draft-ids", {"head": plan.head.sha256}, partial(write_file, IDS, content)))
    if table is not None and table.file:
        path = plan.recipe.folder / table.file
        inputs = {"sha256": describe_file(path.parent, path.name).sha256}
        entries.append(
            run_stage("draft-table", inputs, lambda folder: write_file(TABLE, path.read_bytes(), folder))
        )
    return entries


def write_file(name: str, content: bytes, folder: Path) -> dict[str, Any]:
    """Write one file of an entry; its facts."""
    (folder / name).write_bytes(content)
    return {"bytes": len(content)}


def head_origin(plan: Plan) -> dict[str, Any] | None:
    """Where a trained draft head comes from, for the manifest; None without one."""
    if plan.head is None:
        return None
    part, head = plan.recipe.draft.engine_part, plan.head
    name = Path(part.head).name if part is not None and part.head else ""
    origin = {"head": name, "kind": head.kind, "sha256": head.sha256}
    return origin | (
        {"layout": head.published, "weights_sha256": None, "note": head.note} if head.published else {}
    )
