"""One distillation of a tiny target from its recipe to files, twice the same bytes; wrong requests are
refused in one sentence.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny

from specc.calib import answers, prompts
from specc.contracts.files import hash_file
from specc.distill.data import read_prompts
from specc.distill.job import distill
from specc.distill.request import DistillRequest
from specc.errors import InputError
from specc.exporter.draft_heads.file import load_draft_head


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(answers, "LIMIT", 8)
    monkeypatch.setattr(prompts, "CLASSES", ("chat",))
    tiny.tiny_folder(tmp_path / "target")
    path = tmp_path / "tiny.yaml"
    path.write_text("target: {checkpoint: target}\ncontext: 96\nk: 2\n", encoding="utf-8")
    (tmp_path / "mine.txt").write_text(
        "One prompt.\n\nAnother one.\nA third, longer prompt.\n", encoding="utf-8"
    )
    return path


def request_for(recipe: Path, out: str, kind: str = "feature") -> DistillRequest:
    prompts = recipe.parent / "mine.txt"
    out_folder = recipe.parent / out
    return DistillRequest(recipe, kind, out_folder, prompts=prompts, tokens=30, epochs=1, ids=64, min_count=1)


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_equal_runs_give_equal_bytes(kind: str, recipe: Path) -> None:
    steps: list[str] = []
    first = distill(request_for(recipe, "one", kind), lambda step, done: steps.append(step))
    second = distill(request_for(recipe, "two", kind))
    names = ["README.md", "draft_table.bin", "head.safetensors", "provenance.json"]
    assert sorted(path.name for path in first.folder.iterdir()) == names
    assert [hash_file(first.folder / n) for n in names] == [hash_file(second.folder / n) for n in names]
    assert {"answers", "training"} <= set(steps)
    head, provenance = load_draft_head(first.folder / "head.safetensors"), first.provenance
    assert head.kind == kind and head.metadata["weights_sha256"] == provenance["target"]["weights_sha256"]
    assert provenance["data"]["own_prompts"] == 3 and json.dumps(provenance)
    card = (first.folder / "README.md").read_text(encoding="utf-8")
    assert "3 of the user's own" in card and "--no-table" in card
    assert bool(first.accepted) == (kind == "feature")


def test_without_a_table_nothing_mentions_one(recipe: Path) -> None:
    request = request_for(recipe, "bare")
    result = distill(replace(request, table=False))
    assert [file.path for file in result.files] == ["head.safetensors"]
    assert "n-gram" not in (result.folder / "README.md").read_text(encoding="utf-8")


def test_wrong_requests_are_refused(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'tree'; allowed are feature, medusa, small, early-exit, table"):
        distill(request_for(recipe, "x", "tree"))
    with pytest.raises(InputError, match="no training sample is left"):
        distill(replace(request_for(recipe, "y", "table"), leave_out="chat"))
    with pytest.raises(InputError, match="cannot read the prompts"):
        read_prompts(tmp_path / "nowhere.txt")
    (tmp_path / "short.txt").write_text("only one\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds 1 prompts"):
        read_prompts(tmp_path / "short.txt")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("--kind", "feature", "--layers", "2"),
            "--layers means nothing for --kind feature; it is for small, early-exit",
        ),
        (
            ("--kind", "small", "--ids", "64"),
            "--ids means nothing for --kind small; it is for feature, medusa",
        ),
        (("--kind", "table", "--epochs", "2"), "--epochs means nothing for --kind table"),
        (("--no-table", "--min-count", "3"), "--min-count means nothing with --no-table"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    words: tuple[str, ...], why: str, recipe: Path, specc: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = specc("distill", recipe, *words)
    assert code == 2 and why in err and not out and "Traceback" not in err
