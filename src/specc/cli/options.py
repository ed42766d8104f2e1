"""What verbs share: number types, common options, printing JSON, names of recipes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
        good = (
            abs(number) < math.inf
            and self.low <= number <= self.high
            and not (self.above and number == self.low)
        )
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


class ThreadCounts(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """One thread count, or several between commas, each once."""

    name = "counts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The counts as a tuple, or a usage error."""
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(int(THREADS.convert(part, param, ctx)) for part in str(value).split(",")))


COUNT = Number(0, 2**31 - 1, whole=True)
SEED = Number(0, 2**64 - 1, whole=True)
THREADS = Threads()
THREAD_COUNTS = ThreadCounts()
TRIALS = Number(1, 10**7, whole=True)
FOLDER = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value on standard output.")
with_threads = click.option(
    "--threads", type=THREADS, default=0, help="Threads; 0: as the bundle's plan says."
)
with_certificates = click.option("--certificates", type=FOLDER, help="A further folder with certificates.")
with_target = click.option("-t", "--target", "hardware", help="Hardware target; see `specc targets`.")


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    click.echo(json.dumps(value, indent=1))


def sampling_options(command: Command) -> Command:
    """The request's flags, named as in Hugging Face."""
    flags: list[tuple[str, Any, str]] = [
        ("--temperature", Number(0), "0 is greedy: the most probable token."),
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
