"""What every table of field faults asks: a check holds, and fails once its fault is put back."""

from collections.abc import Callable

import pytest

from specc.errors import SpeccError
from specc.runtime import Library, controls, library

Check = Callable[[Library], None]


def holds(check: Check) -> None:
    """The shipped library, and the controls library without a fault, pass."""
    check(library())
    check(controls())


def is_found(check: Check, fault: str) -> None:
    """With its fault active the check fails."""
    with controls().fault(fault), pytest.raises((AssertionError, SpeccError, pytest.fail.Exception)):
        check(controls())
