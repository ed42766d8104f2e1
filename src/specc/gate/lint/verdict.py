"""What `specc gate --lint-only` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specc.gate.lint.walk import lint_file


def lint_report(path: str | Path, engine: str = "auto") -> dict[str, Any]:
    """Verdict and findings for an ONNX file, or for the target's graph of a bundle."""
    place = Path(path)
    graph = place / "target.onnx" if place.is_dir() else place
    findings = lint_file(graph, engine)
    return {
        "verdict": "failed" if findings else "passed",
        "file": str(graph),
        "engine": engine,
        "findings": [f.as_dict() for f in findings],
    }
