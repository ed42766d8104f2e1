"""Static activation scales from the recipe to the graph: ranges are measured once and reach the exporter."""

from __future__ import annotations

import json
from pathlib import Path

from support import tiny

from specc.pipeline.build import build


def test_ranges_reach_the_graph(tmp_path: Path) -> None:
    """int8 for a target that is finished on the device: a real export of a tiny model."""
    tiny.tiny_folder(tmp_path / "tiny")
    parts = {"name": "t", "target": {"checkpoint": "tiny"}, "draft": {"kind": "ngram"}, "k": 4, "context": 96}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(parts | {"scheme": "int8", "prompt_template": "none"}))
    built = build(recipe, "h100", tmp_path / "out")
    assert "ranges target" in [time.stage for time in built.times]
    errors = built.quality["target"]["range_errors"]
    assert errors and all(0 <= error < 1 for error in errors.values())
    again = build(recipe, "h100", tmp_path / "out")
    assert not again.written and all(time.cached for time in again.times)
