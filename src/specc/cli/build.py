"""`specc build`: the main job."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import FOLDER, as_json, print_json, recipe_path, with_target


@click.command("build")
@click.argument("recipe")
@with_target
@click.option(
    "-o", "--out", "place", type=FOLDER, help="The bundle's folder; default: the recipe's name, here."
)
@click.option(
    "--sensitivity", is_flag=True, help="Measure what quantizing each group of layers alone costs (minutes)."
)
@as_json
def build_verb(
    recipe: str, hardware: str | None, place: Path | None, sensitivity: bool, as_json: bool
) -> None:
    """Build the bundle of RECIPE (a file, or the name of one that comes along): the target model with its
    draft, quantized by the recipe's calibration, each stage checked.
    """
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars
    from specc.pipeline.build import build

    with StageBars() as bars:
        built = build(recipe_path(recipe), hardware, place, bars, sensitivity)
    print_json(built.as_dict()) if as_json else tables.print_build(built)
