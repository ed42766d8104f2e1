"""`specc run`: generate, streaming."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from specc.cli.options import FOLDER, as_json, print_json, sampling_options, with_certificates, with_threads


@click.command("run")
@click.argument("bundle", type=FOLDER)
@click.option("-p", "--prompt", required=True, help="The prompt; `-` reads standard input.")
@click.option("--raw", is_flag=True, help="Take the prompt as it stands, without the chat template.")
@click.option(
    "--special-tokens",
    is_flag=True,
    help="Special tokens in the prompt, such as <|im_end|>, are tokens; without this they are text.",
)
@click.option("--spec", type=click.Choice(["on", "off"]), default="on", help="Speculative decoding.")
@click.option(
    "--rule", type=click.Choice(["rejection", "coupled"]), help="Acceptance rule; default rejection."
)
@sampling_options
@click.option("--stop", multiple=True, help="A string that ends the text; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="End tokens are ordinary tokens.")
@click.option("--stats", is_flag=True, help="Print statistics on standard error.")
@click.option("--trust", is_flag=True, help="Check sizes of the bundle's files, not their hashes.")
@click.option(
    "--record", type=FOLDER, help="Keep every decision in this file; `specc gate --replay` judges it again."
)
@with_threads
@with_certificates
@as_json
def run_verb(
    bundle: Path,
    prompt: str,
    raw: bool,
    special_tokens: bool,
    spec: str,
    stats: bool,
    trust: bool,
    record: Path | None,
    threads: int,
    certificates: Path | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Generate from BUNDLE, streaming."""
    from specc.generate.run import GenerateRequest, format_stats, generate

    options = {name: value for name, value in flags.items() if value is not None}
    options["speculation"] = spec == "on"
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if prompt == "-" else prompt
    request = GenerateRequest(text, raw, threads, certificates, trust, options, record, special_tokens)
    result = generate(bundle, request, ignore_text if as_json else print_piece, print_note)
    if as_json:
        print_json(result)
    else:
        click.echo()
    if stats:
        click.echo(format_stats(result), err=True)
    return 130 if result["finish_reason"] == "cancelled" else 0


def print_piece(text: str) -> None:
    """Show a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_note(note: str) -> None:
    """A note on the prompt, on standard error."""
    click.echo(f"note: {note}", err=True)


def ignore_text(_: str) -> None:
    """Show nothing."""
