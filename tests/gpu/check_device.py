"""Builds, gates and benches on whatever NVIDIA GPU is here, within eight minutes.

    python tests/gpu/check_device.py [--bundle FOLDER ...] [--out FOLDER] [--budget SECONDS] [--dry-run]

Needs a C compiler and cmake. Takes what it finds of nvcc (SPECC_NVCC or PATH), TensorRT's headers (TENSORRT_INCLUDE),
CUDA's headers (CUDA_INCLUDE) and bundles made elsewhere (--bundle, one or several; graphs are finalized here). Each
step says passed, failed, or skipped with its reason; `report.json` and logs lie under --out. Exit 0: no step failed;
1: one did; 3: nothing of a GPU could be tried. --dry-run only says which step could run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 480
LEAST = 10
"""Seconds without which no step is begun."""


@dataclass(frozen=True)
class Step:
    """One thing to try: what it lacks ("" for nothing), its commands, the seconds it may take, its environment."""

    name: str
    lacks: str
    commands: Sequence[Sequence[str]]
    limit: int
    environment: dict[str, str] = field(default_factory=dict)
    gpu: bool = True
    """Whether it runs something on the GPU."""


@dataclass(frozen=True)
class Result:
    """How a step ended; `said` is the last line that it printed, or why it was skipped."""

    name: str
    status: str
    seconds: float
    said: str


# ---------------------------------------------------------------------- what is here


def has_driver() -> bool:
    """Whether libcuda can be loaded."""
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


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
    build, driver, compiler = out / "build", has_driver(), nvcc()
    machine = f"/usr/include/{os.uname().machine}-linux-gnu"
    tensorrt = headers("TENSORRT_INCLUDE", "NvInferRuntime.h", ["/usr/include", machine])
    cuda = headers("CUDA_INCLUDE", "cuda_runtime_api.h", ["/usr/local/cuda/include"])
    tools = first((shutil.which("cmake") is None, "no cmake"), (shutil.which("cc") is None, "no C compiler"))
    gpu = first((bool(tools), tools), (not driver, "no NVIDIA driver (libcuda.so.1)"))
    configure = ["cmake", "-S", str(ROOT / "runtime"), "-B", str(build), "-DSPECC_TESTS=ON"]
    configure += [f"-DSPECC_NVCC={compiler}"] if compiler else []
    configure += [f"-DTENSORRT_INCLUDE={tensorrt}", f"-DCUDA_INCLUDE={cuda}"] if tensorrt and cuda else []
    own = {"SPECC_LIBRARY": str(build / "libspecc.so")}
    kernels = [str(build / "tests" / "test_gpu_judge"), str(build / "specc_judge.fatbin")]
    steps = [
        Step("build", tools, [configure, ["cmake", "--build", str(build), "--parallel", "8"]], 180, gpu=False),
        Step("doctor", gpu, [specc("doctor")], 60, own),
        Step("C tests", tools, [["ctest", "--test-dir", str(build), "-R", "gpu|judge|tensorrt"]], 60, gpu=False),
        Step("row kernels", first((bool(gpu), gpu), (compiler is None, "no nvcc (SPECC_NVCC)")),
             [[*kernels, "49152", "40"], [*kernels, "151936", "10"]], 60),
    ]  # fmt: skip
    for bundle in bundles:
        steps += bundle_steps(bundle, out, gpu, own)
    return steps or [Step("bundles", "none was named (--bundle)", [], 0)]


def bundle_steps(bundle: Path, out: Path, gpu: str, own: dict[str, str]) -> list[Step]:
    """Finalize where graphs are, gate, one generation, bench; on a copy, since bundles may be read-only."""
    manifest = bundle / "manifest.json"
    gone = first((bool(gpu), gpu), (not manifest.is_file(), f"{bundle} holds no manifest.json"))
    engine = json.loads(manifest.read_text())["engines"]["target"] if manifest.is_file() else {}
    copy, graphs = out / bundle.name, bool(engine.get("finalize"))
    prompt = ["-p", "Count from one to twenty.", "--seed", "1", "--max-new-tokens", "64", "--stats"]
    fresh = ["cp", "-rT", str(bundle), str(copy)]
    names = [f"{bundle.name}: {what}" for what in ("copy", "finalize", "gate", "run", "bench")]
    finalize = first((bool(gone), gone), (not graphs, "its engines are finished"))
    return [
        Step(names[0], gone, [fresh], 60, own, gpu=False),
        Step(names[1], finalize, [specc("finalize", str(copy))], 240, own),
        Step(names[2], gone, [specc("gate", str(copy))], 240, own),
        Step(names[3], gone, [specc("run", str(copy), *prompt)], 60, own),
        Step(names[4], gone, [specc("bench", str(copy), "--json")], 120, own),
    ]


def specc(*arguments: str) -> list[str]:
    """The command line of this source's package, or of the installed one."""
    return [sys.executable, "-m", "specc.cli", *arguments]


# ---------------------------------------------------------------------- running


def attempt(step: Step, left: float, logs: Path) -> Result:
    """Runs a step's commands within its limit and what is left of the budget."""
    if step.lacks:
        return Result(step.name, "skipped", 0.0, step.lacks)
    limit = min(step.limit, left)
    if limit < LEAST:
        return Result(step.name, "skipped", 0.0, f"{left:.0f} s are left of the budget")
    began = time.monotonic()
    log = logs / f"{step.name.replace(' ', '-').replace(':', '').replace('/', '-')}.txt"
    with log.open("w") as file:
        for command in step.commands:
            code = run(command, limit - (time.monotonic() - began), step.environment, file)
            if code:
                break
    said = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:300]
    status = {0: "passed", 77: "skipped", None: "failed"}.get(code, "failed")
    said = f"over {limit:.0f} s" if code is None else said
    return Result(step.name, status, round(time.monotonic() - began, 1), said)


def run(command: Sequence[str], limit: float, environment: dict[str, str], file: IO[str]) -> int | None:
    """Exit status of a command, None past its limit; its output goes to the file."""
    try:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, timeout=max(limit, 1), env={**os.environ, **environment}
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return int(done.returncode)


def check(steps: Sequence[Step], budget: float, logs: Path, tell: Callable[[Result], None]) -> list[Result]:
    """All steps in order; a failed build ends it, since everything else needs it."""
    began, results = time.monotonic(), list[Result]()
    for step in steps:
        results.append(attempt(step, budget - (time.monotonic() - began), logs))
        tell(results[-1])
        if step.name == "build" and results[-1].status == "failed":
            break
    return results


def verdict(steps: Sequence[Step], results: Sequence[Result]) -> int:
    """1 if a step failed, 3 if nothing ran on a GPU, else 0."""
    on_gpu = {step.name for step in steps if step.gpu}
    if any(result.status == "failed" for result in results):
        return 1
    return 0 if any(result.status == "passed" and result.name in on_gpu for result in results) else 3


def show(result: Result) -> None:
    print(f"{result.status:8} {result.seconds:6.1f} s  {result.name}: {result.said}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", action="append", default=[], type=Path)
    parser.add_argument("--out", type=Path, default=Path("device-check"))
    parser.add_argument("--budget", type=int, default=BUDGET)
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_args(arguments)
    out = chosen.out.resolve()
    steps = make_steps([bundle.resolve() for bundle in chosen.bundle], out)
    if chosen.dry_run:
        for step in steps:
            print(f"{'lacks' if step.lacks else 'ready':6} {step.name}{': ' + step.lacks if step.lacks else ''}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    results = check(steps, chosen.budget, out, show)
    (out / "report.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return verdict(steps, results)


if __name__ == "__main__":
    sys.exit(main())
