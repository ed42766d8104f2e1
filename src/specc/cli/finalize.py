"""`specc finalize`: on the device, turn a bundle's graphs into engines, then gate."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import FOLDER, as_json, print_json


@click.command("finalize")
@click.argument("bundle", type=FOLDER)
@click.option("--no-gate", is_flag=True, help="Build the engines only.")
@click.option(
    "--library", type=click.Choice(["tensorrt", "tensorrt-rtx"]), help="Another builder than the target's."
)
@click.option(
    "--sm", type=click.IntRange(50, 200), help="Build for this compute capability, without looking for a GPU."
)
@as_json
def finalize_verb(bundle: Path, no_gate: bool, library: str | None, sm: int | None, as_json: bool) -> int:
    """Build the engines of BUNDLE for the GPU that is here, then certify it."""
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars
    from specc.gate import gate_bundle
    from specc.pipeline.finalize import finalize

    with StageBars() as bars:
        done = finalize(bundle, library, sm, bars)
        report = None if no_gate else gate_bundle(bundle, progress=bars.report)
    if as_json:
        engines, digest = done.engines, done.bundle.digest
        print_json({"bundle": str(bundle), "digest": digest, "engines": engines, "gate": report})
    else:
        tables.print_engines(done.engines)
        if report is not None:
            tables.print_gate(report)
    return 0 if report is None or report["verdict"] == "passed" else 1
