"""The command line: parses, calls one function, prints. Exit 0 ok, 1 a judge said no, 2
usage, 3 environment, 70 a fault of specc itself.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module

import click

from specc.errors import TRACEBACK, InternalFault, SpeccError, describe_unexpected
from specc.version import __version__

VERBS = (
    "build",
    "finalize",
    "plan",
    "gate",
    "diff",
    "run",
    "bench",
    "inspect",
    "doctor",
    "targets",
    "recipes",
    "distill",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="specc")
def cli() -> None:
    """Exact speculative decoding: a language model and its draft compiled into one bundle that is faster and
    samples from exactly the same distribution.
    """


for _verb in VERBS:
    cli.add_command(getattr(import_module(f"specc.cli.{_verb}"), f"{_verb}_verb"))


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one sentence on standard error for every mistake; a traceback on request."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter shows a question mark
    try:
        code = cli.main(arguments, prog_name="specc", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        code = print_error(format_usage_error(error), error.exit_code)
    except SpeccError as error:
        code = print_error(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = print_error("interrupted", 130)
    except (BrokenPipeError, SystemExit):  # click makes the latter of the former, and of nothing else here
        code = 0
    except OSError as error:
        code = print_error(format_os_error(error), 3)
    except MemoryError:
        code = print_error("the memory of this machine is not enough; free some or use another machine", 3)
    except Exception as error:  # nobody foresaw it: the fault is ours, and 1 would say that a judge said no
        fault = InternalFault(describe_unexpected(error))
        code = print_error(str(fault), fault.exit_code)
    flush_outputs()
    sys.exit(code if isinstance(code, int) else 0)


def open_streams() -> None:
    """Standard streams that the caller closed lead nowhere, so that no file of ours gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def flush_outputs() -> None:
    """Flush both outputs; one that cannot take its text leads nowhere from here, so that
    the exit is quiet.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def format_os_error(error: OSError) -> str:
    """What the operating system refused, and of which file."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "standard output"
    return f"{name}: {error.strerror or error}; check the path, its rights and the space that is left"


def format_usage_error(error: click.ClickException) -> str:
    """A usage error with the command that explains it."""
    context = getattr(error, "ctx", None)
    where = f" (see `{context.command_path} --help`)" if context is not None else ""
    return f"{error.format_message()}{where}"


def print_error(message: str, code: int) -> int:
    """Print the sentence, after the traceback where the environment asks for it; returns the exit code."""
    with suppress(OSError):
        if os.environ.get(TRACEBACK) and sys.exc_info()[0] is not None:
            click.echo(traceback.format_exc(), err=True)
        click.echo(f"specc: {message}", err=True)
    return code
