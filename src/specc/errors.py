"""The exceptions of specc, by who can act on them.

Each message is one sentence: what was found, where, and what to do.
"""

from __future__ import annotations

TRACEBACK = "SPECC_TRACEBACK"
"""Environment variable that shows the traceback of any error of the command line."""


class SpeccError(Exception):
    """Base of all errors that the command line prints without a traceback."""

    exit_code = 2
    """Exit code of the process."""


class InputError(SpeccError):
    """A file, option or value from the user that cannot be used."""


class RecipeError(InputError):
    """A recipe or target file that says something impossible: "file:line: found; allowed"."""

    def __init__(self, file: str, line: int, found: str, allowed: str) -> None:
        super().__init__(f"{file}:{line}: {found}; {allowed}")
        self.file, self.line, self.found, self.allowed = file, line, found, allowed


class JudgeError(SpeccError):
    """A check of the gate, of a diff or of the build's quality has failed."""

    exit_code = 1


class EnvironmentFault(SpeccError):
    """A package, library, disk or device that this machine lacks."""

    exit_code = 3


class RuntimeFault(SpeccError):
    """An error that libspecc returned; `code` is one of the SPECC_E_ numbers of specc.h."""

    exit_code = 3

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class InternalFault(SpeccError):
    """A fault of specc itself: neither the input nor the machine is to blame."""

    exit_code = 70

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; this is a fault of specc: report it with the command and its traceback, which "
            f"{TRACEBACK}=1 in the environment shows"
        )


def describe_unexpected(error: BaseException) -> str:
    """An exception that nobody foresaw, in one line of at most 300 letters."""
    return " ".join(f"unexpected {type(error).__name__}: {error}".split())[:300].rstrip(": ")


def describe_read_error(error: OSError | UnicodeDecodeError) -> str:
    """Why a text file could not be read, in a few words."""
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
