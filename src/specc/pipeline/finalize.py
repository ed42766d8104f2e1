"""On the device: engines are built from a bundle's graphs by the device's own TensorRT, and the bundle is
written anew.
"""

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
from specc.pipeline.engine_parts import TYPES, engine_part
from specc.pipeline.engines import build_engine
from specc.pipeline.links import link_files
from specc.runtime import Gpu, gpu
from specc.targets import Hardware
from specc.targets.tensorrt import Builder, parse_version

PROVENANCE = ("library", "tensorrt", "sm", "platform")
"""What the manifest's provenance says of a builder; times would give each build another digest."""


@dataclass(frozen=True)
class Finalized:
    """The bundle with its engines, and what the builder says of each."""

    bundle: Bundle
    engines: dict[str, dict[str, Any]]


def finalize(
    folder: Path, library: str | None = None, sm: int | None = None, reporter: Reporter | None = None
) -> Finalized:
    """Build every engine of the bundle for the GPU that is here; certificates of the old engines are void
    then.

    library, sm: in place of the device's own, to try a build on another machine. Raises InputError (a bundle
    without graphs, a graph that this TensorRT lacks operators for), EnvironmentFault and RuntimeFault
    (another GPU, no driver or an old one, a failed or killed build); the bundle stays as it was then.
    """
    bundle = verify_bundle(read_bundle(folder))
    hardware = hardware_of(bundle)
    kind = library or hardware.backend
    if sm is None:
        check_device(bundle, hardware, gpu())
    clock, facts = Clock(reporter), {}
    with io_errors(f"finalizing {folder}"), scratch_folder(Path(f"{folder.resolve()}.plans")) as place:
        link_files(bundle.folder, [file.path for file in bundle.files if ".onnx" in file.path], place)
        for name, part in bundle.manifest["engines"].items():
            check_graph(place / graph_of(part), kind, sm or part.get("sm") or gpu_sm(hardware))
            stage = f"engine {name}"
            with clock.stage(stage):
                engine = replace(
                    engine_plan(name, part, bundle.manifest["plan"]), scheme=scheme_of(name, bundle.manifest)
                )
                facts[name] = build_engine(engine, place, hardware, kind, sm, clock.progress(stage))
        return Finalized(rewrite_bundle(bundle, place, facts), facts)


def hardware_of(bundle: Bundle) -> Hardware:
    """The target that the bundle was built for. Raises InputError where its graphs are not for TensorRT."""
    plan = bundle.manifest["plan"]
    hardware = targets.load(str(plan["hardware"]))
    if plan.get("dialect") != "onnx24" or hardware.gpu is None:
        raise InputError(
            f"{bundle.folder} is for {hardware.name} with dialect {plan.get('dialect')}; it needs no engines"
        )
    paths = {file.path for file in bundle.files}
    missing = [name for name, part in bundle.manifest["engines"].items() if graph_of(part) not in paths]
    if missing:
        raise InputError(
            f"{bundle.folder} holds finished engines without graphs ({', '.join(missing)}); build it again"
        )
    return hardware


def gpu_sm(hardware: Hardware) -> int:
    """Compute capability of the target."""
    assert hardware.gpu is not None
    return hardware.gpu.sm


def graph_of(part: Mapping[str, Any]) -> str:
    """File name of the graph that an engine is built from."""
    return f"{Path(part['file']).stem}.onnx"


def check_device(bundle: Bundle, hardware: Hardware, device: Gpu) -> None:
    """Raise EnvironmentFault unless the GPU is of the kind that the bundle is for."""
    wanted = gpu_sm(hardware)
    if device.sm != wanted:
        actual = f"this GPU ({device.name}) is SM {device.sm}"
        raise EnvironmentFault(
            f"{bundle.folder} is for SM {wanted} ({hardware.name}) and {actual}; build for that target"
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
    missing = list_refusals(graph, Builder(parse_version(version), sm, kind == "tensorrt-rtx"))
    if missing:
        raise InputError(
            f"{kind} {version} of this machine lacks what {graph.name} has: {'; '.join(missing)}"
        )


def engine_plan(name: str, part: Mapping[str, Any], plan: Mapping[str, Any]) -> EnginePlan:
    """As much of the engine's plan as a builder needs, from the manifest."""
    spec = ModelSpec(
        architecture="",
        vocab=part["vocab"],
        token_ids=0,
        layers=part["layers"],
        hidden=0,
        heads=0,
        kv_heads=part["kv_heads"],
        head_dim=part["head_dim"],
        intermediate=0,
        max_context=0,
        tied=False,
        eos=(),
        bos=None,
        parameters=0,
        id_map_sha256="",
        weights_sha256="",
        revision=None,
        licence=None,
    )
    return EnginePlan(
        name=name,
        spec=spec,
        scheme=Scheme("", ""),
        layers=part["layers"],
        context=plan["context"],
        capacity=part["capacity"],
        widths=tuple(part["widths"]),
        chunk=plan["chunk"],
        dialect="onnx24",
        shares=None,
        dtype=next(short for short, long in TYPES.items() if long == part["cache_dtype"]),
        opset24=part["cache_update"] == "in-place",
    )


def scheme_of(name: str, manifest: Mapping[str, Any]) -> Scheme:
    """The scheme of the engine's products; empty for a draft model, whose own scheme the manifest does not
    hold.
    """
    schemes = manifest["plan"].get("schemes", {})
    of_target = name == "target" or manifest["draft"].get("kind") == "early-exit"
    return Scheme(schemes.get("layers", ""), schemes.get("head", "")) if of_target else Scheme("", "")


def rewrite_bundle(bundle: Bundle, place: Path, facts: Mapping[str, Mapping[str, Any]]) -> Bundle:
    """The bundle with plans beside its graphs: the manifest names them, its digest is another."""
    manifest = deepcopy(bundle.manifest)
    plans = {name: describe_file(place, f"{name}.plan") for name in facts}
    kept = [file for file in bundle.files if file.path not in {plan.path for plan in plans.values()}]
    for name, built in facts.items():
        part = manifest["engines"][name]
        graph = part.get("graph_sha256", part["sha256"])
        part.pop("finalize", None)
        part.update(engine_part(engine_plan(name, part, manifest["plan"]), graph, built))
        part["sha256"] = hash_engine([plans[name]])
    files = sorted([*kept, *plans.values()], key=lambda file: file.path)
    manifest["files"] = [asdict(file) for file in files]
    manifest["provenance"]["finalized"] = {
        name: {key: built[key] for key in PROVENANCE} for name, built in facts.items()
    }
    sources: dict[str, tuple[Path, File]] = {file.path: (bundle.folder / file.path, file) for file in kept}
    sources.update({file.path: (place / file.path, file) for file in plans.values()})
    written, _ = write_bundle(bundle.folder, manifest, sources)
    return written
