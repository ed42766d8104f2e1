"""Whether this machine is one of the hardware targets."""

from __future__ import annotations

import platform

from specc.errors import SpeccError
from specc.targets import Hardware


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
