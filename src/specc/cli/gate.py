"""`specc gate`: certify a bundle on this device."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import FOLDER, SEED, THREAD_COUNTS, TRIALS, as_json, print_json, with_certificates


@click.command("gate")
@click.argument("bundle", type=FOLDER)
@click.option("--trials", type=TRIALS, help="Rounds for each law test.")
@click.option("--seed", type=SEED, default=0, help="Seed of all draws of the judges.")
@click.option(
    "--report", "reports", type=FOLDER, help="Where the report goes; default: beside the certificate."
)
@click.option(
    "--replay", type=FOLDER, help="Judge this record of `specc run --record` again, and nothing else."
)
@click.option("--lint-only", is_flag=True, help="Lint an ONNX file (or a bundle's graph) and run nothing.")
@click.option(
    "--engine", type=click.Choice(["auto", "ort", "tensorrt"]), default="auto", help="For --lint-only."
)
@click.option("--threads", type=THREAD_COUNTS, default="0", help="One count or several: 1,2. 0: as planned.")
@with_certificates
@as_json
def gate_verb(
    bundle: Path,
    trials: int | None,
    seed: int,
    reports: Path | None,
    replay: Path | None,
    lint_only: bool,
    engine: str,
    threads: tuple[int, ...],
    certificates: Path | None,
    as_json: bool,
) -> int:
    """Certify BUNDLE on this device: does verification, a call of several rows, give each row the bits of
    plain decoding, and does it pay? Exit 1 where a judge says no.
    """
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars
    from specc.gate import gate_bundle

    if lint_only:
        return lint_graph(bundle, engine, as_json)
    if replay is not None:
        return judge_record(bundle, replay, threads[0], certificates, as_json)
    with StageBars() as bars:
        report = gate_bundle(
            bundle,
            trials=trials,
            seed=seed,
            threads=threads,
            certificates=certificates,
            report=reports,
            progress=bars.report,
        )
    print_json(report) if as_json else tables.print_gate(report)
    return 0 if report["verdict"] == "passed" else 1


def lint_graph(path: Path, engine: str, as_json: bool) -> int:
    """Lint a graph: exit 1 with findings."""
    from specc.cli import tables
    from specc.gate.lint import lint_report

    report = lint_report(path, engine)
    print_json(report) if as_json else tables.print_lint(report)
    return 0 if report["verdict"] == "passed" else 1


def judge_record(bundle: Path, record: Path, threads: int, certificates: Path | None, as_json: bool) -> int:
    """Judge a record again: exit 1 with the first difference, 2 for a record that is cut off."""
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars
    from specc.gate.bundle import replay_record

    with StageBars() as bars:
        report = replay_record(bundle, record, threads, certificates, bars.report)
    print_json(report) if as_json else tables.print_replay(report)
    return {"passed": 0, "failed": 1}.get(report["verdict"], 2)
