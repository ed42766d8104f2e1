"""Stage 6: the quantized target held against the recipe's quality limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specc.errors import JudgeError
from specc.gate.quality import describe_worst_groups, list_missed_limits
from specc.pipeline.cache import CacheEntry, tool_versions
from specc.pipeline.checkpoint import require_build_extra
from specc.pipeline.clock import Clock
from specc.pipeline.export import GRAPH_CODE
from specc.pipeline.identity import run_reading_stage
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash

SENSITIVITY_CODE = (*GRAPH_CODE, "specc.exporter.check.sensitivity")


def judge_quality(
    planned: Planned, graphs: Mapping[str, CacheEntry], sensitivity: bool, clock: Clock
) -> dict[str, dict[str, Any]]:
    """What was measured of each engine, as the manifest keeps it.

    sensitivity: measure also what each group of layers costs alone. Raises JudgeError where the target misses
    a limit, so that no bundle is written; its sentence names the worst groups of layers.
    """
    recipe = planned.plan.recipe
    quality = {name: graph.facts for name, graph in graphs.items()}
    limits = {name: getattr(recipe.gate, name) for name in ("kl_max", "top1_min", "perplexity_max")}
    missed = list_missed_limits(quality["target"]["quality"], **limits)
    if missed:
        advice = "use a scheme with more bits, or other limits under 'gate'"
        worst = describe_worst_groups(measure_sensitivity(planned, clock))
        why = f"{'; '.join(missed)}; worst alone are {worst}"
        raise JudgeError(f"{recipe.file}: the quantized target is not good enough: {why}; {advice}")
    if sensitivity:
        quality["target"] = {**quality["target"], "sensitivity": measure_sensitivity(planned, clock)}
    return quality


def measure_sensitivity(planned: Planned, clock: Clock) -> list[dict[str, Any]]:
    """KL divergence of each group of the target's layers when it alone is quantized."""
    engine = planned.plan.target

    def run(_: Path) -> dict[str, Any]:
        with require_build_extra():
            from specc.exporter.check import sensitivity

            progress = clock.progress("sensitivity")
            return {"groups": sensitivity.measure_sensitivity(planned.target.open(), engine, progress)}

    inputs = {"engine": asdict(engine), "code": code_hash(*SENSITIVITY_CODE), "tools": tool_versions()}
    with clock.stage("sensitivity") as hit:
        entry = run_reading_stage("sensitivity", inputs, [planned.target.identity], run)
        hit(entry.cached)
    return list(entry.facts["groups"])
