"""Stage 1: recipe, hardware and checkpoints become a plan, and the draft model's tokenizer is held against
the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specc import targets
from specc.atomic import io_errors
from specc.contracts.plan import make_plan
from specc.contracts.recipe import Recipe, Source, TokenNotFound
from specc.pipeline.cache import tool_versions
from specc.pipeline.checkpoint import CheckpointRecord, describe, require_build_extra
from specc.pipeline.choice import apply_known_choice
from specc.pipeline.clock import Clock
from specc.pipeline.draft_files import read_recipe_head
from specc.pipeline.identity import run_reading_stage
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash

TOKENIZER_CODE = ("specc.exporter.checkpoint.checkpoint", "specc.exporter.checkpoint.tokenizer")


def plan_build(recipe: Recipe, hardware: str | None, clock: Clock) -> Planned:
    """The plan of a build. Raises InputError for a draft model with another tokenizer."""
    with clock.stage("plan") as hit:
        planned = plan_recipe(recipe, hardware)
        if planned.draft is not None:
            compare_tokenizers(planned.target, planned.draft)
        hit(planned.target.cached)
    return planned


def plan_recipe(recipe: Recipe, hardware: str | None) -> Planned:
    """Join recipe, hardware and checkpoints; no weights are read where the cache has the
    checkpoint's spec.
    """
    device = targets.load(hardware or recipe.hardware)
    with io_errors(f"planning {recipe.name}"):
        target = describe_target(recipe)
        draft, part = None, recipe.draft.engine_part
        if part is not None and part.checkpoint:
            draft = describe(Source(part.checkpoint, part.revision), recipe.folder)
        head = read_recipe_head(recipe, target.spec)
    plan = make_plan(recipe, device, target.spec, draft.spec if draft else None, head)
    return apply_known_choice(Planned(plan, target, draft))


def describe_target(recipe: Recipe) -> CheckpointRecord:
    """The target's record. Raises RecipeError for a token of the recipe that the model does not have."""
    try:
        return describe(recipe.target, recipe.folder)
    except TokenNotFound as error:
        raise recipe.make_error(error.key, error.found, error.allowed) from None


def compare_tokenizers(target: CheckpointRecord, draft: CheckpointRecord) -> list[str]:
    """Notes on harmless differences. Raises InputError where an id means another string or text is read
    otherwise.
    """

    def compare(_: Path) -> dict[str, Any]:
        with require_build_extra():
            from specc.exporter.checkpoint import tokenizer

            notes = tokenizer.compare_tokenizers(target.open().tokens, draft.open().tokens)
            return {"notes": [str(note) for note in notes]}

    inputs = {"code": code_hash(*TOKENIZER_CODE), "tools": tool_versions()}
    entry = run_reading_stage("tokenizers", inputs, [target.identity, draft.identity], compare)
    return [str(note) for note in entry.facts["notes"]]
