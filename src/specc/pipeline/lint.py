"""Stage 7: the lint judge on the target's graph; findings switch speculation off, the build goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specc.contracts.plan import Plan
from specc.pipeline.cache import CacheEntry, run_stage
from specc.pipeline.clock import Clock
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash

CODE = ("specc.gate.lint", "specc.pipeline.lint")


def lint_target(planned: Planned, graph: CacheEntry, clock: Clock) -> tuple[dict[str, str], ...]:
    """Findings in the target's graph, as the manifest keeps them: node, op, why, fix."""
    engine = lint_engine(planned.plan)

    def run(_: Path) -> dict[str, Any]:
        from specc.gate.lint import lint_file

        findings = lint_file(graph.folder / "target.onnx", engine)
        keys = ("node", "op", "why", "fix")
        return {"findings": [{key: str(getattr(finding, key)) for key in keys} for finding in findings]}

    with clock.stage("lint") as hit:
        inputs = {"engine": graph.key, "kind": engine, "code": code_hash(*CODE)}
        entry = run_stage("lint", inputs, run)
        hit(entry.cached)
    return tuple(entry.facts["findings"])


def lint_engine(plan: Plan) -> str:
    """The engine that the lint judges the graph for."""
    if plan.hardware.gpu is None:
        return "auto"
    return "tensorrt" if plan.target.dialect == "onnx24" else "cuda"
