"""The command line: parses, calls one function, prints. Exit 0 ok, 1 a judge said no, 2 usage, 3 environment."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from specc import __version__
from specc.errors import SpeccError

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A finite number in [low, high], or in (low, high] where `above`; whole where `whole`."""

    name = "number"

    def __init__(self, low: float, high: float = math.inf, above: bool = False, whole: bool = False) -> None:
        self.low, self.high, self.above, self.whole = low, high, above, whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """The number, or a usage error that names the range."""
        try:
            number = int(value) if self.whole else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        good = abs(number) < math.inf and self.low <= number <= self.high and not (self.above and number == self.low)
        if not good:
            self.fail(f"{value!r} is not {self.allowed()}", param, ctx)
        return number

    def allowed(self) -> str:
        """The range in words."""
        kind = "a whole number" if self.whole else "a number"
        word = "above" if self.above else "from"
        low = "any" if self.low == -math.inf else f"{word} {self.low:g}"
        high = str(self.high) if self.whole else f"{self.high:g}"
        return f"{kind} {low}" + (f" to {high}" if math.isfinite(self.high) else "")


class Threads(Number):
    """A thread count that this machine can bear."""

    def __init__(self) -> None:
        self.cores = os.cpu_count() or 1
        super().__init__(0, 4 * self.cores, whole=True)

    def allowed(self) -> str:
        """The range and where it comes from."""
        return f"{super().allowed()}, 4 for each of this machine's {self.cores} cores"


COUNT = Number(0, 2**31 - 1, whole=True)
SEED = Number(0, 2**64 - 1, whole=True)
THREADS = Threads()
TRIALS = Number(1, 10**7, whole=True)
FOLDER = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value on standard output.")
with_threads = click.option("--threads", type=THREADS, default=0, help="Threads; 0: as the bundle's plan says.")
with_certificates = click.option("--certificates", type=FOLDER, help="A further folder with certificates.")
with_target = click.option("-t", "--target", "hardware", help="Hardware target; see `specc targets`.")


def out(value: Any) -> None:
    """One JSON value on standard output."""
    click.echo(json.dumps(value, indent=1))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="specc")
def cli() -> None:
    """Compile a language model and its drafter into one bundle: faster, from exactly the same distribution."""


@cli.command("build")
@click.argument("recipe")
@with_target
@click.option("-o", "--out", "place", type=FOLDER, help="The bundle's folder; default: the recipe's name, here.")
@as_json
def build_verb(recipe: str, hardware: str | None, place: Path | None, as_json: bool) -> None:
    """Build the bundle of RECIPE (a file, or the name of one that comes along)."""
    from specc import show
    from specc.build import build, summary

    with show.StageBars() as bars:
        built = build(recipe_path(recipe), hardware, place, bars)
    out(summary(built)) if as_json else show.built(built)


@cli.command("plan")
@click.argument("recipe")
@with_target
@as_json
def plan_verb(recipe: str, hardware: str | None, as_json: bool) -> None:
    """Show sizes, memory and predicted speed of RECIPE, without building it."""
    from specc import show
    from specc.build import plan_recipe
    from specc.plan import as_dict
    from specc.recipe import load_recipe

    made = plan_recipe(load_recipe(recipe_path(recipe)), hardware).plan
    out(as_dict(made)) if as_json else show.plan(made)


@cli.command("gate")
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


def sampling_options(command: Command) -> Command:
    """The request's flags, named as in Hugging Face."""
    flags: list[tuple[str, Any, str]] = [
        ("--temperature", Number(0), "0 takes the most probable token."),
        ("--top-p", Number(0, 1, above=True), "Nucleus; 1 is off."),
        ("--top-k", COUNT, "So many most probable tokens stay; 0 is off."),
        ("--min-p", Number(0, 1), "Least probability, as a share of the largest; 0 is off."),
        ("--repetition-penalty", Number(0, above=True), "1 is off."),
        ("--presence-penalty", Number(-math.inf), "0 is off."),
        ("--frequency-penalty", Number(-math.inf), "0 is off."),
        ("--k", Number(1, 16, whole=True), "Tokens proposed in a round; default: the certificate's choice."),
        ("--seed", SEED, "Default: a fresh one, which is reported."),
        ("--max-new-tokens", COUNT, "Default 256."),
        ("--min-new-tokens", COUNT, "End tokens are banned until so many are out."),
    ]
    for name, kind, text in reversed(flags):
        command = click.option(name, type=kind, help=text)(command)
    return command


@cli.command("run")
@click.argument("bundle", type=FOLDER)
@click.option("-p", "--prompt", required=True, help="The prompt; `-` reads standard input.")
@click.option("--raw", is_flag=True, help="Take the prompt as it stands, without the chat template.")
@click.option("--spec", type=click.Choice(["on", "off"]), default="on", help="Speculation.")
@click.option("--rule", type=click.Choice(["rejection", "coupled"]), help="Acceptance rule; default rejection.")
@sampling_options
@click.option("--stop", multiple=True, help="A string that ends the text; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="End tokens are ordinary tokens.")
@click.option("--stats", is_flag=True, help="Print statistics on standard error.")
@click.option("--trust", is_flag=True, help="Check sizes of the bundle's files, not their hashes.")
@with_threads
@with_certificates
@as_json
def run_verb(
    bundle: Path, prompt: str, raw: bool, spec: str, stats: bool, trust: bool, threads: int, certificates: Path | None,
    as_json: bool, **flags: Any,
) -> int:  # fmt: skip
    """Generate from BUNDLE, streaming."""
    from specc.run import Ask, generate, stats_line

    request = {name: value for name, value in flags.items() if value is not None}
    request["speculation"] = spec == "on"
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if prompt == "-" else prompt
    ask = Ask(text, raw, threads, certificates, trust, request)
    result = generate(bundle, ask, ignore if as_json else stream)
    if as_json:
        out(result)
    else:
        click.echo()
    if stats:
        click.echo(stats_line(result), err=True)
    return 130 if result["finish_reason"] == "cancelled" else 0


def stream(text: str) -> None:
    """Show a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def ignore(_: str) -> None:
    """Show nothing."""


@cli.command("inspect")
@click.argument("bundle", type=FOLDER)
@with_threads
@with_certificates
@as_json
def inspect_verb(bundle: Path, threads: int, certificates: Path | None, as_json: bool) -> None:
    """Show what is inside BUNDLE, and why speculation is on or off here."""
    from specc import show
    from specc.inspection import inspect

    found = inspect(bundle, threads, certificates)
    out(found) if as_json else show.inspected(found)


@cli.command("doctor")
@as_json
def doctor_verb(as_json: bool) -> int:
    """Check what this machine has; exit 3 where running a bundle is impossible."""
    from dataclasses import asdict

    from specc import show
    from specc.inspection import doctor

    findings = doctor()
    if as_json:
        out({"findings": [asdict(finding) for finding in findings]})
    else:
        rows = [(f.name, "ok" if f.ok else "missing", f.needed_for, f.value) for f in findings]
        show.table("doctor", ("what", "state", "needed for", "value"), rows)
    return 3 if any(not f.ok and f.needed_for == "run" for f in findings) else 0


@cli.command("targets")
@as_json
def targets_verb(as_json: bool) -> None:
    """List the hardware targets."""
    from dataclasses import asdict

    from specc import show, targets

    found = [targets.load(name) for name in targets.names()]
    if as_json:
        out([{**asdict(item), "here": item.is_here()} for item in found])
        return
    rows = [(t.name, t.title, t.threads, f"{t.memory_mb} MB", f"{t.bandwidth_gb_s:g} GB/s") for t in found]
    show.table("targets", ("name", "device", "threads", "memory", "bandwidth"), rows)


@cli.command("recipes")
@as_json
def recipes_verb(as_json: bool) -> None:
    """List the recipes that come along; `specc build NAME` takes their names."""
    from specc import show
    from specc.recipe import load_recipe

    found = [load_recipe(path) for path in shipped_recipes()]
    if as_json:
        out([{"name": r.name, "file": r.file, "target": r.target.checkpoint, "draft": r.draft.kind} for r in found])
        return
    rows = [(r.name, r.target.checkpoint, r.draft.kind, f"{r.scheme.layers}/{r.scheme.head}") for r in found]
    show.table("recipes", ("name", "target", "draft", "scheme"), rows)


def shipped_recipes() -> list[Path]:
    """Recipes inside the package."""
    from specc import recipes

    return sorted(Path(recipes.__file__).parent.glob("*.yaml"))


def recipe_path(text: str) -> Path:
    """A recipe's path; a bare name may also be that of one that comes along."""
    path = Path(text)
    if not path.exists() and path.name == text and not path.suffix:
        for shipped in shipped_recipes():
            if shipped.stem == text:
                return shipped
    return path


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one sentence on standard error for every mistake, a traceback only for our own."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter shows a question mark
    try:
        code = cli.main(arguments, prog_name="specc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        code = complain(sentence(error), error.exit_code)
    except SpeccError as error:
        code = complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = complain("interrupted", 130)
    except (BrokenPipeError, SystemExit):  # click makes the latter of the former, and of nothing else here
        code = 0
    except OSError as error:
        code = complain(failure(error), 3)
    settle()
    sys.exit(code if isinstance(code, int) else 0)


def open_streams() -> None:
    """Standard streams that the caller closed lead nowhere, so that no file of ours gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def settle() -> None:
    """Flush both outputs; one that cannot take its text leads nowhere from here, so that the exit is quiet."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def failure(error: OSError) -> str:
    """What the operating system refused, and of which file."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "standard output"
    return f"{name}: {error.strerror or error}; check the path, its rights and the space that is left"


def sentence(error: click.ClickException) -> str:
    """A usage error with the command that explains it."""
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{error.format_message()}{where}"


def complain(message: str, code: int) -> int:
    """Print the sentence; returns the exit code."""
    with suppress(OSError):
        click.echo(f"specc: {message}", err=True)
    return code


if __name__ == "__main__":
    main()
