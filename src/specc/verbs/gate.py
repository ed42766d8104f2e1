"""`specc gate`: certify a bundle on this device."""

from __future__ import annotations

from pathlib import Path

import click

from specc.verbs.options import FOLDER, SEED, TRIALS, as_json, out, with_certificates, with_threads


@click.command("gate")
@click.argument("bundle", type=FOLDER)
@click.option("--trials", type=TRIALS, help="Rounds for each law test.")
@click.option("--seed", type=SEED, default=0, help="Seed of all draws of the judges.")
@with_threads
@with_certificates
@as_json
def gate_verb(
    bundle: Path, trials: int | None, seed: int, threads: int, certificates: Path | None, as_json: bool
) -> int:
    """Certify BUNDLE on this device; exit 1 where a judge says no."""
    from specc import show
    from specc.inspection import gate

    with show.StageBars() as bars:
        report = gate(bundle, trials, seed, threads, certificates, bars.count)
    out(report) if as_json else show.gated(report)
    return 0 if report["verdict"] == "passed" else 1
