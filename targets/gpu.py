"""The GPU part of a hardware profile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from specc.errors import InputError
from specc.targets.tensorrt import LEAST_SM, Builder, parse_version
from specc.yaml_table import Table

FINISH = ("here", "device")


@dataclass(frozen=True)
class System:
    """One set of software that such a device comes with; `name` is JetPack's or TensorRT's version."""

    name: str
    tensorrt: str
    cuda: str
    glibc: str


@dataclass(frozen=True)
class Gpu:
    """What a plan and a builder need to know of a GPU."""

    sm: int
    """Compute capability, 10 x major + minor."""
    integrated: bool
    """Whether CPU and GPU share one memory."""
    reserve_mb: int
    """What is left to the system, out of the device's memory."""
    finish: str
    """"here": finished engines are built on any machine; "device": `specc finalize` builds them on the
    device.
    """
    nearest_sm: int
    """The SM for which a build on another machine checks the graphs."""
    systems: tuple[System, ...]
    """The first one is the one that is built for."""
    power_modes: tuple[str, ...]
    gaps: dict[str, str]
    is_rtx: bool

    @property
    def system(self) -> System:
        """The software that is built for."""
        return self.systems[0]

    @property
    def builder(self) -> Builder:
        """What its TensorRT can take."""
        return Builder(parse_version(self.system.tensorrt), self.sm, self.is_rtx, self.gaps)

    @property
    def precisions(self) -> tuple[str, ...]:
        """All precisions that work."""
        return tuple(name for name in LEAST_SM if self.builder.explain_lack(name) is None)

    def select_system(self, name: str) -> Gpu:
        """The same GPU with the system called `name`. Raises InputError where there is none."""
        found = next((system for system in self.systems if system.name == name), None)
        if found is None:
            names = [system.name for system in self.systems]
            near = get_close_matches(name, names, 1, 0.3)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"there is no system {name!r} of this target; {hint}there are {', '.join(names)}"
            )
        return replace(self, systems=(found, *(system for system in self.systems if system is not found)))


def read_gpu(table: Table, is_rtx: bool) -> Gpu:
    """The table `gpu`, checked. Raises RecipeError."""
    table.check_keys(
        "sm", "integrated", "reserve_mb", "finish", "nearest_sm", "systems", "power_modes", "gaps"
    )
    sm = table.get_integer("sm", None, 50, 200)
    return Gpu(
        sm=sm,
        integrated=bool(table.get_value("integrated", (False, True), False)),
        reserve_mb=table.get_integer("reserve_mb", 1024, 0, 1 << 20),
        finish=table.get_choice("finish", FINISH, "device"),
        nearest_sm=table.get_integer("nearest_sm", sm, 50, 200),
        systems=read_systems(table),
        power_modes=tuple(map(str, table.get("power_modes") or ())),
        gaps={key: str(text) for key, text in table.get_table("gaps").values.items()},
        is_rtx=is_rtx,
    )


def read_systems(table: Table) -> tuple[System, ...]:
    """The list `systems`, at least one. Raises RecipeError."""
    rows = table.get("systems")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Table) for row in rows):
        raise table.make_value_error(
            "systems", "a list is needed of mappings with name, tensorrt, cuda and glibc"
        )
    for row in rows:
        row.check_keys("name", "tensorrt", "cuda", "glibc")
    return tuple(
        System(*(row.get_text(key, None) for key in ("name", "tensorrt", "cuda", "glibc"))) for row in rows
    )
