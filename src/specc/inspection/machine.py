"""What running and building need, whether this machine has it, and which hardware target it is."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from specc import targets
from specc.errors import SpeccError
from specc.pipeline import cache
from specc.targets import Hardware
from specc.version import __version__

NOT_RUN = "has not run on a GPU yet"
"""Said of code that compiles and passes its tests against stubs of the GPU's libraries."""


@dataclass(frozen=True)
class Requirement:
    """One thing that running or building needs, and whether this machine has it."""

    name: str
    value: str
    """What is there, or why it is not and what to do."""
    ok: bool
    needed_for: str
    """"run", "build" or "gpu" (bundles for NVIDIA GPUs)."""


def check_machine() -> list[Requirement]:
    """Everything that running and building need, found or not."""
    requirements = [
        Requirement("specc", __version__, True, "run"),
        Requirement("python", platform.python_version(), sys.version_info >= (3, 10), "run"),
        check("libspecc", "run", find_library),
        check("engine library", "run", find_engine),
        check("device", "run", describe_device),
        check("CPU operators", "run", describe_kernels),
        check("GPU", "gpu", describe_gpu),
        check("TensorRT", "gpu", lambda: describe_tensorrt(rtx=False)),
        check("TensorRT for RTX", "gpu", lambda: describe_tensorrt(rtx=True)),
        check("TensorRT backend", "gpu", describe_backend),
        check("GPU row kernels", "gpu", describe_row_kernels),
        check("cache folder", "build", describe_cache),
    ]
    return requirements + [
        check_package(name) for name in cache.TOOLS if name not in ("onnxruntime", "tokenizers", "numpy")
    ]


def check(name: str, needed_for: str, find: Callable[[], str]) -> Requirement:
    """One requirement; the sentence of an error is its value."""
    try:
        return Requirement(name, find(), True, needed_for)
    except (SpeccError, OSError, ImportError) as error:
        return Requirement(name, str(error), False, needed_for)


def find_library() -> str:
    """Path of libspecc; loading it checks version and layout."""
    from specc.runtime import library

    return str(library().path)


def find_engine() -> str:
    """Path of the engine library."""
    from specc.runtime import engine_library

    path = engine_library()
    if path is None:
        raise FileNotFoundError("no libonnxruntime was found; pip install onnxruntime")
    return f"{path} ({cache.version_of('onnxruntime')})"


def describe_device() -> str:
    """This CPU, its cores and the hardware targets that fit."""
    from specc.runtime import device

    fitting = [name for name in targets.list_names() if is_here(targets.load(name))]
    return f"{device()[0]}, {os.cpu_count()} cores, targets: {', '.join(fitting) or 'none'}"


def describe_kernels() -> str:
    """Which instructions our CPU operators use here; the scalar code is right everywhere, and slow."""
    from specc.runtime import kernels

    name = kernels()
    return f"{name} (no faster variant runs here and agrees with it)" if name == "scalar" else name


def describe_gpu() -> str:
    """The GPU, its compute capability, its driver, its memory."""
    from specc.runtime import gpu

    device, mb = gpu(), 2**20
    shared = ", shared with the CPU" if device.integrated else ""
    return (
        f"{device.name}, SM {device.sm}, driver for CUDA {device.cuda // 1000}.{device.cuda % 1000 // 10}, "
        f"{device.memory // mb} MB{shared}, {device.available // mb} MB may be taken"
    )


def describe_tensorrt(rtx: bool) -> str:
    """Version of the TensorRT library that would be loaded."""
    from specc.runtime.nvidia import find_tensorrt_library, read_tensorrt_version

    return f"{read_tensorrt_version(rtx=rtx)} ({find_tensorrt_library(rtx) or 'found by the loader'})"


def describe_backend() -> str:
    """The TensorRT headers that the backend was compiled with."""
    from specc.runtime.nvidia import read_tensorrt_headers

    return f"compiled with the headers of {read_tensorrt_headers()}; {NOT_RUN}"


def describe_row_kernels() -> str:
    """The compiled CUDA kernels that judge a round's rows."""
    from specc.runtime.nvidia import find_row_kernels

    return f"{find_row_kernels()}; {NOT_RUN}"


def describe_cache() -> str:
    """Where the cache is and how much room it has."""
    place = cache.root()
    place.mkdir(parents=True, exist_ok=True)
    return f"{place} ({shutil.disk_usage(place).free >> 20} MB free)"


def check_package(name: str) -> Requirement:
    """One package of the extra `build`."""
    version = cache.version_of(name)
    return Requirement(
        name, version or "not installed; pip install 'specc[build]'", version is not None, "build"
    )


# ---------------------------------------------------------------------- hardware targets


def is_here(hardware: Hardware) -> bool:
    """Whether this machine is such a device."""
    return hardware.matches(platform.machine(), find_sm() if hardware.gpu is not None else None)


def find_sm() -> int | None:
    """Compute capability of the GPU that engines run on here; None where there is no driver."""
    from specc.runtime import gpu

    try:
        return gpu().sm
    except SpeccError:
        return None
