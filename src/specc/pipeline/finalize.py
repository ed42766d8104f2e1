"""On the device: the graphs of a bundle become engines of its own TensorRT, and the bundle is written anew."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specc import targets
from specc.atomic import io_errors, scratch_folder
from specc.contracts.bundle.manifest import Bundle, read_bundle, verify_bundle
from specc.contracts.bundle.writer import write_bundle
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.files import File, describe_file, hash_engine
from specc.contracts.model_spec import ModelSpec
from specc.contracts.scheme import Scheme
from specc.errors import EnvironmentFault, InputError
from specc.pipeline.clock import Clock, Reporter
from specc.pipeline.engines import TYPES, build_plan, finished, lend_files
from specc.runtime import Gpu, gpu
from specc.targets import Hardware
from specc.targets.tensorrt import Builder, parse_version


@dataclass(frozen=True)
class Finalized:
    """The bundle as it is now, and what each builder said."""

    bundle: Bundle
    engines: dict[str, dict[str, Any]]


def finalize(
    folder: Path, library: str | None = None, sm: int | None = None, reporter: Reporter | None = None
) -> Finalized:
    """Build every engine of the bundle for the GPU that is here; certificates of the old engines are void then.

    `library` and `sm` stand in for the device's own, to try the way on another machine. Raises InputError: a bundle
    without graphs, a graph that this TensorRT lacks operators for; EnvironmentFault, RuntimeFault: another GPU, no
    driver or an old one, a failed or killed build. The bundle stays as it was then.
    """
    bundle = verify_bundle(read_bundle(folder))
    hardware = hardware_of(bundle)
    kind = library or hardware.backend
    if sm is None:
        check_device(bundle, hardware, gpu())
    clock, made = Clock(reporter), {}
    with io_errors(f"finalizing {folder}"), scratch_folder(Path(f"{folder.resolve()}.plans")) as place:
        lend_files(bundle.folder, [file.path for file in bundle.files if ".onnx" in file.path], place)
        for name, part in bundle.manifest["engines"].items():
            check_graph(place / graph_of(part), kind, sm or part.get("sm") or gpu_sm(hardware))
            with clock.stage(f"engine {name}"):
                engine = engine_of(name, part, bundle.manifest["plan"])
                engine = replace(engine, scheme=scheme_of(name, bundle.manifest))
                made[name] = build_plan(engine, place, hardware, kind, sm, clock.steps(f"engine {name}"))
        return Finalized(rewrite(bundle, place, made), made)


def hardware_of(bundle: Bundle) -> Hardware:
    """The target that the bundle was built for. Raises InputError where its graphs are not for TensorRT."""
    plan = bundle.manifest["plan"]
    hardware = targets.load(str(plan["hardware"]))
    if plan.get("dialect") != "onnx24" or hardware.gpu is None:
        raise InputError(
            f"{bundle.folder} is for {hardware.name} with dialect {plan.get('dialect')}; it needs no engines"
        )
    missing = [
        name for name, part in bundle.manifest["engines"].items() if graph_of(part) not in paths_of(bundle)
    ]
    if missing:
        raise InputError(
            f"{bundle.folder} holds finished engines without graphs ({', '.join(missing)}); build it again"
        )
    return hardware


def gpu_sm(hardware: Hardware) -> int:
    """Compute capability of the target."""
    assert hardware.gpu is not None
    return hardware.gpu.sm


def paths_of(bundle: Bundle) -> set[str]:
    """All files of the bundle."""
    return {file.path for file in bundle.files}


def graph_of(part: Mapping[str, Any]) -> str:
    """The graph behind an engine."""
    return f"{Path(part['file']).stem}.onnx"


def check_device(bundle: Bundle, hardware: Hardware, here: Gpu) -> None:
    """Raise EnvironmentFault unless the GPU is of the kind that the bundle is for."""
    wanted = gpu_sm(hardware)
    if here.sm != wanted:
        found = f"this GPU ({here.name}) is SM {here.sm}"
        raise EnvironmentFault(
            f"{bundle.folder} is for SM {wanted} ({hardware.name}) and {found}; build for that target"
        )


def check_graph(graph: Path, kind: str, sm: int) -> None:
    """Raise InputError for operators that the TensorRT of this machine lacks."""
    from specc.exporter.tensorrt.library import open_library

    try:
        from specc.exporter.tensorrt.preflight import list_refusals
    except ModuleNotFoundError as error:
        raise EnvironmentFault(
            f"finalize needs the package {error.name!r}; pip install {error.name}"
        ) from error
    version = open_library(kind).version
    wrong = list_refusals(graph, Builder(parse_version(version), sm, kind == "tensorrt-rtx"))
    if wrong:
        raise InputError(f"{kind} {version} of this machine lacks what {graph.name} has: {'; '.join(wrong)}")


def engine_of(name: str, part: Mapping[str, Any], plan: Mapping[str, Any]) -> EnginePlan:
    """As much of the engine's plan as a builder needs, from the manifest."""
    spec = ModelSpec(
        "",
        part["vocab"],
        0,
        part["layers"],
        0,
        0,
        part["kv_heads"],
        part["head_dim"],
        0,
        0,
        False,
        (),
        None,
        0,
        "",
        "",
        None,
        None,
    )
    dtype = next(short for short, long in TYPES.items() if long == part["cache_dtype"])
    opset24 = part["cache_update"] == "in-place"
    return EnginePlan(
        name,
        spec,
        Scheme("", ""),
        part["layers"],
        plan["context"],
        part["capacity"],
        tuple(part["widths"]),
        plan["chunk"],
        "onnx24",
        None,
        dtype=dtype,
        opset24=opset24,
    )


def scheme_of(name: str, manifest: Mapping[str, Any]) -> Scheme:
    """What the engine's products are promised to be; a draft model may have a scheme of its own, which nobody wrote."""
    schemes = manifest["plan"].get("schemes", {})
    own = name == "target" or manifest["draft"].get("kind") == "early-exit"
    return Scheme(schemes.get("layers", ""), schemes.get("head", "")) if own else Scheme("", "")


def rewrite(bundle: Bundle, place: Path, made: Mapping[str, Mapping[str, Any]]) -> Bundle:
    """The bundle with plans beside its graphs: the manifest names them, its digest is another."""
    manifest = deepcopy(bundle.manifest)
    plans = {name: describe_file(place, f"{name}.plan") for name in made}
    kept = [file for file in bundle.files if file.path not in {plan.path for plan in plans.values()}]
    for name, facts in made.items():
        part = manifest["engines"][name]
        graph = part.get("graph_sha256", part["sha256"])
        part.pop("finalize", None)
        part.update(finished(engine_of(name, part, manifest["plan"]), graph, facts))
        part["sha256"] = hash_engine([plans[name]])
    manifest["files"] = [
        asdict(file) for file in sorted([*kept, *plans.values()], key=lambda file: file.path)
    ]
    manifest["provenance"]["finalized"] = {name: {k: facts[k] for k in TOLD} for name, facts in made.items()}
    sources: dict[str, tuple[Path, File]] = {file.path: (bundle.folder / file.path, file) for file in kept}
    sources.update({file.path: (place / file.path, file) for file in plans.values()})
    written, _ = write_bundle(bundle.folder, manifest, sources)
    return written


TOLD = ("library", "tensorrt", "sm", "platform")
"""What the manifest's provenance says of a builder; times would make each digest another."""
