"""The memory that is available for a build, and an estimate of what a build takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specc.errors import EnvironmentFault

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
BASE, TIMES = 900 << 20, 5.0
"""Peak of a build: BASE bytes of the library plus TIMES the graph's weights (measured: 2.4 GB for 270 MB)."""


@dataclass(frozen=True)
class AvailableMemory:
    """Bytes. `available` includes the page cache, which the kernel gives back; `free` does not."""

    available: int
    free: int


def read_available(meminfo: Path = MEMINFO, limits: tuple[Path, ...] = LIMITS) -> AvailableMemory:
    """The memory that this machine, or the container of this process, has left."""
    rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    left, free = (1024 * int(rows[key].split()[0]) for key in ("MemAvailable", "MemFree"))
    for path in limits:
        try:
            left = min(left, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return AvailableMemory(left, min(free, left))


def estimate_build_bytes(weights: int, integrated: bool) -> int:
    """Estimated peak of a build; a GPU that shares the memory holds a second copy of the engine there."""
    return int(BASE + (TIMES + integrated) * weights)


def check_memory(name: str, need: int, reserve: int, here: AvailableMemory) -> None:
    """Raise EnvironmentFault where a build of `need` bytes would run out of memory."""
    if need + reserve > here.available:
        raise EnvironmentFault(
            f"building {name} needs about {need >> 20} MB and {reserve >> 20} MB are kept for the system, "
            f"but {here.available >> 20} MB are available (MemAvailable; MemFree is {here.free >> 20} MB): "
            "close other programs, add swap, or use a smaller scheme"
        )
