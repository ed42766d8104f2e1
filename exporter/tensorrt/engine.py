"""Graph -> TensorRT engine, built by a child process: if it is killed, the error names the stage, and no
file stays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault, InputError
from specc.exporter.tensorrt import memory
from specc.exporter.tensorrt.profiles import make_profiles
from specc.progress import Progress, no_progress

BUILDER_COMMAND = (sys.executable, "-m", "specc.exporter.tensorrt.builder")
TAIL = 12
"""Lines of the builder's messages that an error shows."""
STAGES = ("load", "parse", "build", "write")
"""Stages of the builder, in their order."""


@dataclass(frozen=True)
class EngineJob:
    """One engine to build. Paths are absolute; `library` is "tensorrt" or "tensorrt-rtx"."""

    name: str
    graph: str
    plan: str
    library: str
    sm: int | None
    """Compute capability to build for; None: that of the GPU here (TensorRT builds for no other)."""
    widths: tuple[int, ...]
    context: int
    capacity: int
    stripped: bool = False
    """Leave the weights out of the plan; a runtime refits them from the graph."""
    timing_cache: str | None = None
    integrated: bool = False
    reserve: int = 0
    """Bytes that must stay free for the system."""
    scheme: str = ""
    """Scheme of the decoder layers' products, to find layers of another type; "": not checked."""


@dataclass(frozen=True)
class EngineResult:
    """What the builder reports of its engine."""

    library: str
    tensorrt: str
    sm: int
    platform: str
    stripped: bool
    seconds: float
    peak_bytes: int
    types: dict[str, Any] = field(default_factory=dict)
    """The types in which the layers run: layers.summarize_layers."""


def build_engine(
    job: EngineJob, progress: Progress = no_progress, child: Sequence[str] = BUILDER_COMMAND
) -> EngineResult:
    """Write `job.plan`, whole or not at all, by running the command `child`.

    Raises InputError (widths, a graph that the parser refuses), EnvironmentFault (too little memory, killed,
    library missing or failing).
    """
    make_profiles(job.widths, job.context, job.capacity)
    need = memory.estimate_build_bytes(count_weight_bytes(Path(job.graph)), job.integrated)
    here = memory.read_available()
    memory.check_memory(job.name, need, job.reserve, here)
    Path(job.plan).unlink(missing_ok=True)
    try:
        return run_builder(job, need, here, progress, child)
    except BaseException:
        Path(job.plan).unlink(missing_ok=True)
        partial_path(job.plan).unlink(missing_ok=True)
        raise


def count_weight_bytes(graph: Path) -> int:
    """Bytes of a graph and of all weight files in its folder."""
    return sum(path.stat().st_size for path in graph.parent.glob("*.onnx.data")) + graph.stat().st_size


def partial_path(plan: str) -> Path:
    """The file that is written and then renamed to `plan`."""
    return Path(f"{plan}.part")


def run_builder(
    job: EngineJob, need: int, here: memory.AvailableMemory, progress: Progress, child: Sequence[str]
) -> EngineResult:
    """Run the child and read its lines: "stage NAME", "error TEXT", "refused TEXT", "made JSON"."""
    stage, reason, result = "start", "", None
    with subprocess.Popen(
        child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None and run.stdout is not None and run.stderr is not None
        send_job(run, json.dumps(asdict(job)))
        for line in run.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "stage":
                stage = rest
                progress(stage, STAGES.index(stage) / len(STAGES) if stage in STAGES else 0.0)
            elif kind in ("error", "refused"):
                reason = f"{kind} {rest}"
            elif kind == "made":
                result = EngineResult(**json.loads(rest))
        messages = run.stderr.read()
    if run.returncode == 0 and result is not None and Path(job.plan).is_file():
        return result
    raise explain_failure(job, stage, reason, messages, run.returncode, need, here)


def send_job(run: subprocess.Popen[str], text: str) -> None:
    """Write the job to the child, which may have ended already."""
    assert run.stdin is not None
    try:
        run.stdin.write(text)
        run.stdin.close()
    except BrokenPipeError:
        pass


def explain_failure(
    job: EngineJob, stage: str, reason: str, messages: str, code: int, need: int, here: memory.AvailableMemory
) -> EnvironmentFault | InputError:
    """The error that says why there is no engine."""
    kind, _, text = reason.partition(" ")
    if kind == "refused":
        return InputError(f"{job.library} refuses the graph of {job.name}: {text}")
    if kind == "error":
        return EnvironmentFault(f"building {job.name} failed at stage {stage!r}: {text}")
    memory = f"it needs about {need >> 20} MB and {here.available >> 20} MB were available"
    if code < 0:
        advice = "close other programs, add swap, or use a smaller scheme"
        return EnvironmentFault(
            f"building {job.name} was killed (signal {-code}) at stage {stage!r}: {memory}; {advice}"
        )
    last = " ".join(messages.strip().splitlines()[-TAIL:]) or "it said nothing"
    return EnvironmentFault(
        f"building {job.name} ended with code {code} at stage {stage!r} ({memory}): {last}"
    )
