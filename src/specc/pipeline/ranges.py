"""The stage that measures activation ranges, and what the exporter wants to know of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specc.contracts.bundle.tables import decode_calibration
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.recipe import Ranges
from specc.pipeline.cache import Stage, code_hash, stage, tool_versions
from specc.pipeline.checkpoint import Described, build_extra
from specc.pipeline.clock import Clock

if TYPE_CHECKING:
    from specc.pipeline.build import Planned

STATIC = ("int8", "fp8")
POSITIONS = 2048
"""Ids of the calibration text that ranges are measured on."""


def ranges_stages(planned: Planned, tokenizer: Stage, clock: Clock) -> dict[str, Stage]:
    """Activation ranges of the engines whose schemes need them, by engine."""
    found = {}
    for engine in filter(needs_ranges, planned.plan.engines):
        with clock.stage(f"ranges {engine.name}") as hit:
            origin = planned.draft if engine.name == "draft" and planned.draft else planned.target
            found[engine.name] = ranges_stage(origin, planned.plan.recipe.ranges, tokenizer)
            hit(found[engine.name].cached)
    return found


def needs_ranges(engine: EnginePlan) -> bool:
    """Whether a scheme of the engine has static activation scales."""
    return bool({engine.scheme.layers, engine.scheme.head} & set(STATIC))


def ranges_stage(origin: Described, how: Ranges, tokenizer: Stage) -> Stage:
    """Ranges of one checkpoint's products, from the cache where weights, text and method are the same."""
    inputs = {
        "model": origin.spec.weights_sha256,
        "text": next(file.sha256 for file in tokenizer.files if file.path == "calibration.bin"),
        "how": [how.method, how.migrate, POSITIONS],
        "code": [code_hash("specc.calib"), code_hash("specc.exporter.checkpoint")],
        "tools": tool_versions(),
    }
    return stage("ranges", inputs, partial(measure, origin, how, tokenizer))


def measure(origin: Described, how: Ranges, tokenizer: Stage, _: Path) -> dict[str, Any]:
    """Run the float model over the calibration text."""
    import numpy as np

    ids = decode_calibration((tokenizer.folder / "calibration.bin").read_bytes())[:POSITIONS]
    with build_extra():
        from specc.calib.scales import calibrate

        return calibrate(origin.open().load(), np.array(ids, np.int64), how.method, how.migrate)


def static_scales(ranges: Stage | None) -> dict[str, Any]:
    """Arguments of `exporter.export`; none where the scheme needs no ranges."""
    if ranges is None:
        return {}
    from specc.calib.scales import apply_shifts

    return {"ranges": ranges.facts["ranges"], "prepare": partial(apply_shifts, moved=ranges.facts["shifts"])}
