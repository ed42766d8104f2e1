"""`specc finalize`: on the device, turn a bundle's graphs into engines, then gate."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import FOLDER, as_json, out


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
    from specc.cli import tables as show
    from specc.inspection.summary import gate
    from specc.pipeline.finalize import finalize

    with show.StageBars() as bars:
        done = finalize(bundle, library, sm, bars)
        report = None if no_gate else gate(bundle, None, 0, 0, None, bars.report)
    if as_json:
        out({"bundle": str(bundle), "digest": done.bundle.digest, "engines": done.engines, "gate": report})
    else:
        rows = [
            (
                n,
                f["library"],
                f["tensorrt"],
                f"SM {f['sm']}",
                f"{f['seconds']} s",
                show.types_text(f["types"]),
            )
            for n, f in done.engines.items()
        ]
        show.table("finalize", ("engine", "library", "version", "device", "built in", "products"), rows)
        if report is not None:
            show.gated(report)
    return 0 if report is None or report["verdict"] == "passed" else 1
