"""What can go wrong, by whose move it is: each error is one sentence: what was found, where, what to do."""

from __future__ import annotations


class SpeccError(Exception):
    """Base of all errors that the command line prints without a traceback; `exit_code` is the process's."""

    exit_code = 2


class InputError(SpeccError):
    """A file, option or value from the user that cannot be used."""


class RecipeError(InputError):
    """A recipe or target file that says something impossible: "file:line: found; allowed"."""

    def __init__(self, file: str, line: int, found: str, allowed: str) -> None:
        super().__init__(f"{file}:{line}: {found}; {allowed}")
        self.file, self.line, self.found, self.allowed = file, line, found, allowed


class JudgeError(SpeccError):
    """A judge (gate, diff, quality) said no."""

    exit_code = 1


class EnvironmentFault(SpeccError):
    """A package, library, disk or device that this machine lacks."""

    exit_code = 3


class RuntimeFault(SpeccError):
    """An error of libspecc; `code` is one of the SPECC_E_ numbers of specc.h."""

    exit_code = 3

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
