"""Hardware profiles: one YAML a device, read into a frozen Hardware."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from specc.contracts.yaml_table import Table, read_table
from specc.errors import InputError, SpeccError
from specc.targets.gpu import Gpu, read_gpu

FOLDER = Path(__file__).resolve().parent
DIALECTS = ("specc-cpu", "ort", "onnx24")
BACKENDS = ("ort", "tensorrt", "tensorrt-rtx")


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
    """Sustained read bandwidth of main memory with `threads` threads; the peak of a GPU's."""
    gpu: Gpu | None = None
    also: tuple[str, ...] = ()
    """Further dialects that a build for this target gives a bundle of."""
    sources: tuple[tuple[str, str], ...] = ()
    """Where each figure is from: (key, address)."""
    verified: bool = True
    """Whether somebody has run a bundle on such a device."""

    def is_here(self) -> bool:
        """Whether this machine is such a device."""
        if platform.machine().lower() not in self.machines:
            return False
        return self.gpu is None or self.gpu.sm in sms_here()

    @property
    def budget_mb(self) -> int:
        """Memory that a bundle may use."""
        return self.memory_mb - (self.gpu.reserve_mb if self.gpu else 0)


def sms_here() -> set[int]:
    """Compute capability of the GPU that engines run on here; none where there is no driver."""
    from specc.runtime import gpu

    try:
        return {gpu().sm}
    except SpeccError:
        return set()


def names() -> tuple[str, ...]:
    """All profiles, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> Hardware:
    """The profile called `name`, or the YAML file at that path. Raises InputError or RecipeError.

    `name@system` picks another software of a GPU, such as `jetson-orin-nano-8gb@7.2` for JetPack 7.2.
    """
    name, _, system = name.partition("@")
    if system:
        return on_system(load(name), system)
    path = FOLDER / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        return read_hardware(Path(name))
    if name not in names():
        near = get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"no hardware target is called {name!r}; {hint}there are {', '.join(names())}")
    return read_hardware(path)


def on_system(hardware: Hardware, system: str) -> Hardware:
    """The same device with another software."""
    if hardware.gpu is None:
        raise InputError(f"the target {hardware.name!r} has no choice of systems; leave out '@{system}'")
    return replace(hardware, name=f"{hardware.name}@{system}", gpu=hardware.gpu.on(system))


def read_hardware(path: Path) -> Hardware:
    """Check one profile."""
    table = read_table(path)
    table.only(
        "title",
        "machines",
        "dialect",
        "backend",
        "threads",
        "memory_mb",
        "bandwidth_gb_s",
        "gpu",
        "also",
        "sources",
        "verified",
    )
    backend = table.choice("backend", BACKENDS, "ort")
    return Hardware(
        name=path.stem,
        title=table.text("title", None),
        machines=machines(table),
        dialect=table.choice("dialect", DIALECTS, "specc-cpu"),
        backend=backend,
        threads=table.integer("threads", None, 1, 1024),
        memory_mb=table.integer("memory_mb", None, 64, 1 << 24),
        bandwidth_gb_s=table.number("bandwidth_gb_s", None, 0.1, 1e5),
        gpu=read_gpu(table.table("gpu", required=True), backend == "tensorrt-rtx")
        if needs_gpu(table)
        else None,
        also=table.choices("also", DIALECTS, ()),
        sources=tuple((key, str(where)) for key, where in table.table("sources").values.items()),
        verified=bool(table.one_of("verified", (True, False), True)),
    )


def needs_gpu(table: Table) -> bool:
    """Whether a profile must have a GPU part."""
    return "gpu" in table or table.get("backend", "ort") != "ort"


def machines(table: Table) -> tuple[str, ...]:
    """Names of machines, lower case; at least one."""
    value = table.get("machines")
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise table.wrong("machines", "a list is needed of names as `uname -m` gives them")
    return tuple(item.lower() for item in value)
