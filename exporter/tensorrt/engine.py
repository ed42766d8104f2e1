"""Graph -> TensorRT engine, in a process of its own: a killed builder says at which stage, and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault, InputError
from specc.exporter.tensorrt import memory
from specc.exporter.tensorrt.profiles import make_profiles

BUILDER_COMMAND = (sys.executable, "-m", "specc.exporter.tensorrt.builder")
TAIL = 12
"""Lines of the builder's own messages that an error shows."""
Step = Callable[[str], None]


@dataclass(frozen=True)
class EngineJob:
    """One engine to build. Paths are absolute; `library` is "tensorrt" or "tensorrt-rtx"."""

    name: str
    graph: str
    plan: str
    library: str
    sm: int | None
    """Compute capability to build for; None: the GPU that is seen (TensorRT knows no other)."""
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
    """What the products of the decoder layers are promised to be; "": nobody asks."""


@dataclass(frozen=True)
class EngineResult:
    """What the builder says of its engine."""

    library: str
    tensorrt: str
    sm: int
    platform: str
    stripped: bool
    seconds: float
    peak_bytes: int
    types: dict[str, Any] = field(default_factory=dict)
    """In which types the layers run: tensorrt_layers.summary."""


def build_engine(
    job: EngineJob, step: Step | None = None, child: Sequence[str] = BUILDER_COMMAND
) -> EngineResult:
    """Write `job.plan`, whole or not at all; `step` hears the stages.

    Raises InputError (widths, a graph that the parser refuses), EnvironmentFault (too little memory, killed, library
    missing or failing).
    """
    make_profiles(job.widths, job.context, job.capacity)
    need = memory.estimate_build_bytes(count_weight_bytes(Path(job.graph)), job.integrated)
    here = memory.read_available()
    memory.check_memory(job.name, need, job.reserve, here)
    Path(job.plan).unlink(missing_ok=True)
    try:
        return run_builder(job, need, here, step or (lambda stage: None), child)
    except BaseException:
        Path(job.plan).unlink(missing_ok=True)
        partial_path(job.plan).unlink(missing_ok=True)
        raise


def count_weight_bytes(graph: Path) -> int:
    """Bytes of a graph's files; files that engines share count where they lie."""
    return sum(path.stat().st_size for path in graph.parent.glob("*.onnx.data")) + graph.stat().st_size


def partial_path(plan: str) -> Path:
    """Where a plan is written before it is whole."""
    return Path(f"{plan}.part")


def run_builder(
    job: EngineJob, need: int, here: memory.AvailableMemory, step: Step, child: Sequence[str]
) -> EngineResult:
    """Run the child and follow its lines: "stage NAME", "error TEXT", "refused TEXT", "made JSON"."""
    stage, said, made = "start", "", None
    with subprocess.Popen(
        child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None and run.stdout is not None and run.stderr is not None
        send_job(run, json.dumps(asdict(job)))
        for line in run.stdout:
            kind, _, rest = line.strip().partition(" ")
            if kind == "stage":
                stage = rest
                step(stage)
            elif kind in ("error", "refused"):
                said = f"{kind} {rest}"
            elif kind == "made":
                made = EngineResult(**json.loads(rest))
        messages = run.stderr.read()
    if run.returncode == 0 and made is not None and Path(job.plan).is_file():
        return made
    raise explain_failure(job, stage, said, messages, run.returncode, need, here)


def send_job(run: subprocess.Popen[str], text: str) -> None:
    """The job, to a child that may be dead already."""
    assert run.stdin is not None
    try:
        run.stdin.write(text)
        run.stdin.close()
    except BrokenPipeError:
        pass


def explain_failure(
    job: EngineJob, stage: str, said: str, messages: str, code: int, need: int, here: memory.AvailableMemory
) -> EnvironmentFault | InputError:
    """Why there is no engine, in one sentence."""
    kind, _, text = said.partition(" ")
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
