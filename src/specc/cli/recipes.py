"""`specc recipes`: the recipes that come along."""

from __future__ import annotations

import click

from specc.cli.options import as_json, print_json, shipped_recipes


@click.command("recipes")
@as_json
def recipes_verb(as_json: bool) -> None:
    """List the recipes that come along; `specc build NAME` takes their names."""
    from specc.cli import tables
    from specc.contracts.recipe import load_recipe

    recipes = [load_recipe(path) for path in shipped_recipes()]
    if as_json:
        print_json(
            [
                {"name": r.name, "file": r.file, "target": r.target.checkpoint, "draft": r.draft.kind}
                for r in recipes
            ]
        )
        return
    rows = [
        (r.name, r.target.checkpoint, r.draft.kind, f"{r.scheme.layers}/{r.scheme.head}") for r in recipes
    ]
    tables.print_table("recipes", ("name", "target", "draft", "scheme"), rows)
