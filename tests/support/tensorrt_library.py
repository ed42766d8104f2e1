"""Whether a TensorRT is installed, without loading it."""

from __future__ import annotations

import importlib.util

from specc.exporter.tensorrt.library import RTX_BINDINGS, RTX_FOLDERS, find_package_folder


def is_installed(kind: str) -> bool:
    """`kind`: "tensorrt" or "tensorrt-rtx"."""
    if kind == "tensorrt":
        return importlib.util.find_spec("tensorrt") is not None
    return importlib.util.find_spec(RTX_BINDINGS) is not None and any(map(find_package_folder, RTX_FOLDERS))
