"""The cache keys of the stages: every module that a stage runs is in its key, no edit elsewhere voids it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import tiny

from specc.pipeline import (
    checkpoint,
    choice,
    draft_files,
    engines,
    export,
    lint,
    plan,
    quality,
    ranges,
    tokenizer,
)
from specc.pipeline.source_code import code_hash, covered_modules, source_files

STAGES = {
    "spec": checkpoint.CODE,
    "tokenizers": plan.TOKENIZER_CODE,
    "published-head": draft_files.PUBLISHED_CODE,
    "choice": choice.CODE,
    "tokenizer": tokenizer.CODE,
    "ranges": ranges.CODE,
    "engine": export.GRAPH_CODE,
    "head": export.HEAD_CODE,
    "sensitivity": quality.SENSITIVITY_CODE,
    "lint": lint.CODE,
    "plan": engines.CODE,
}


def test_an_unknown_name_is_an_error() -> None:
    """A module that was moved cannot drop out of a key unseen."""
    with pytest.raises(ModuleNotFoundError, match="specc.exporter.tensorrt_child"):
        code_hash("specc.exporter.tensorrt_child")


def test_code_hash_covers_the_package() -> None:
    assert len({code_hash(name) for name in ("specc.exporter", "specc.calib", "specc.gate.lint")}) == 3
    assert len(source_files("specc.exporter")) > 5 and source_files("specc.nothing") == {}


def test_code_hash_covers_subfolders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is split into folders is hashed as before: an edit in any of them is seen, elsewhere it
    is not.
    """
    deep = tmp_path / "hashed_package" / "deep"
    deep.mkdir(parents=True)
    for folder in (deep.parent, deep):
        (folder / "__init__.py").write_text("")
    (deep / "module.py").write_text("a = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def hashes() -> list[str]:
        code_hash.cache_clear()
        return [code_hash(name) for name in ("hashed_package", "hashed_package.deep", "specc.calib")]

    before = hashes()
    (deep / "module.py").write_text("a = 2\n")
    after = hashes()
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


def test_imports_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through modules, inside functions, with `from package import module`; not under TYPE_CHECKING."""
    covered = covered_modules("specc.exporter.draft_heads.export")
    for module in (
        "exporter.export",
        "exporter.trace",
        "exporter.lower.cpu_layout",
        "exporter.rewrites.fuse_qkv",
        "errors",
    ):
        assert f"specc.{module}" in covered
    assert not [module for module in covered if module.startswith("specc.runtime")]
    assert "specc.exporter.checkpoint.checkpoint" not in covered_modules("specc.exporter.graph.graph")


@pytest.mark.parametrize("stage", STAGES)
def test_tensorrt_code_is_in_the_keys_of_engines_only(stage: str) -> None:
    covered = covered_modules(*STAGES[stage])
    tensorrt = [module for module in covered if module.startswith("specc.exporter.tensorrt")]
    assert bool(tensorrt) == (stage == "plan")
    assert stage != "plan" or "specc.exporter.tensorrt.builder" in covered


@pytest.mark.parametrize(
    ("edited", "void"),
    [
        ("exporter.tensorrt.builder", {"plan"}),
        ("exporter.lower.cpu_layout", {"engine", "head", "sensitivity"}),
        ("exporter.draft_heads.trace", {"head"}),
        ("exporter.draft_heads.published", {"published-head"}),
        ("calib.scales", {"ranges", "choice"}),
        ("gate.lint.rules", {"lint"}),
        ("cli.tables", set()),
        ("pipeline.export", {"engine", "head", "sensitivity"}),
    ],
)
def test_what_an_edit_voids(edited: str, void: set[str]) -> None:
    assert {name for name, code in STAGES.items() if f"specc.{edited}" in covered_modules(*code)} == void


BUILD = """
import json, sys
from pathlib import Path
from specc.pipeline.build import build
build(Path(sys.argv[1]), out=sys.argv[2])
print(json.dumps(sorted(name for name in sys.modules if name.startswith("specc."))))
"""


def test_every_module_that_a_build_loads_is_in_a_key(tmp_path: Path) -> None:
    """A real export in a process of its own: some key covers all that it loads of exporter and calib."""
    tiny.tiny_folder(tmp_path / "tiny")
    parts = {"name": "t", "target": {"checkpoint": "tiny"}, "draft": {"kind": "ngram"}, "k": 4, "context": 96}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps(parts | {"scheme": "w8", "prompt_template": "none"}))
    command = [sys.executable, "-c", BUILD, str(recipe), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    stages = ("spec", "tokenizer", "engine", "lint")
    covered = {module for stage in stages for module in covered_modules(*STAGES[stage])}
    packages = {module for module in loaded if any(other.startswith(f"{module}.") for other in loaded)}
    own = {
        module
        for module in loaded
        if module.startswith(("specc.exporter.", "specc.calib.", "specc.gate.lint"))
    }
    assert len(own) > 30 and own - packages <= covered
