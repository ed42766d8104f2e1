"""Builds, gates and benches on whatever NVIDIA GPU is here, within eight minutes.

    python tests/gpu/check_device.py [--bundle FOLDER ...] [--out FOLDER] [--budget SECONDS] [--dry-run]

Runs from a checkout: nothing of specc needs to be installed, and neither torch nor a network is needed. Needs
a C compiler, cmake, make or ninja, and the packages of PACKAGES. Takes what it finds of nvcc (SPECC_NVCC or
PATH), TensorRT's headers (TENSORRT_INCLUDE), CUDA's headers (CUDA_INCLUDE) and bundles made elsewhere
(--bundle, one or several; graphs are finalized here). Each step says passed, failed, or skipped with its
reason; `report.json` and logs lie under --out. Exit 0: no step failed; 1: one did; 3: nothing of a GPU could
be tried. --dry-run only says which step could run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # a script and its helper; nothing is installed
from device_steps import Result, Step, attempt, check, verdict  # noqa: E402

__all__ = ["Result", "Step", "attempt", "check", "main", "make_steps", "verdict"]

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 480
PACKAGES = {
    "cffi": "cffi",
    "click": "click",
    "jinja2": "jinja2",
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "rich": "rich",
    "tokenizers": "tokenizers",
    "yaml": "PyYAML",
}
"""What the command line imports, and under which name pip has it."""
FOLDERS = {
    "exporter": "exporter",
    "calib": "calib",
    "targets": "targets",
    "recipes": "recipes",
    "runtime": "runtime",
}
"""Where the parts of the package lie in a checkout."""


# ---------------------------------------------------------------------- what is here


def has_driver() -> bool:
    """Whether libcuda can be loaded."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def no_driver() -> str:
    """Why no step on the GPU can run; "" where one can."""
    if has_driver():
        return ""
    here = shutil.which("nvidia-smi") is not None
    hint = "; nvidia-smi is here, so add the folder of libcuda.so.1 to LD_LIBRARY_PATH" if here else ""
    return f"no NVIDIA driver (libcuda.so.1){hint}"


def missing(names: dict[str, str]) -> str:
    """Packages that this Python lacks, as pip's arguments; "" for none."""
    return " ".join(wheel for name, wheel in names.items() if importlib.util.find_spec(name) is None)


def lacking_packages(names: dict[str, str]) -> str:
    """The reason, in words."""
    gone = missing(names)
    return f"{sys.executable} lacks packages: pip install {gone}" if gone else ""


def nvcc() -> str | None:
    """A CUDA compiler."""
    return os.environ.get("SPECC_NVCC") or shutil.which("nvcc") or existing("/usr/local/cuda/bin/nvcc")


def headers(variable: str, name: str, places: Sequence[str]) -> str | None:
    """The folder of a header, from the environment or the usual places."""
    folders = [os.environ[variable]] if variable in os.environ else list(places)
    return next((folder for folder in folders if Path(folder, name).is_file()), None)


def existing(path: str) -> str | None:
    return path if Path(path).exists() else None


def first(*reasons: tuple[bool, str]) -> str:
    """The first reason whose condition holds; "" if none does."""
    return next((reason for holds, reason in reasons if holds), "")


# ---------------------------------------------------------------------- the steps


def make_steps(bundles: Sequence[Path], out: Path) -> list[Step]:
    """Everything that could be tried here, in order; those that lack something say what."""
    build, compiler = out / "build", nvcc()
    tensorrt, cuda = find_headers()
    tools, driver, python = lacking_tools(tensorrt is not None), no_driver(), lacking_packages(PACKAGES)
    gpu = first((bool(tools), tools), (bool(driver), driver))
    line = first((bool(gpu), gpu), (bool(python), python))
    backend = first((bool(python), python), (bool(tools), tools), *lacking_headers(tensorrt, cuda))
    configure = ["cmake", "-S", str(ROOT / "runtime"), "-B", str(build), "-DSPECC_TESTS=ON"]
    configure += [f"-DSPECC_NVCC={compiler}"] if compiler else []
    configure += [f"-DTENSORRT_INCLUDE={tensorrt}", f"-DCUDA_INCLUDE={cuda}"] if tensorrt and cuda else []
    make = ["cmake", "--build", str(build), "--parallel", "8", "--target", *TARGETS]
    make += ["specc_judge"] if compiler else []
    make += ["stub_tensorrt"] if tensorrt and cuda else []
    own = environment(out)
    kernels = [str(build / "tests" / "test_gpu_judge"), str(build / "specc_judge.fatbin")]
    judge = first((bool(gpu), gpu), (compiler is None, "no nvcc: set SPECC_NVCC to its path"))
    steps = [
        Step("build", tools, [configure, make], 240, gpu=False),
        Step("row kernels", judge, [[*kernels, "49152", "40"], [*kernels, "151936", "10"]], 60),
        Step(
            "C tests", tools, [["ctest", "--test-dir", str(build), "-R", "gpu|judge|tensorrt"]], 60, gpu=False
        ),
        Step("TensorRT backend", backend, [[sys.executable, "-c", HEADERS]], 30, own, gpu=False),
        Step("doctor", line, [specc("doctor")], 60, own),
    ]
    for bundle in bundles:
        steps += bundle_steps(bundle, out, line, own)
    tests = first((bool(line), line), (missing({"pytest": "pytest"}) != "", "no pytest: pip install pytest"))
    named = os.pathsep.join(str(out / bundle.name) for bundle in bundles)
    own = {**own, "SPECC_GPU_BUNDLES": named, "SPECC_KERNELS": str(build) if compiler else ""}
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-m",
        "gpu",
        str(ROOT / "tests" / "gpu" / "test_device.py"),
    ]
    return [*steps, Step("gpu tests", tests, [suite], 120, own)]


TARGETS = (
    "specc",
    "specc_controls",
    "test_judge",
    "test_gpu",
    "test_gpu_judge",
    "test_tensorrt",
    "stub_cuda",
    "stub_version",
)
"""Of the build, what this script runs."""
HEADERS = """
from specc.runtime.nvidia import read_tensorrt_headers
print('compiled with the headers of', read_tensorrt_headers())
"""


def find_headers() -> tuple[str | None, str | None]:
    """Folders of TensorRT's and of CUDA's headers."""
    machine = f"/usr/include/{os.uname().machine}-linux-gnu"
    tensorrt = headers("TENSORRT_INCLUDE", "NvInferRuntime.h", ["/usr/include", machine])
    return tensorrt, headers(
        "CUDA_INCLUDE", "cuda_runtime_api.h", ["/usr/local/cuda/include", "/usr/include"]
    )


def lacking_headers(tensorrt: str | None, cuda: str | None) -> list[tuple[bool, str]]:
    """Why the backend would not be compiled."""
    no_tensorrt = "no NvInferRuntime.h: set TENSORRT_INCLUDE to the folder of TensorRT's headers"
    no_cuda = "no cuda_runtime_api.h: set CUDA_INCLUDE to the folder of CUDA's headers"
    return [(tensorrt is None, no_tensorrt), (cuda is None, no_cuda)]


def lacking_tools(needs_cxx: bool) -> str:
    """What compiling lacks."""
    names = {"cmake": "cmake", "ctest": "cmake", "cc": "a C compiler"}
    names |= {"c++": "a C++ compiler"} if needs_cxx else {}
    gone = [what for name, what in names.items() if shutil.which(name) is None]
    maker = shutil.which("make") or shutil.which("ninja")
    gone += [] if maker else ["make or ninja"]
    return (
        f"no {' and no '.join(dict.fromkeys(gone))}: install {'them' if len(gone) > 1 else 'it'}"
        if gone
        else ""
    )


def environment(out: Path) -> dict[str, str]:
    """Variables under which this checkout is the package `specc`, with the library that is built here."""
    path = [str(out / "package"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "SPECC_LIBRARY": str(out / "build" / "libspecc.so"),
        "PYTHONPATH": os.pathsep.join(path),
        "SPECC_CACHE": str(out / "cache"),
        "PYTHONUNBUFFERED": "1",
    }


def link_package(out: Path) -> None:
    """`out/package/specc`: links to the parts of the package, as an install would lay them."""
    place = out / "package" / "specc"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for source in (ROOT / "src" / "specc").iterdir():
        (place / source.name).symlink_to(source)
    for name, folder in FOLDERS.items():
        (place / name).symlink_to(ROOT / folder)


def target_of(bundle: Path) -> dict[str, object] | str:
    """The target's entry in a bundle's manifest, or what is wrong with the folder."""
    try:
        found = json.loads((bundle / "manifest.json").read_text())["engines"]["target"]
    except OSError:
        return f"{bundle} holds no manifest.json: name a bundle's folder"
    except (ValueError, KeyError, TypeError):
        return f"{bundle}/manifest.json is damaged: copy the bundle again"
    return found if isinstance(found, dict) else f"{bundle}/manifest.json is damaged: copy the bundle again"


def bundle_steps(bundle: Path, out: Path, line: str, own: dict[str, str]) -> list[Step]:
    """Finalize where graphs are, gate, one generation, bench; on a copy, since bundles may be read-only."""
    engine = target_of(bundle)
    wrong = engine if isinstance(engine, str) else ""
    entry: dict[str, object] = {} if isinstance(engine, str) else engine
    gone = first((bool(wrong), wrong), (bool(line), line))
    copy, graphs = out / bundle.name, bool(entry.get("finalize"))
    prompt = ["-p", "Count from one to twenty.", "--seed", "1", "--max-new-tokens", "64", "--stats"]
    fresh = [["rm", "-rf", str(copy)], ["cp", "-rT", str(bundle), str(copy)]]
    onnx = lacking_packages({"onnx": "onnx"})
    finalize = first((bool(gone), gone), (not graphs, "its engines are finished"), (bool(onnx), onnx))
    return [
        Step(f"{bundle.name}: copy", gone, fresh, 60, own, gpu=False),
        Step(f"{bundle.name}: finalize", finalize, [specc("finalize", "--no-gate", str(copy))], 300, own),
        Step(f"{bundle.name}: run", gone, [specc("run", str(copy), *prompt)], 60, own),
        Step(f"{bundle.name}: gate", gone, [specc("gate", str(copy))], 240, own),
        Step(f"{bundle.name}: bench", gone, [specc("bench", str(copy), "--quick")], 120, own),
    ]


def specc(*arguments: str) -> list[str]:
    """The command line of this checkout's package."""
    return [sys.executable, "-m", "specc", *arguments]


# ---------------------------------------------------------------------- the command


def show(result: Result) -> None:
    print(f"{result.status:8} {result.seconds:6.1f} s  {result.name}: {result.said}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", action="append", default=[], type=Path)
    parser.add_argument("--out", type=Path, default=Path("device-check"))
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args(arguments)
    out = chosen.out.resolve()
    steps = make_steps([bundle.resolve() for bundle in chosen.bundle], out)
    if chosen.dry_run:
        for step in steps:
            print(
                f"{'lacks' if step.lacks else 'ready':6} {step.name}{': ' + step.lacks if step.lacks else ''}"
            )
        return 0
    out.mkdir(parents=True, exist_ok=True)
    link_package(out)
    results: list[Result] = []

    def report(result: Result) -> None:
        """On the screen and in the report, which is whole after every step."""
        show(result)
        results.append(result)
        (out / "report.json").write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")

    return verdict(steps, check(steps, chosen.budget, out, report))


if __name__ == "__main__":
    sys.exit(main())
