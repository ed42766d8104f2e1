"""The GPU that this machine has, the libraries that run engines on it, and whether libspecc can."""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specc.errors import RuntimeFault
from specc.runtime._ffi import Library, ffi, library, text_of

CUDA_LIBRARIES = tuple(
    "libcudart libnvrtc libnvJitLink libcublasLt libcublas libcufft libcurand libcudnn*".split()
)
"""In the order in which they need each other."""
PLUGIN = "onnxruntime_ep_nv_tensorrt_rtx"
PACKAGES = {
    False: (("tensorrt_libs", "libnvinfer.so.*"),),
    True: (("tensorrt_rtx_libs", "libtensorrt_rtx.so.*"), (PLUGIN, "libtensorrt_rtx.so.*")),
}


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as its driver describes it."""

    name: str
    fingerprint: str  # SHA-256 of name, SM and driver
    sm: int  # 87 for compute capability 8.7
    cuda: int  # that the driver supports, 12060 for 12.6
    integrated: bool  # CPU and GPU share one memory
    processors: int
    memory: int  # bytes in all
    available: int  # bytes that an engine may take now, a reserve left
    driver_free: int  # bytes that the driver calls free


def gpu(index: int = 0, loaded: Library | None = None) -> Gpu:
    """The GPU of a number; RuntimeFault says what is missing: a driver, a newer one, the GPU."""
    loaded, c = loaded or library(), ffi.new("specc_gpu *")
    loaded.check(loaded.c.specc_gpu_info(index, c))
    return Gpu(
        text_of(c.name),
        text_of(c.fingerprint),
        c.sm,
        c.cuda,
        bool(c.integrated),
        c.processors,
        c.memory,
        c.available,
        c.driver_free,
    )


def find_tensorrt_library(rtx: bool) -> Path | None:
    """libnvinfer or libtensorrt_rtx of an installed package; None: the loader's own search."""
    return _find(PACKAGES[rtx])


def find_provider_library() -> Path | None:
    """ONNX Runtime's plugin provider for TensorRT-RTX of an installed package."""
    return _find(((PLUGIN, "libonnxruntime_providers_nv_tensorrt_rtx.so"),))


def preload_cuda() -> list[str]:
    """Loads the CUDA and cuDNN libraries that ONNX Runtime's provider needs from installed packages.

    Returns their file names.
    """
    loaded = []
    for folder in _folders("nvidia"):
        for name in CUDA_LIBRARIES:
            for path in sorted(folder.glob(f"*/lib/{name}.so.*")):
                with suppress(OSError):
                    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                    loaded.append(path.name)
    return loaded


def read_tensorrt_version(path: Path | None = None, rtx: bool = False, loaded: Library | None = None) -> str:
    """ "10.3.0.30" of a library; path None: an installed package's, else the loader's own search."""
    loaded, out = loaded or library(), ffi.new("char[32]")
    path = path or find_tensorrt_library(rtx)
    name = ffi.NULL if path is None else ffi.new("char[]", str(path).encode())
    loaded.check(loaded.c.specc_tensorrt_version(name, int(rtx), out, 32))
    return text_of(out)


def find_row_kernels() -> Path:
    """specc_judge.fatbin beside libspecc; RuntimeFault if it was not compiled (the CPU judges the rows)."""
    path = library().path.with_name("specc_judge.fatbin")
    if not path.is_file():
        raise RuntimeFault(
            "not compiled: no nvcc was named at build (cmake -DSPECC_NVCC=PATH); the CPU judges", 10
        )
    return path


def read_tensorrt_headers(loaded: Library | None = None) -> str:
    """With which headers libspecc's TensorRT backend was compiled; RuntimeFault if with none."""
    found = text_of((loaded or library()).c.specc_tensorrt_headers())
    if not found:
        raise RuntimeFault(
            "not compiled: no NvInferRuntime.h was found at build (cmake -DTENSORRT_INCLUDE=FOLDER)", 10
        )
    return found


def _find(places: tuple[tuple[str, str], ...]) -> Path | None:
    """The first file of installed packages, found without importing them."""
    for package, pattern in places:
        found = [path for folder in _folders(package) for path in sorted(folder.glob(pattern))]
        if found:
            return found[0]
    return None


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec is not None else None) or ()]
