"""What to change where a plan does not fit its device: a shorter context, or fewer bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specc.contracts.plan import ModelSpec, Plan, make_plan
from specc.contracts.recipe import Recipe, Scheme, head_for
from specc.errors import RecipeError

LEAST_CONTEXT = 256
BY_BITS = ("fp32", "bf16", "fp16", "w8", "w4")
"""Schemes that a smaller device may take, most bits first."""


def verdict(plan: Plan, draft: ModelSpec | None) -> str:
    """ "fits 7620 MB", or "does not fit, would fit with context 2048 or w4"."""
    room = f"{plan.hardware.budget_mb} MB"
    if plan.fits:
        return f"fits {room}"
    found = smaller(plan, draft)
    advice = f"would fit with {' or '.join(found)}" if found else "and neither a shorter context nor w4 helps"
    return f"does not fit {room}, {advice}"


def smaller(plan: Plan, draft: ModelSpec | None) -> list[str]:
    """The first context, the first scheme, and where neither is enough the first pair that fits."""
    single = [
        next(filter(None, (tried(plan, draft, *one) for one in way)), None) for way in ways(plan.recipe)
    ]
    found = [text for text in single if text is not None]
    if found:
        return found
    contexts, schemes = (list(way) for way in ways(plan.recipe))
    pairs = ((context, scheme) for (_, scheme) in schemes for (context, _) in contexts)
    return [
        text for text in (next(filter(None, (tried(plan, draft, *pair) for pair in pairs)), None),) if text
    ]


def ways(
    recipe: Recipe,
) -> tuple[Iterator[tuple[int | None, str | None]], Iterator[tuple[int | None, str | None]]]:
    """Halved contexts, and schemes of fewer bits."""
    contexts: list[int] = []
    while (contexts[-1] if contexts else recipe.context) // 2 >= LEAST_CONTEXT:
        contexts.append((contexts[-1] if contexts else recipe.context) // 2)
    now = BY_BITS.index(recipe.scheme.layers) if recipe.scheme.layers in BY_BITS else len(BY_BITS) - 2
    return ((context, None) for context in contexts), ((None, scheme) for scheme in BY_BITS[now + 1 :])


def tried(plan: Plan, draft: ModelSpec | None, context: int | None, scheme: str | None) -> str | None:
    """What was changed, where the changed plan fits."""
    recipe = plan.recipe
    other = replace(
        recipe,
        context=context or recipe.context,
        scheme=recipe.scheme if scheme is None else Scheme(scheme, head_for(scheme), recipe.scheme.block),
    )
    try:
        fits = make_plan(other, plan.hardware, plan.target.spec, draft).fits
    except RecipeError:
        return None
    words = [f"context {context}"] * (context is not None) + [str(scheme)] * (scheme is not None)
    return " and ".join(words) if fits else None
