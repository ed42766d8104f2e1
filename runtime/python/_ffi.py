"""Loads libspecc.so over the headers that C programs read: their parts between the cffi fences."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

from specc.errors import InputError, RuntimeFault

HERE = Path(__file__).resolve().parent
HEADERS = ("specc.h", "specc_extend.h", "specc_judge.h")
"""In this order: each uses the types of those before it."""
CONTROLS = "int specc_fault_set(const char *name); const char *specc_fault_name(int index);"
CALLER_FAULTS = ("SPECC_E_ARGUMENT", "SPECC_E_CAPACITY", "SPECC_E_FORMAT", "SPECC_E_UNSUPPORTED")


def header_text(path: Path) -> str:
    """The declarations between the fences of a header, without SPECC_API."""
    text = path.read_text(encoding="ascii")
    begin = text.index("*/", text.index("/* cffi: begin")) + 2
    return text[begin : text.index("/* cffi: end */")].replace("SPECC_API ", "")


def struct_names(header: str) -> list[str]:
    """Names of the structs with a public layout."""
    return re.findall(r"typedef struct (\w+) \{", header)


def find_file(name: str) -> Path:
    """A file of this package; an editable install keeps built ones elsewhere, a checkout one level up."""
    folders = [HERE, *map(Path, sys.modules[__package__].__path__), HERE.parent]
    return next((folder / name for folder in folders if (folder / name).is_file()), HERE / name)


def parse_headers() -> tuple[Any, list[str]]:
    """An FFI that knows all declarations, and the names of the structs with a public layout."""
    parsed: Any = FFI()
    structs = []
    for name in HEADERS:
        text = header_text(find_file(f"include/{name}"))
        parsed.cdef(text)
        structs += struct_names(text)
    parsed.cdef(CONTROLS)
    return parsed, structs


ffi, STRUCTS = parse_headers()


class Library:
    """One loaded libspecc: the C functions as attributes of `c`, and status codes turned into exceptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = _dlopen(path)
        _check_version(self.c, path)
        _check_layout(self.c, path)

    def check(self, status: int) -> None:
        """Raises what a status code says; InputError for the caller's mistakes, RuntimeFault for the rest."""
        if status != 0:
            raise self.error(status)

    def error(self, status: int) -> InputError | RuntimeFault:
        """The exception for a failed call on this thread, its sentence from specc_last_error."""
        message = text_of(self.c.specc_last_error())
        if status in {getattr(self.c, name) for name in CALLER_FAULTS}:
            return InputError(message)
        return RuntimeFault(message, status)

    def faults(self) -> list[str]:
        """Names of the faults that the controls library can put back."""
        names, index = [], 0
        while (name := self.c.specc_fault_name(index)) != ffi.NULL:
            names.append(text_of(name))
            index += 1
        return [name for name in names if name != "none"]

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Runs a block with one fault put back; only the controls library has any."""
        if self.c.specc_fault_set(name.encode()) != 0:
            raise InputError(f"the library {self.path.name} has no fault named {name!r}; faults() lists them")
        try:
            yield
        finally:
            self.c.specc_fault_set(b"none")


def text_of(pointer: Any) -> str:
    """A C string as text; "" for NULL."""
    if pointer == ffi.NULL:
        return ""
    return bytes(ffi.string(pointer)).decode("utf-8", "replace")


@cache
def library() -> Library:
    """The shipped library: libspecc.so beside this file, or the file that SPECC_LIBRARY names."""
    override = os.environ.get("SPECC_LIBRARY")
    return Library(Path(override) if override else find_file("libspecc.so"))


@cache
def controls() -> Library:
    """The same source with switchable faults, for negative controls; it lies beside the shipped library."""
    return Library(library().path.with_name("libspecc_controls.so"))


def engine_library() -> Path | None:
    """The libonnxruntime in the installed onnxruntime package, found without importing the package."""
    spec = importlib.util.find_spec("onnxruntime")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [
        path for folder in folders or () for path in sorted(Path(folder, "capi").glob("libonnxruntime.*"))
    ]
    return found[0] if found else None


def _dlopen(path: Path) -> Any:
    """Opens the library with its own names kept local."""
    try:
        return ffi.dlopen(str(path))
    except OSError as error:
        raise RuntimeFault(f"cannot load {path}: {error}; reinstall specc or set SPECC_LIBRARY", 6) from None


def _check_version(c: Any, path: Path) -> None:
    if c.specc_version() != c.SPECC_VERSION:
        found, wanted = c.specc_version(), c.SPECC_VERSION
        raise RuntimeFault(
            f"{path} is version {found} but specc.h beside it is version {wanted}; reinstall specc", 5
        )


def _check_layout(c: Any, path: Path) -> None:
    """Raises unless the library and cffi give every public struct the same size."""
    for name in STRUCTS:
        theirs, ours = c.specc_sizeof(name.encode()), ffi.sizeof(name)
        if theirs != ours:
            raise RuntimeFault(
                f"{path} lays {name} out in {theirs} bytes, its headers in {ours}; reinstall specc", 5
            )
