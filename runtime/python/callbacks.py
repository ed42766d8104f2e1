"""C function pointers onto Python objects, for engines and drafters written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specc.errors import SpeccError
from specc.runtime._ffi import Library, ffi

Native = tuple[Any, list[Any]]
"""What `native(library)` of an engine or a drafter gives: a C struct pointer, and what must outlive it."""


class Calls:
    """C function pointers onto one Python object; states are numbered, C holds the number as its pointer."""

    failure = "SPECC_E_ENGINE"

    def __init__(self, library: Library) -> None:
        self.library, self.states, self.last = library, dict[int, Any](), 0
        self.pointers: dict[str, Any] = {}

    def add(self, member: str, signature: str, body: Callable[..., None]) -> None:
        """Registers one member; an exception of the body becomes specc_fail with its sentence."""

        def call(*args: Any) -> int | None:
            try:
                body(*args)
            except BaseException as error:  # nothing may pass through C
                return self.fail(error)
            return None if signature.startswith("void") else 0

        error = None if signature.startswith("void") else getattr(self.library.c, self.failure)
        self.pointers[member] = (
            ffi.callback(signature, call, error=error) if error else ffi.callback(signature, call)
        )

    def fail(self, error: BaseException) -> int:
        """Records the sentence; the exception's own status code wins, else the engine's or the drafter's."""
        code = getattr(error, "code", 0) or getattr(self.library.c, self.failure)
        message = str(error) if isinstance(error, SpeccError) else f"{type(error).__name__}: {error}"
        return int(self.library.c.specc_fail(code, message.encode("utf-8", "replace")))

    def put(self, pointer: Any, state: Any) -> None:
        """Stores a state and hands its number to C."""
        self.last += 1
        self.states[self.last] = state
        pointer[0] = ffi.cast("void *", self.last)

    def get(self, pointer: Any) -> Any:
        return self.states[int(ffi.cast("intptr_t", pointer))]

    def drop(self, pointer: Any) -> Any:
        return self.states.pop(int(ffi.cast("intptr_t", pointer)))


def chars(text: str) -> Any:
    """A C string; it lives as long as the object returned."""
    return ffi.new("char[]", text.encode())
