"""Stage 4: activation ranges on the calibration text, for engines whose schemes have static scales."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specc.contracts.bundle.tables import decode_calibration
from specc.contracts.engine_plan import EnginePlan
from specc.contracts.recipe import Ranges
from specc.pipeline.cache import CacheEntry, tool_versions
from specc.pipeline.checkpoint import CheckpointRecord, require_build_extra
from specc.pipeline.clock import Clock
from specc.pipeline.identity import run_reading_stage
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash

STATIC = ("int8", "fp8")
POSITIONS = 2048
"""Ids of the calibration text that ranges are measured on."""
CODE = ("specc.calib.scales", "specc.exporter.checkpoint.checkpoint", "specc.pipeline.ranges")


def measure_ranges(planned: Planned, tokenizer: CacheEntry, clock: Clock) -> Mapping[str, CacheEntry]:
    """Activation ranges by engine; only of the engines whose schemes need them."""
    entries = {}
    for engine in filter(needs_ranges, planned.plan.engines):
        with clock.stage(f"ranges {engine.name}") as hit:
            checkpoint = planned.checkpoint_of(engine)
            entries[engine.name] = measure_checkpoint(checkpoint, planned.plan.recipe.ranges, tokenizer)
            hit(entries[engine.name].cached)
    return entries


def needs_ranges(engine: EnginePlan) -> bool:
    """Whether a scheme of the engine has static activation scales."""
    return bool({engine.scheme.layers, engine.scheme.head} & set(STATIC))


def measure_checkpoint(checkpoint: CheckpointRecord, settings: Ranges, tokenizer: CacheEntry) -> CacheEntry:
    """Ranges of one checkpoint's products, from the cache where checkpoint, text and method are the same."""
    inputs = {
        "text": next(file.sha256 for file in tokenizer.files if file.path == "calibration.bin"),
        "how": [settings.method, settings.migrate, POSITIONS],
        "code": code_hash(*CODE),
        "tools": tool_versions(),
    }
    run = partial(run_calibration, checkpoint, settings, tokenizer)
    return run_reading_stage("ranges", inputs, [checkpoint.identity], run)


def run_calibration(
    checkpoint: CheckpointRecord, settings: Ranges, tokenizer: CacheEntry, _: Path
) -> dict[str, Any]:
    """Run the float model over the calibration text; the facts are what `calib.scales.calibrate` returns."""
    import numpy as np

    ids = decode_calibration((tokenizer.folder / "calibration.bin").read_bytes())[:POSITIONS]
    with require_build_extra():
        from specc.calib.scales import calibrate

        return calibrate(checkpoint.open().load(), np.array(ids, np.int64), settings.method, settings.migrate)
