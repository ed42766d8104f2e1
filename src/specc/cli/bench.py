"""`specc bench`: speculative against plain decoding, by prompt class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specc.cli.options import FOLDER, SEED, Number, as_json, print_json, with_certificates, with_threads

PLAIN = "plain"


@click.command("bench")
@click.argument("bundle", type=FOLDER)
@click.option("--against", default=PLAIN, help="`plain`, or also a report saved with --json.")
@click.option("--prompts", type=FOLDER, help="Your own: one a line, or YAML that maps class names to lists.")
@click.option(
    "--split",
    type=click.Choice(["held-out", "tuning"]),
    default="held-out",
    help="Which of the prompts that come along.",
)
@click.option(
    "--temperature", "temperatures", type=Number(0), multiple=True, default=(0.0, 0.8), show_default=True
)
@click.option(
    "--rule",
    "rules",
    type=click.Choice(["rejection", "coupled"]),
    multiple=True,
    default=("rejection",),
    help="May be given twice.",
    show_default=True,
)
@click.option(
    "--k", type=Number(1, 16, whole=True), help="Most tokens proposed in a round; default: as certified."
)
@click.option("--max-new-tokens", type=Number(2, 2**20, whole=True), default=96, show_default=True)
@click.option("--repeats", type=Number(1, 1000, whole=True), default=3, show_default=True)
@click.option("--seed", type=SEED, default=0, help="Seed of the draws.")
@click.option("--ignore-eos", is_flag=True, help="End tokens are ordinary tokens.")
@click.option("--quick", is_flag=True, help="Two prompts a class, once, at most 48 new tokens.")
@click.option("--html", type=FOLDER, help="Also write the report with plots into this file.")
@click.option("--trust", is_flag=True, help="Check sizes of the bundle's files, not their hashes.")
@with_threads
@with_certificates
@as_json
def bench_verb(
    bundle: Path,
    against: str,
    k: int | None,
    ignore_eos: bool,
    html: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure BUNDLE's speculative against its plain decoding, with the acceptance rate by prompt class; or
    compare BUNDLE, a saved report, with another.
    """
    from specc.bench import page, run
    from specc.bench.tables import tabulate
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars

    options = {
        name: value for name, value in (("k", k), ("ignore_eos", ignore_eos or None)) if value is not None
    }
    saved = None if against == PLAIN else Path(against)
    request = run.BenchRequest(bundle, saved, options=options, **settings)
    with StageBars() as bars:
        report = run.bench(request, bars.report)
    if html is not None:
        page.write_page(report, html)
    if as_json:
        print_json(report)
        return
    for table in tabulate(report):
        tables.print_table(table.title, table.columns, table.rows)
