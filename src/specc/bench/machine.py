"""The machine a bench ran on: processor, power mode, clocks, temperatures, load.

A board in a capped power mode has another break-even K and other speeds, so every report carries the mode,
and reports of different modes are not compared. What this system does not tell is None, and the mode is then
"unknown".
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path("/")
UNKNOWN = "unknown"
CPU = "sys/devices/system/cpu"
MODE_FILES = {
    "governor": f"{CPU}/cpu0/cpufreq/scaling_governor",
    "preference": f"{CPU}/cpu0/cpufreq/energy_performance_preference",
    "profile": "sys/firmware/acpi/platform_profile",
    "max_khz": f"{CPU}/cpu0/cpufreq/scaling_max_freq",
    "boost": f"{CPU}/cpufreq/boost",
    "no_turbo": f"{CPU}/intel_pstate/no_turbo",
    "mains": "sys/class/power_supply/AC/online",
}
"""What caps a processor's speed, by the name it has in reports."""


def read_power(root: Path | None = None) -> dict[str, Any]:
    """Mode (a name), where it comes from, its settings, clocks in MHz and temperatures in degrees Celsius,
    now.
    """
    root = root or ROOT
    board, settings = (
        read_nvpmodel(root),
        {name: read_small_file(root / path) for name, path in MODE_FILES.items()},
    )
    known = {name: value for name, value in settings.items() if value is not None}
    named = board or ", ".join(f"{name} {value}" for name, value in known.items()) or UNKNOWN
    source = "nvpmodel" if board else "sysfs" if known else None
    return {
        "mode": named,
        "source": source,
        "settings": known,
        "clocks_mhz": read_clocks(root),
        "temperature_c": read_temperatures(root),
    }


def read_nvpmodel(root: Path) -> str | None:
    """A Jetson's power mode: by its tool, else by the file that the tool leaves; None on other machines."""
    tool = shutil.which("nvpmodel")
    if tool is not None:
        with suppress(OSError, subprocess.SubprocessError):
            ended = subprocess.run([tool, "-q"], capture_output=True, text=True, timeout=10)
            found = re.search(r"Power Mode\s*:\s*(\S+)", ended.stdout)
            if found:
                return found[1]
    status = re.search(r"pmode:(\d+)", read_small_file(root / "var/lib/nvpmodel/status") or "")
    return (
        find_mode_name(read_small_file(root / "etc/nvpmodel.conf") or "", int(status[1])) if status else None
    )


def find_mode_name(configuration: str, number: int) -> str:
    """Name of a mode by nvpmodel.conf: lines `< POWER_MODEL ID=2 NAME=MODE_15W >`."""
    found = re.search(rf"POWER_MODEL\s+ID={number}\s+NAME=(\S+)", configuration)
    return found[1] if found else f"mode {number}"


def read_clocks(root: Path) -> dict[str, dict[str, float]]:
    """For each CPU its present clock and the highest allowed, MHz."""
    out = {}
    for folder in sorted((root / CPU).glob("cpu[0-9]*/cpufreq")):
        files = {"now": "scaling_cur_freq", "max": "scaling_max_freq"}
        numbers = {name: read_small_file(folder / file) for name, file in files.items()}
        out[folder.parent.name] = {n: int(khz) / 1e3 for n, khz in numbers.items() if khz and khz.isdigit()}
    return out


def read_temperatures(root: Path | None = None) -> dict[str, float]:
    """Present temperature of each thermal zone, degrees Celsius."""
    out = {}
    for folder in sorted(((root or ROOT) / "sys/class/thermal").glob("thermal_zone*")):
        value = read_small_file(folder / "temp")
        if value and value.lstrip("-").isdigit():
            out[read_small_file(folder / "type") or folder.name] = int(value) / 1e3
    return out


def read_small_file(path: Path) -> str | None:
    """A small file's text; None where it cannot be read or is empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def compare_modes(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """How two power modes differ, in words; None where they do not."""
    if one["mode"] == other["mode"]:
        return None
    if (
        UNKNOWN in (one["mode"], other["mode"])
        or one["source"] != other["source"]
        or one["source"] == "nvpmodel"
    ):
        return f"{one['mode']} against {other['mode']}"
    names = [name for name in MODE_FILES if one["settings"].get(name) != other["settings"].get(name)]
    return (
        ", ".join(f"{n} {one['settings'].get(n)} against {other['settings'].get(n)}" for n in names) or None
    )


# ---------------------------------------------------------------------- memory and processor


def reset_peak() -> bool:
    """Resets the peak memory of this process; false where the system cannot."""
    try:
        (ROOT / "proc/self/clear_refs").write_text("5")
        return True
    except OSError:
        return False


def read_peak_mb() -> float:
    """Peak memory of this process since reset_peak, 2^20 bytes; since its start where that cannot be
    told.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", read_small_file(ROOT / "proc/self/status") or "")
    kilobytes = int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024


def name_processor() -> str:
    """Model name of the processor, as the system tells it."""
    text = read_small_file(ROOT / "proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def read_load() -> float | None:
    """Load average of the last minute; None where the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
