"""What is inside a bundle and whether it speculates here; what this machine has."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specc import targets
from specc.contracts.bundle.manifest import read_bundle, verify_bundle
from specc.contracts.reasons import explain_speculation
from specc.errors import SpeccError
from specc.inspection.this_machine import is_here
from specc.pipeline import cache
from specc.progress import Progress
from specc.version import __version__


def inspect(folder: Path, threads: int = 0, certificates: Path | None = None) -> dict[str, Any]:
    """The JSON of `specc inspect`: every file is checked, the verdict comes from the certificate in force."""
    from specc.runtime import Model

    bundle = verify_bundle(read_bundle(folder))
    manifest = bundle.manifest
    try:
        with Model.open(folder, threads=threads, certificates=certificates, trust=True) as model:
            info = model.info
            notes = certificate_notes(
                model, [folder / "certificates", *([certificates] if certificates else [])]
            )
        enabled, reasons = info.enabled, list(info.reasons)
        certificate = {**info.certificate.as_dict(), "device": info.device, "notes": notes}
    except SpeccError as error:
        enabled, reasons = False, ["uncertified-device"]
        certificate = nothing_here(manifest, error)
    sentence = explain_speculation(enabled, reasons, certificate, manifest["lint"], str(folder))
    return {
        "format": manifest["format"],
        "digest": bundle.digest,
        "name": manifest["name"],
        "speculation": {"enabled": enabled, "reasons": reasons, "why": sentence},
        "certificate": certificate,
        "lint": manifest["lint"],
        "plan": manifest["plan"],
        "types": {name: part["types"] for name, part in manifest["engines"].items() if part.get("types")},
        "quality": manifest["quality"],
        "files": [asdict(file) for file in bundle.files],
        "provenance": manifest["provenance"],
    }


def nothing_here(manifest: Mapping[str, Any], error: SpeccError) -> dict[str, Any]:
    """What stands for the certificate of a GPU's bundle that does not open here; any other error is raised again."""
    from specc.runtime import Certificate

    plan = manifest["plan"]
    if not is_for_gpu(manifest):
        raise error
    nothing = Certificate("none", 0, (), (), plan["threads"], 0, (), evidence=str(error))
    return {**nothing.as_dict(), "device": plan["hardware"], "notes": []}


def is_for_gpu(manifest: Mapping[str, Any]) -> bool:
    """Whether a GPU runs the target's engine."""
    engine = manifest["engines"]["target"]
    return engine["backend"] != "ort" or "provider" in engine


def certificate_notes(model: Any, folders: Sequence[Path]) -> list[dict[str, str]]:
    """Certificate files that are not for this engine on this device, and why."""
    files = sorted(file for place in folders if place.is_dir() for file in place.glob("*.json"))
    told = [(file, *model.certificate_note(file)) for file in files if not file.name.endswith(".report.json")]
    return [{"file": str(file), "note": note} for file, fits, note in told if not fits]


def gate(
    folder: Path,
    trials: int | None,
    seed: int,
    threads: int | Sequence[int],
    certificates: Path | None,
    progress: Progress,
    report: Path | None = None,
) -> dict[str, Any]:
    """The JSON of `specc gate`: all judges, a certificate for each thread count, reports beside them or in `report`."""
    from specc.gate.run import judge_bundle
    from specc.runtime import Model

    manifest = verify_bundle(read_bundle(folder)).manifest
    if is_for_gpu(manifest):
        Model.open(
            folder, trust=True
        ).close()  # an engine that does not fit this device says so before minutes of laws
    return judge_bundle(
        folder,
        trials=trials,
        seed=seed,
        threads=threads,
        certificates=certificates,
        report=report,
        progress=progress,
    )


def replay(
    folder: Path, record: Path, threads: int, certificates: Path | None, progress: Progress
) -> dict[str, Any]:
    """The JSON of `specc gate --replay`."""
    from specc.gate.replay import judge_record

    verify_bundle(read_bundle(folder))
    return judge_record(folder, record, threads, certificates, progress)


# ---------------------------------------------------------------------- doctor


NOT_RUN = "has not run on a GPU yet"
"""Said of what compiles and passes its tests over stand-ins here; see docs/data-center-gpu.md."""


@dataclass(frozen=True)
class Finding:
    """One thing that doctor looked at; `needed_for` is "run", "build" or "gpu" (bundles for NVIDIA GPUs)."""

    name: str
    value: str
    ok: bool
    needed_for: str


def doctor() -> list[Finding]:
    """Everything that running and building need, found or not."""
    findings = [
        Finding("specc", __version__, True, "run"),
        Finding("python", platform.python_version(), sys.version_info >= (3, 10), "run"),
        look("libspecc", "run", library_version),
        look("engine library", "run", engine_path),
        look("device", "run", device_name),
        look("CPU operators", "run", kernel_names),
        look("GPU", "gpu", gpu_name),
        look("TensorRT", "gpu", lambda: tensorrt_name(rtx=False)),
        look("TensorRT for RTX", "gpu", lambda: tensorrt_name(rtx=True)),
        look("TensorRT backend", "gpu", tensorrt_backend),
        look("GPU row kernels", "gpu", row_kernels),
        look("cache folder", "build", cache_space),
    ]
    return findings + [
        package(name) for name in cache.TOOLS if name not in ("onnxruntime", "tokenizers", "numpy")
    ]


def look(name: str, needed_for: str, find: Callable[[], str]) -> Finding:
    """One finding; an error is its value."""
    try:
        return Finding(name, find(), True, needed_for)
    except (SpeccError, OSError, ImportError) as error:
        return Finding(name, str(error), False, needed_for)


def library_version() -> str:
    """Path of libspecc; loading it checks version and layout."""
    from specc.runtime import library

    return str(library().path)


def engine_path() -> str:
    """Path of the engine library."""
    from specc.runtime import engine_library

    path = engine_library()
    if path is None:
        raise FileNotFoundError("no libonnxruntime was found; pip install onnxruntime")
    return f"{path} ({cache.version_of('onnxruntime')})"


def device_name() -> str:
    """This CPU, its cores and the hardware targets that fit."""
    from specc.runtime import device

    fitting = [name for name in targets.list_names() if is_here(targets.load(name))]
    return f"{device()[0]}, {os.cpu_count()} cores, targets: {', '.join(fitting) or 'none'}"


def kernel_names() -> str:
    """Which instructions our CPU operators use here; the scalar code is right everywhere, and slow."""
    from specc.runtime import kernels

    name = kernels()
    return f"{name} (no faster variant runs here and agrees with it)" if name == "scalar" else name


def gpu_name() -> str:
    """The GPU, its compute capability, its driver, its memory."""
    from specc.runtime import gpu

    found, mb = gpu(), 2**20
    shared = ", shared with the CPU" if found.integrated else ""
    return (
        f"{found.name}, SM {found.sm}, driver for CUDA {found.cuda // 1000}.{found.cuda % 1000 // 10}, "
        f"{found.memory // mb} MB{shared}, {found.available // mb} MB may be taken"
    )


def tensorrt_name(rtx: bool) -> str:
    """Version of the TensorRT library that would be loaded."""
    from specc.runtime.nvidia import tensorrt_library, tensorrt_version

    return f"{tensorrt_version(rtx=rtx)} ({tensorrt_library(rtx) or 'found by the loader'})"


def tensorrt_backend() -> str:
    """With which headers the backend was compiled, and what nobody has seen it do."""
    from specc.runtime.nvidia import tensorrt_headers

    return f"compiled with the headers of {tensorrt_headers()}; {NOT_RUN}"


def row_kernels() -> str:
    """The compiled CUDA kernels that judge a round's rows."""
    from specc.runtime.nvidia import row_kernels

    return f"{row_kernels()}; {NOT_RUN}"


def cache_space() -> str:
    """Where the cache is and how much room it has."""
    place = cache.root()
    place.mkdir(parents=True, exist_ok=True)
    return f"{place} ({shutil.disk_usage(place).free >> 20} MB free)"


def package(name: str) -> Finding:
    """One package of the extra `build`."""
    version = cache.version_of(name)
    return Finding(name, version or "not installed; pip install 'specc[build]'", version is not None, "build")
