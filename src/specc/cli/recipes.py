"""`specc recipes`: the recipes that come along."""

from __future__ import annotations

import click

from specc.cli.options import as_json, out, shipped_recipes


@click.command("recipes")
@as_json
def recipes_verb(as_json: bool) -> None:
    """List the recipes that come along; `specc build NAME` takes their names."""
    from specc.cli import tables as show
    from specc.contracts.recipe import load_recipe

    found = [load_recipe(path) for path in shipped_recipes()]
    if as_json:
        out(
            [
                {"name": r.name, "file": r.file, "target": r.target.checkpoint, "draft": r.draft.kind}
                for r in found
            ]
        )
        return
    rows = [(r.name, r.target.checkpoint, r.draft.kind, f"{r.scheme.layers}/{r.scheme.head}") for r in found]
    show.table("recipes", ("name", "target", "draft", "scheme"), rows)
