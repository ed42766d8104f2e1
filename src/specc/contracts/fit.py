"""What to change where a plan does not fit its device: a shorter context, or fewer bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from specc.contracts.model_spec import ModelSpec
from specc.contracts.plan import Plan, make_plan
from specc.contracts.recipe import Recipe
from specc.contracts.scheme import Scheme, choose_lm_head
from specc.errors import RecipeError

LEAST_CONTEXT = 256
BY_BITS = ("fp32", "bf16", "fp16", "w8", "w4")
"""Schemes that a smaller device may take, most bits first."""
Change = tuple[int | None, str | None]
"""Another context, another scheme; None: as it is."""


def describe_fit(plan: Plan, draft: ModelSpec | None) -> str:
    """ "fits 7620 MB", or "does not fit 7620 MB, would fit with context 2048 or w4"."""
    room = f"{plan.hardware.budget_mb} MB"
    if plan.fits:
        return f"fits {room}"
    found = find_changes(plan, draft)
    advice = "and neither a shorter context nor w4 helps"
    if found:
        advice = f"would fit with {' or '.join(map(describe_change, found))}"
    return f"does not fit {room}, {advice}"


def find_changes(plan: Plan, draft: ModelSpec | None) -> list[Change]:
    """The first context and the first scheme that fit; where neither is enough, the first pair of both."""
    contexts, schemes = list(list_contexts(plan.recipe)), list_schemes(plan.recipe)
    single = (
        find_first(plan, draft, ((context, None) for context in contexts)),
        find_first(plan, draft, ((None, scheme) for scheme in schemes)),
    )
    found = [change for change in single if change is not None]
    if not found:
        pair = find_first(plan, draft, ((context, scheme) for scheme in schemes for context in contexts))
        found = [pair] if pair is not None else []
    return found


def list_contexts(recipe: Recipe) -> Iterator[int]:
    """Halves of the recipe's context, the longest first."""
    context = recipe.context // 2
    while context >= LEAST_CONTEXT:
        yield context
        context //= 2


def list_schemes(recipe: Recipe) -> tuple[str, ...]:
    """Schemes of fewer bits than the recipe's, most bits first; only w4 beside one that is not in the
    list.
    """
    layers = recipe.scheme.layers
    at = BY_BITS.index(layers) if layers in BY_BITS else len(BY_BITS) - 2
    return BY_BITS[at + 1 :]


def find_first(plan: Plan, draft: ModelSpec | None, changes: Iterable[Change]) -> Change | None:
    """The first change whose plan fits, None where none does."""
    return next((change for change in changes if is_fitting(plan, draft, change)), None)


def is_fitting(plan: Plan, draft: ModelSpec | None, change: Change) -> bool:
    """Whether the changed plan can be made and fits."""
    context, layers = change
    recipe = replace(plan.recipe, context=context or plan.recipe.context)
    if layers is not None:
        recipe = replace(recipe, scheme=Scheme(layers, choose_lm_head(layers), recipe.scheme.block))
    try:
        return make_plan(recipe, plan.hardware, plan.target.spec, draft).fits
    except RecipeError:
        return False


def describe_change(change: Change) -> str:
    """ "context 1024 and w4"."""
    context, layers = change
    words = [] if context is None else [f"context {context}"]
    return " and ".join(words + ([] if layers is None else [layers]))
