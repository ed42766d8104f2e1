"""The child process that builds one engine: reads a job as JSON, writes stages and the result as lines."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specc.errors import SpeccError
from specc.exporter.tensorrt.engine import EngineJob, EngineResult, partial_path
from specc.exporter.tensorrt.layers import read_engine_layers, read_network_layers, summarize_layers
from specc.exporter.tensorrt.library import Library, open_library
from specc.exporter.tensorrt.profiles import Profile, make_profiles

SERIOUS = 2
"""Severities below this one are shown: internal errors and errors."""


class GraphRefused(Exception):
    """The parser refuses the graph."""


def main() -> int:
    """Build one engine; returns 0 when the plan is written."""
    lines, sys.stdout = sys.stdout, sys.stderr  # a library that prints does not write into the lines

    def send(text: str) -> None:
        lines.write(" ".join(text.split()) + "\n")
        lines.flush()

    fields = json.load(sys.stdin)
    job = EngineJob(**{**fields, "widths": tuple(fields["widths"])})
    started = time.monotonic()
    try:
        result = build_plan(job, started, send)
    except GraphRefused as error:
        send(f"refused {error}")
        return 1
    except (SpeccError, RuntimeError, MemoryError, OSError) as error:
        send(f"error {error}")
        return 1
    send(f"made {json.dumps(result.__dict__)}")
    return 0


def build_plan(job: EngineJob, started: float, send: Callable[[str], None]) -> EngineResult:
    """Load the library, parse the graph, build the engine, write the plan.

    `send` writes a line for each stage.
    """
    send("stage load")
    library = open_library(job.library)
    log = make_logger(library)
    builder = library.api.Builder(log)
    send("stage parse")
    flag = library.api.NetworkDefinitionCreationFlag
    # later versions have strongly typed networks only, and no flag
    flags = 1 << int(flag.STRONGLY_TYPED) if hasattr(flag, "STRONGLY_TYPED") else 0
    network = builder.create_network(flags)
    parse_graph(library, network, log, job.graph)
    config, sm = configure(library, builder, job)
    send("stage build")
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError(log.first or "the builder gave no engine and no reason")
    send("stage write")
    write_plan(job.plan, engine)
    save_timing_cache(config, job)
    peak, types = read_peak_bytes(), read_layer_types(library, log, network, engine, job.scheme)
    system = f"{platform.system().lower()}-{platform.machine().lower()}"
    seconds = round(time.monotonic() - started, 2)
    return EngineResult(job.library, library.version, sm, system, job.stripped, seconds, peak, types)


def read_layer_types(library: Library, log: Any, network: Any, plan: Any, scheme: str) -> dict[str, Any]:
    """Types of the layers, from the engine; from the network where no GPU is here to load the engine on."""
    try:
        from specc.runtime import gpu

        gpu()
        engine = library.api.Runtime(log).deserialize_cuda_engine(plan)
        text = engine.create_engine_inspector().get_engine_information(
            library.api.LayerInformationFormat.JSON
        )
        return summarize_layers(read_engine_layers(text), "engine", scheme)
    except (SpeccError, AttributeError, RuntimeError, TypeError, ValueError):
        return summarize_layers(read_network_layers(network), "network", scheme)


def read_peak_bytes() -> int:
    """Peak memory of this process (VmHWM; the peak of getrusage would include the parent's at the fork)."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(rows["VmHWM"].split()[0])


def make_logger(library: Library) -> Any:
    """A logger that shows errors only and keeps the first one."""

    class Log(library.api.ILogger):  # type: ignore[name-defined,misc]
        first = ""

        def log(self, severity: Any, message: str) -> None:
            """One message of the library."""
            if int(severity) < SERIOUS:
                self.first = self.first or message
                sys.stderr.write(message + "\n")

    return Log()


def parse_graph(library: Library, network: Any, log: Any, graph: str) -> None:
    """Parse the graph file into `network`. Raises GraphRefused with all errors of the parser."""
    parser = library.api.OnnxParser(network, log)
    if parser.parse_from_file(graph):
        return
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    texts = {f"{error.desc()} (node {error.node()}, {error.node_name()})" for error in errors}
    raise GraphRefused("; ".join(sorted(texts)) or log.first)


def configure(library: Library, builder: Any, job: EngineJob) -> tuple[Any, int]:
    """The builder's settings and the compute capability that the engine is for."""
    api, config = library.api, builder.create_builder_config()
    for profile in make_profiles(job.widths, job.context, job.capacity):
        config.add_optimization_profile(fill_profile(builder.create_optimization_profile(), profile))
    if hasattr(api, "ProfilingVerbosity"):
        # the engine then reports the types of its layers
        config.profiling_verbosity = api.ProfilingVerbosity.DETAILED
    if job.stripped:
        config.set_flag(api.BuilderFlag.STRIP_PLAN)
    if len(job.widths) == 1 and hasattr(api.BuilderFlag, "DISTRIBUTIVE_INDEPENDENCE"):
        config.set_flag(api.BuilderFlag.DISTRIBUTIVE_INDEPENDENCE)  # refused with more profiles than one
    if library.is_rtx:
        config.num_compute_capabilities = 1
        config.set_compute_capability(find_capability(api, job.sm), 0)
        return config, int(job.sm or 0)
    load_timing_cache(config, job)
    from specc.runtime import gpu

    return config, gpu().sm


def find_capability(api: Any, sm: int | None) -> Any:
    """The library's value for a compute capability. Raises GraphRefused where it has none."""
    value = getattr(api.ComputeCapability, f"SM{sm}", None)
    if value is None:
        names = [name for name in dir(api.ComputeCapability) if name.startswith("SM")]
        raise GraphRefused(f"it builds no engine for SM {sm}; it knows {', '.join(sorted(names))}")
    return value


def fill_profile(profile: Any, wanted: Profile) -> Any:
    """Fix the shapes of a profile of the library; returns it."""
    for name, shape in wanted.shapes().items():
        profile.set_shape(name, shape, shape, shape)
    return profile


def load_timing_cache(config: Any, job: EngineJob) -> None:
    """Use kernel timings of earlier builds.

    They do not make a build repeatable: engines are told apart by hash.
    """
    if job.timing_cache is None:
        return
    path = Path(job.timing_cache)
    timings = path.read_bytes() if path.is_file() else b""
    config.set_timing_cache(config.create_timing_cache(timings), ignore_mismatch=False)


def save_timing_cache(config: Any, job: EngineJob) -> None:
    """Write the kernel timings for the next build."""
    cache = config.get_timing_cache() if job.timing_cache is not None else None
    if cache is not None and job.timing_cache is not None:
        fresh = Path(f"{job.timing_cache}.{os.getpid()}")
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(bytes(cache.serialize()))
        os.replace(fresh, job.timing_cache)


def write_plan(plan: str, engine: Any) -> None:
    """Write the plan file, whole or not at all."""
    with partial_path(plan).open("wb") as out:
        out.write(memoryview(engine))
        out.flush()
        os.fsync(out.fileno())
    os.replace(partial_path(plan), plan)


if __name__ == "__main__":
    sys.exit(main())
