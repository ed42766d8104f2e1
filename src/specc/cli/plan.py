"""`specc plan`: sizes, memory and predicted speed; no weights are read."""

from __future__ import annotations

import click

from specc.cli.options import as_json, print_json, recipe_path, with_target


@click.command("plan")
@click.argument("recipe")
@with_target
@as_json
def plan_verb(recipe: str, hardware: str | None, as_json: bool) -> None:
    """Show sizes, KV cache, memory and predicted speed of RECIPE, without building it."""
    from specc.cli import tables
    from specc.contracts.fit import describe_fit
    from specc.contracts.plan import as_dict
    from specc.contracts.recipe import load_recipe
    from specc.pipeline.plan import plan_recipe

    planned = plan_recipe(load_recipe(recipe_path(recipe)), hardware)
    plan = planned.plan
    fit = describe_fit(plan, planned.draft.spec if planned.draft else None)
    print_json({**as_dict(plan), "verdict": fit}) if as_json else tables.print_plan(plan, fit)
