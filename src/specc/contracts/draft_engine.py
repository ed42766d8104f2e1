"""The engine of the drafter: where its weights are from, how it is called, what it shares with the target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specc.contracts.draft_head import DraftHead
from specc.contracts.draft_kinds import KINDS, Draft
from specc.contracts.engine_plan import EnginePlan, has_kernels, plan_engine
from specc.contracts.model_spec import ModelSpec
from specc.contracts.precision import check_scheme
from specc.contracts.recipe import Recipe
from specc.errors import InputError
from specc.targets import Hardware


def plan_draft_engine(
    recipe: Recipe,
    k: int,
    hardware: Hardware,
    target: EnginePlan,
    spec: ModelSpec | None,
    head: DraftHead | None,
) -> EnginePlan | None:
    """The draft's engine, None for drafters without one. `spec`: of a draft model's checkpoint; `head`: of a
    draft head.

    Raises RecipeError, InputError.
    """
    part = recipe.draft.engine_part
    if part is None:
        return None
    if KINDS[part.kind].weights == "target":
        return plan_early_exit(recipe, k, part, target)
    if head is not None:
        check_head_dialect(recipe, head, target.dialect)
        spec = describe_head(head, target.spec)
    if spec is None:
        raise InputError(f"{recipe.file}: a plan with a draft model needs the draft's checkpoint")
    check_draft_context(recipe, spec)
    scheme, dialect = part.scheme or recipe.scheme, target.dialect
    if hardware.gpu is None:
        dialect = "specc-cpu" if has_kernels(scheme) and recipe.dialect != "ort" else "ort"
    check_scheme(recipe, hardware, dialect, scheme, "draft.scheme")
    engine = plan_engine("draft", spec, scheme, spec.layers, recipe.context, k, dialect, None)
    return engine if head is None else plan_head_engine(engine, head, target, k)


def plan_early_exit(recipe: Recipe, k: int, part: Draft, target: EnginePlan) -> EnginePlan:
    """An engine of the target's first layers: its weights, its scheme, its dialect."""
    spec, most = target.spec, target.spec.layers
    layers = part.layers or max(1, most // 4)
    if layers >= most:
        allowed = f"allowed are 1 to {most - 1} (the target has {most})"
        raise recipe.make_error("draft.layers", f"draft.layers is {layers}", allowed)
    return plan_engine("draft", spec, recipe.scheme, layers, recipe.context, k, target.dialect, "target")


def describe_head(head: DraftHead, target: ModelSpec) -> ModelSpec:
    """A draft head as a model: the shape of its layers (none in a parallel head), a column for each id that
    it knows.
    """
    shape = {name: number for name, number in head.numbers.items() if name != "k"}
    sizes: dict[str, Any] = {"layers": 0, **shape}
    return replace(target, vocab=head.columns, tied=False, **sizes)


def check_head_dialect(recipe: Recipe, head: DraftHead, dialect: str) -> None:
    """Raise RecipeError where engines neither give nor read hidden states yet, which is TensorRT."""
    if dialect not in KINDS[head.kind].dialects:
        allowed = "there lookup, a table, early-exit or a draft model may draft, or use dialect ort"
        raise recipe.make_error("draft", "a trained head drafts on TensorRT", allowed)


def check_draft_context(recipe: Recipe, draft: ModelSpec) -> None:
    """Raise RecipeError for a context that the draft model does not hold: it sees the same positions as the
    target.
    """
    if recipe.context > draft.max_context:
        allowed = f"the draft model takes at most {draft.max_context}"
        raise recipe.make_error("context", f"context is {recipe.context}", allowed)


def plan_head_engine(engine: EnginePlan, head: DraftHead, target: EnginePlan, k: int) -> EnginePlan:
    """A feature head is called like its target and reads the target's embedding where both are stored alike.

    A parallel head has no KV cache and one width, a row for each head up to K.
    """
    if KINDS[head.kind].is_parallel:
        rows = min(head.numbers["k"], k)
        return replace(engine, widths=(rows,), chunk=rows, capacity=rows)
    is_alike = (engine.dialect, engine.scheme.head) == (target.dialect, target.scheme.head)
    return replace(engine, hidden=True, shares="target" if is_alike else None)
