"""Field faults as switches of the controls library: a check passes without the fault and fails with it."""

from collections.abc import Callable

import pytest

from specc.errors import SpeccError
from specc.runtime import Library, controls, library

Check = Callable[[Library], None]
"""Asserts what must hold of a library."""


def assert_passes(check: Check) -> None:
    """The check passes on the shipped library, and on the controls library while no fault is active."""
    check(library())
    check(controls())


def assert_fails_with_fault(check: Check, fault: str) -> None:
    """The check fails on the controls library while the named fault is active."""
    with controls().fault(fault), pytest.raises((AssertionError, SpeccError, pytest.fail.Exception)):
        check(controls())
