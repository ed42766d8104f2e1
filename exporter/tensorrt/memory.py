"""How much memory there is to build in, and about how much a build takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specc.errors import EnvironmentFault

MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
BASE, TIMES = 900 << 20, 5.0
"""Peak of a build: the library's own bytes, and so many times the graph's weights (seen: 2.4 GB for 270 MB)."""


@dataclass(frozen=True)
class AvailableMemory:
    """Bytes. `available` counts the page cache as free, which the kernel gives back; `free` does not."""

    available: int
    free: int


def read_available(meminfo: Path = MEMINFO, limits: tuple[Path, ...] = LIMITS) -> AvailableMemory:
    """What this machine, or the container that we are in, has left."""
    rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    left, free = (1024 * int(rows[key].split()[0]) for key in ("MemAvailable", "MemFree"))
    for path in limits:
        try:
            left = min(left, int(path.read_text()))
        except (OSError, ValueError):
            continue
    return AvailableMemory(left, min(free, left))


def estimate_build_bytes(weights: int, integrated: bool) -> int:
    """About the peak of a build; a GPU that shares the memory holds the engine in it a second time."""
    return int(BASE + (TIMES + integrated) * weights)


def check_memory(name: str, need: int, reserve: int, here: AvailableMemory) -> None:
    """Raise EnvironmentFault where a build would be killed."""
    if need + reserve > here.available:
        raise EnvironmentFault(
            f"building {name} needs about {need >> 20} MB and {reserve >> 20} MB are kept for the system, but "
            f"{here.available >> 20} MB are available (MemAvailable; MemFree is {here.free >> 20} MB): close other "
            "programs, add swap, or use a smaller scheme"
        )
