"""`specc diff`: a quantization regression check between two bundles, or a bundle and its checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from specc.cli.options import COUNT, FOLDER, Number, as_json, print_json, with_threads


@click.command("diff")
@click.argument("a")
@click.argument("b")
@click.option("--text", type=FOLDER, help="A text in UTF-8; default: held-out text that comes along.")
@click.option("--tokens", type=COUNT, default=512, help="Read so many tokens of it. Default 512.")
@click.option("--kl-max", type=Number(0), help="Largest mean KL(A || B), in nats a token.")
@click.option("--tv-max", type=Number(0, 1), help="Largest mean total variation.")
@click.option(
    "--top1-min", type=Number(0, 1), help="Least share of places with the same most probable token."
)
@click.option("--perplexity-max", type=Number(0), help="Largest perplexity of B over A's.")
@click.option("--same-law", is_flag=True, help="Every row must be the same, bit for bit.")
@with_threads
@as_json
def diff_verb(
    a: str,
    b: str,
    text: Path | None,
    tokens: int,
    kl_max: float | None,
    tv_max: float | None,
    top1_min: float | None,
    perplexity_max: float | None,
    same_law: bool,
    threads: int,
    as_json: bool,
) -> int:
    """Compare B with A (bundles; or one of them a Hugging Face folder or a GGUF file);
    exit 1 beyond a limit.
    """
    from specc.cli import tables
    from specc.cli.progress_bars import StageBars
    from specc.diff import Limits, diff
    from specc.report.values import replace_non_finite

    limits = Limits(kl_max, tv_max, top1_min, perplexity_max, same_law)
    with StageBars() as bars:
        report = diff(a, b, limits, text, tokens, threads, bars.report)
    print_json(replace_non_finite(report)) if as_json else tables.print_diff(report)
    return 0 if report["verdict"] == "passed" else 1
