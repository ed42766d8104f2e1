"""TensorRT and TensorRT-RTX: two libraries with the same Python interface."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault

RTX_BINDINGS, RTX_FOLDERS = "tensorrt_rtx_bindings", ("onnxruntime_ep_nv_tensorrt_rtx", "tensorrt_rtx_libs")
RTX_LIBRARIES = ("libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1")
EXTRAS = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt-rtx"}


@dataclass(frozen=True)
class Library:
    """The opened Python interface, its kind and version (major.minor.patch)."""

    api: Any
    kind: str
    version: str

    @property
    def is_rtx(self) -> bool:
        """Whether engines are built for a named compute capability, not for the GPU here."""
        return self.kind == "tensorrt-rtx"


def open_library(kind: str) -> Library:
    """Load a library; `kind`: "tensorrt" or "tensorrt-rtx".

    Raises EnvironmentFault where it is not installed.
    """
    try:
        api = load_rtx() if kind == "tensorrt-rtx" else importlib.import_module("tensorrt")
    except (ImportError, OSError) as error:
        why = f"{kind} cannot be loaded here ({error})"
        raise EnvironmentFault(
            f"{why}; pip install 'specc[{EXTRAS[kind]}]', or JetPack's own python3-libnvinfer"
        ) from error
    return Library(api, kind, ".".join(str(api.__version__).split(".")[:3]))


def load_rtx() -> Any:
    """Load the bindings over the libraries of an installed wheel, or over those of the system."""
    folder = next(filter(None, map(find_package_folder, RTX_FOLDERS)), None)
    for name in RTX_LIBRARIES:
        ctypes.CDLL(str(folder / name) if folder else name, mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module(RTX_BINDINGS)


def find_package_folder(name: str) -> Path | None:
    """Folder of an installed package; its import creates the links by which its libraries are loaded."""
    if importlib.util.find_spec(name) is None:
        return None
    return Path(str(importlib.import_module(name).__file__)).parent
