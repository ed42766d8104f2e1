"""Hardware profiles: one YAML a device, read into a frozen Hardware."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from specc.errors import InputError
from specc.marked import Table, read_table

FOLDER = Path(__file__).resolve().parent
DIALECTS = ("specc-cpu", "ort")
BACKENDS = ("ort",)


@dataclass(frozen=True)
class Hardware:
    """What a plan needs to know of a device."""

    name: str
    title: str
    machines: tuple[str, ...]
    """Names that `uname -m` gives on such a device."""
    dialect: str
    backend: str
    threads: int
    memory_mb: int
    bandwidth_gb_s: float
    """Sustained read bandwidth of main memory with `threads` threads."""

    def is_here(self) -> bool:
        """Whether this machine is such a device."""
        return platform.machine().lower() in self.machines


def names() -> tuple[str, ...]:
    """All profiles, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> Hardware:
    """The profile called `name`, or the YAML file at that path. Raises InputError or RecipeError."""
    path = FOLDER / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        return read_hardware(Path(name))
    if name not in names():
        near = get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"no hardware target is called {name!r}; {hint}there are {', '.join(names())}")
    return read_hardware(path)


def read_hardware(path: Path) -> Hardware:
    """Check one profile."""
    table = read_table(path)
    table.only("title", "machines", "dialect", "backend", "threads", "memory_mb", "bandwidth_gb_s")
    return Hardware(
        name=path.stem,
        title=table.text("title", None),
        machines=machines(table),
        dialect=table.choice("dialect", DIALECTS, "specc-cpu"),
        backend=table.choice("backend", BACKENDS, "ort"),
        threads=table.integer("threads", None, 1, 1024),
        memory_mb=table.integer("memory_mb", None, 64, 1 << 24),
        bandwidth_gb_s=table.number("bandwidth_gb_s", None, 0.1, 1e5),
    )


def machines(table: Table) -> tuple[str, ...]:
    """Names of machines, lower case; at least one."""
    value = table.get("machines")
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise table.wrong("machines", "a list is needed of names as `uname -m` gives them")
    return tuple(item.lower() for item in value)
