"""The NVIDIA GPUs of this machine, asked of the driver library itself; nothing of CUDA needs to be installed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from specc.errors import EnvironmentFault

LIBRARY = "libcuda.so.1"
MAJOR, MINOR, INTEGRATED = 75, 76, 18  # numbers of CUdevice_attribute
TOO_OLD = (35, 803, 804)  # insufficient driver, system driver mismatch, compatibility not supported on device


@dataclass(frozen=True)
class Device:
    """One GPU."""

    name: str
    sm: int
    """Compute capability, 10 x major + minor."""
    integrated: bool
    memory_mb: int
    driver: str
    """Newest CUDA that the driver knows, such as 12.6."""


def devices(library: str = LIBRARY) -> tuple[Device, ...]:
    """All GPUs, none where the driver sees none. Raises EnvironmentFault: no driver library, or it does not start."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise EnvironmentFault(
            f"no NVIDIA driver is here: {library} cannot be loaded ({error}); install one"
        ) from error
    code = cuda.cuInit(0)
    if code == 100:  # no device
        return ()
    if code:
        why = "the driver is too old for this device or library" if code in TOO_OLD else f"cuInit gave {code}"
        raise EnvironmentFault(f"the NVIDIA driver does not start: {why}; update the driver or restart the machine")
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return tuple(device(cuda, i, driver) for i in range(count.value))


def device(cuda: Any, index: int, driver: str) -> Device:
    """GPU number `index`."""
    handle, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    major, minor, integrated = (attribute(cuda, number, handle) for number in (MAJOR, MINOR, INTEGRATED))
    text = name.value.decode(errors="replace")
    return Device(text, 10 * major + minor, bool(integrated), total.value >> 20, driver)


def attribute(cuda: Any, number: int, handle: ctypes.c_int) -> int:
    """One number of a GPU."""
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
    return value.value
