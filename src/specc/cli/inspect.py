"""`specc inspect`: what is inside, and why speculation is on or off."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import FOLDER, as_json, print_json, with_certificates, with_threads


@click.command("inspect")
@click.argument("bundle", type=FOLDER)
@with_threads
@with_certificates
@as_json
def inspect_verb(bundle: Path, threads: int, certificates: Path | None, as_json: bool) -> None:
    """Show what is inside BUNDLE, and why speculation is on or off here."""
    from specc.cli import tables
    from specc.inspection.bundle import inspect_bundle

    contents = inspect_bundle(bundle, threads, certificates)
    print_json(contents) if as_json else tables.print_bundle(contents)
