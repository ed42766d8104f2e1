"""`specc distill`: train a draft for a recipe's target on the target's own answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from specc.calib.prompts import CLASSES
from specc.cli.options import FOLDER, SEED, Number, as_json, print_json, recipe_path
from specc.contracts.draft_kinds import TRAININGS
from specc.errors import InputError

KINDS = tuple(TRAININGS)
ONLY_FOR = {
    option: tuple(name for name, training in TRAININGS.items() if option in training.options)
    for option in ("ids", "layers", "epochs")
}
"""Options that other kinds have no use for."""


@click.command("distill")
@click.argument("recipe")
@click.option("--out", "folder", type=FOLDER, help="Folder to write; default NAME-draft.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="feature",
    help="Draft head or draft model, or the table alone.",
)
@click.option("--data", type=FOLDER, help="Folder of the answers, made once; default: in the cache.")
@click.option("--prompts", type=FOLDER, help="Own prompts, one a line, instead of ours.")
@click.option(
    "--tokens", type=Number(100, 10**9, whole=True), default=240_000, help="Answer tokens to train on."
)
@click.option(
    "--epochs", type=Number(1, 1000, whole=True), default=5, help="Times that all of them are seen."
)
@click.option("--leave-out", type=click.Choice(CLASSES), help="Train on no prompt of this class.")
@click.option("--ids", type=Number(2, 10**7, whole=True), default=2048, help="Size of the draft vocabulary.")
@click.option("--layers", type=Number(1, 1000, whole=True), help="Of a small model, or before an early exit.")
@click.option("--seed", type=SEED, default=2026)
@click.option(
    "--table/--no-table", default=True, help="Also write the n-gram table; it can reveal text of the data."
)
@click.option(
    "--min-count", type=Number(1, 65535, whole=True), default=2, help="Least occurrences in the table."
)
@as_json
def distill_verb(
    recipe: str,
    folder: Path | None,
    kind: str,
    layers: int | None,
    table: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a draft for the target of RECIPE on the target's own answers. Run again, it goes on where it
    stopped.
    """
    from dataclasses import asdict

    from specc.distill.job import distill
    from specc.distill.request import DistillRequest

    refuse_unused(kind, table)
    path, with_table = recipe_path(recipe), table or kind == "table"
    request = DistillRequest(path, kind=kind, out=folder, table=with_table, layers=layers or 0, **settings)
    result = distill(request, ProgressLine())
    if as_json:
        files = [asdict(file) for file in result.files]
        print_json({"folder": str(result.folder), "files": files, "accepted": result.accepted})
        return
    for file in result.files:
        click.echo(f"{result.folder / file.path}  {file.bytes / 1e6:.1f} MB")
    for name, values in result.accepted.items():
        click.echo(f"accepted, {name:<10} " + " ".join(f"{value:.2f}" for value in values))


def refuse_unused(kind: str, table: bool) -> None:
    """Raise InputError for an option that was given and would change nothing."""
    context = click.get_current_context()
    given = [
        name
        for name in ("ids", "layers", "epochs", "min_count")
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    for name in given:
        if kind not in ONLY_FOR.get(name, KINDS):
            raise InputError(
                f"--{name} means nothing for --kind {kind}; it is for {', '.join(ONLY_FOR[name])}"
            )
        if name == "min_count" and not table and kind != "table":
            raise InputError("--min-count means nothing with --no-table; leave one of them out")


class ProgressLine:
    """One line of progress on standard error, with the time left at the speed since the step began."""

    def __init__(self) -> None:
        self._step, self._first, self._start = "", 0.0, 0.0

    def __call__(self, step: str, done: float) -> None:
        """Print the line; the first call of a step says where it begins."""
        if step != self._step:
            self._step, self._first, self._start = step, done, time.monotonic()
        gained = done - self._first
        left = (1 - done) * (time.monotonic() - self._start) / gained if gained > 0 else 0.0
        click.echo(f"\r{step}: {done:.1%}, {left / 60:.1f} min left   ", err=True, nl=done >= 1)
