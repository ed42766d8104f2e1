"""Hardware profiles: one YAML a device, read into a frozen Hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from specc.errors import InputError
from specc.targets.gpu import Gpu, read_gpu
from specc.yaml_table import Table, read_table

FOLDER = Path(__file__).resolve().parent
DIALECTS = ("specc-cpu", "ort", "onnx24")
BACKENDS = ("ort", "tensorrt", "tensorrt-rtx")
KEYS = (
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

    def matches(self, machine: str, sm: int | None) -> bool:
        """Whether a machine is such a device: its name by `uname -m`, its GPU's compute capability, None
        without GPU.
        """
        return machine.lower() in self.machines and (self.gpu is None or self.gpu.sm == sm)

    @property
    def budget_mb(self) -> int:
        """Memory that a bundle may use."""
        return self.memory_mb - (self.gpu.reserve_mb if self.gpu else 0)


def list_names() -> tuple[str, ...]:
    """Names of all profiles, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def load(name: str) -> Hardware:
    """The profile called `name`, or the YAML file at that path. Raises InputError or RecipeError.

    `name@system` picks another software of a GPU, such as `jetson-orin-nano-8gb@7.2` for JetPack 7.2.
    """
    name, _, system = name.partition("@")
    if system:
        return select_system(load(name), system)
    path = FOLDER / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        return read_hardware(Path(name))
    if name not in list_names():
        near = get_close_matches(name, list_names(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"no hardware target is called {name!r}; {hint}there are {', '.join(list_names())}")
    return read_hardware(path)


def select_system(hardware: Hardware, system: str) -> Hardware:
    """The same device with another software."""
    if hardware.gpu is None:
        raise InputError(f"the target {hardware.name!r} has no choice of systems; leave out '@{system}'")
    return replace(hardware, name=f"{hardware.name}@{system}", gpu=hardware.gpu.select_system(system))


def read_hardware(path: Path) -> Hardware:
    """A profile, checked. Raises InputError or RecipeError."""
    table = read_table(path)
    table.check_keys(*KEYS)
    backend = table.get_choice("backend", BACKENDS, "ort")
    gpu = None
    if needs_gpu(table):
        gpu = read_gpu(table.get_table("gpu", required=True), backend == "tensorrt-rtx")
    return Hardware(
        name=path.stem,
        title=table.get_text("title", None),
        machines=read_machines(table),
        dialect=table.get_choice("dialect", DIALECTS, "specc-cpu"),
        backend=backend,
        threads=table.get_integer("threads", None, 1, 1024),
        memory_mb=table.get_integer("memory_mb", None, 64, 1 << 24),
        bandwidth_gb_s=table.get_number("bandwidth_gb_s", None, 0.1, 1e5),
        gpu=gpu,
        also=table.get_choices("also", DIALECTS, ()),
        sources=tuple((key, str(where)) for key, where in table.get_table("sources").values.items()),
        verified=bool(table.get_value("verified", (True, False), True)),
    )


def needs_gpu(table: Table) -> bool:
    """Whether a profile must have a GPU part."""
    return "gpu" in table or table.get("backend", "ort") != "ort"


def read_machines(table: Table) -> tuple[str, ...]:
    """Names of machines, lower case; at least one."""
    value = table.get("machines")
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise table.make_value_error("machines", "a list is needed of names as `uname -m` gives them")
    return tuple(item.lower() for item in value)
