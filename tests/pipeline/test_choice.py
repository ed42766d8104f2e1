"""`k: auto` and `draft: auto`: what is counted, what is chosen, and what a bundle says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.draft_files import table_bytes

from specc.calib import acceptance, answers, prompts
from specc.calib.acceptance import (
    NO_TOKEN,
    Replay,
    Stage,
    make_lookup_stage,
    make_table_stage,
    replay_rounds,
)
from specc.calib.ngram_table import read_table
from specc.calib.samples import Sample
from specc.contracts.recipe import load_recipe
from specc.errors import SpeccError
from specc.pipeline import choice
from specc.pipeline.build import build
from specc.pipeline.clock import Clock
from specc.pipeline.plan import plan_recipe
from specc.pipeline.planned import Planned


def sample_of(ids: list[int], n_prompt: int, kind: str = "chat") -> Sample:
    return Sample(kind, 0.0, np.array(ids, np.int32), n_prompt, 0)


def stage_of(*rows: list[int], needs_engine: bool = False, is_parallel: bool = False) -> Stage:
    return Stage(np.array(rows, np.int64), needs_engine, is_parallel)


def test_rounds_over_a_known_answer() -> None:
    """Right to the end: every position stands. Wrong at the second: one token of two, K rows paid. Silent:
    plain.
    """
    text = sample_of([9, 9, 1, 2, 3, 4, 5, 6], 2)
    right = replay_rounds(text, [stage_of(text.ids.tolist())], 2)
    assert right == Replay(5, (0, 1, 1), 0, (2, 1), (2, 1))
    wrong = replay_rounds(text, [stage_of([0, 0, 0, 2, 0, 4, 0, 6])], 2)
    assert (wrong.rounds, wrong.accepted, wrong.tried) == ((1, 0, 2), (2, 0), (2, 2))
    silent = replay_rounds(text, [stage_of([NO_TOKEN] * 8)], 2)
    assert silent == Replay(5, (5, 0, 0), 0, (0, 0), (0, 0))
    assert silent.speed_up(0.14, 0.1) == 1.0 and right.speed_up(0.14, 0.1) == pytest.approx(5 / 2.42)


def test_calls_of_engines() -> None:
    """A chain pays a call a token, the silent ask included; parallel heads pay one a round; lookup none."""
    text = sample_of([9, 9, 1, 2, 3, 4, 5, 6], 2)
    chain = replay_rounds(text, [stage_of(text.ids.tolist(), needs_engine=True)], 4)
    heads = replay_rounds(text, [stage_of(text.ids.tolist(), needs_engine=True, is_parallel=True)], 4)
    assert (chain.draft_calls, heads.draft_calls, chain.rounds) == (4, 1, (0, 0, 0, 0, 1))
    first = stage_of([NO_TOKEN] * 3 + [2, NO_TOKEN] + [NO_TOKEN] * 3)
    staged = replay_rounds(text, [first, stage_of([NO_TOKEN] * 8, needs_engine=True)], 4)
    assert staged.draft_calls == 3 and staged.accepted == (1, 0, 0, 0)


def lookup(ids: list[int]) -> int:
    """What followed the latest earlier occurrence of the longest run of 4 to 2 last ids."""
    runs = ((n, i) for n in range(min(4, len(ids) - 1), 1, -1) for i in range(len(ids) - n - 1, -1, -1))
    return next((ids[i + n] for n, i in runs if ids[i : i + n] == ids[-n:]), NO_TOKEN)


def test_stages_answer_as_the_runtime_does(tmp_path: Path) -> None:
    """Lookup by its definition, read off the text; a table as its file says."""
    ids = np.random.default_rng(1).integers(0, 5, 120).tolist()
    found = make_lookup_stage(sample_of(ids, 4), 2, 4).proposals[0]
    assert [found[i] for i in range(1, 120)] == [lookup(ids[:i]) for i in range(1, 120)]
    (tmp_path / "t.bin").write_bytes(table_bytes([1, 2, 3, 4] * 8, 8))
    orders = read_table(tmp_path / "t.bin")[1]
    text = sample_of([7, 1, 2, 3, 7, 2, 3], 1)
    assert make_table_stage(text, orders, 2).proposals[0].tolist() == [
        NO_TOKEN,
        NO_TOKEN,
        NO_TOKEN,
        3,
        4,
        NO_TOKEN,
        NO_TOKEN,
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny target and its table; short answers to one class of prompts."""
    monkeypatch.setattr(answers, "LIMIT", 12)
    monkeypatch.setattr(prompts, "CLASSES", ("chat", "json"))
    tiny.tiny_folder(tmp_path / "tiny")
    table = bytearray(table_bytes([1, 2, 3, 4] * 8, tiny.VOCAB))
    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    table[16:48] = bytes.fromhex(open_checkpoint(str(tmp_path / "tiny")).spec.id_map_sha256)
    (tmp_path / "table.bin").write_bytes(bytes(table))
    return tmp_path


def recipe(place: Path, draft: Any, k: Any = "auto") -> Path:
    """A recipe that leaves something open."""
    parts = {"name": "auto", "target": {"checkpoint": "tiny"}, "draft": draft, "k": k, "context": 96}
    path = place / "recipe.yaml"
    path.write_text(json.dumps(parts | {"scheme": "fp32", "prompt_template": "none"}))
    return path


STAGES = [{"kind": "ngram"}, {"kind": "table", "file": "table.bin"}, {"kind": "early-exit", "layers": 1}]


def facts_of(planned: Planned) -> dict[str, Any]:
    """What is chosen for a plan."""
    facts = choice.choose_draft(planned, Clock(None)).plan.choice
    assert facts is not None
    return facts


def test_build_measures_and_chooses(place: Path, specc: Callable[..., tuple[int, str, str]]) -> None:
    """From a recipe with both auto to a bundle that says what was chosen; plan and a second build find it
    again.
    """
    path = recipe(place, {"kind": "auto", "stages": STAGES})
    assert plan_recipe(load_recipe(path), None).plan.choice is None
    made = build(path, out=place / "auto")
    facts = made.bundle.manifest["plan"]["choice"]
    assert made.plan.k == facts["k"] == made.bundle.manifest["plan"]["k"] and set(facts["classes"]) == {
        "chat",
        "json",
    }
    assert len(facts["drafts"]) == 7 and facts["speed_up"] == max(facts["drafts"].values())
    assert facts["by_k"][str(facts["k"])] == max(facts["by_k"].values())
    assert all(len(part["accepted"]) == facts["k"] for part in facts["classes"].values())
    kinds = [part.kind for part in made.plan.recipe.draft.parts]
    assert kinds == facts["draft"].split(", ")
    planned = plan_recipe(load_recipe(path), None).plan
    assert planned.choice == facts and planned.digest == made.plan.digest
    again = build(path, out=place / "auto")
    assert not again.written and all(time.cached for time in again.times if time.stage != "plan")
    code, text, _ = specc("inspect", place / "auto")
    assert code == 0 and "k: auto" in text


def test_costs_bound_k(place: Path) -> None:
    """A draft model that is the target: every position stands, so its cost alone bounds K."""
    planned = plan_recipe(load_recipe(recipe(place, {"kind": "model", "checkpoint": "tiny"})), None)
    chosen = {}
    for draft_ms in (0.0, 10 * planned.plan.timing.target_call_ms):
        plan = replace(planned.plan, timing=replace(planned.plan.timing, draft_call_ms=draft_ms))
        facts = facts_of(Planned(plan, planned.target, planned.draft))
        assert all(set(part["accepted"]) == {1.0} for part in facts["classes"].values())
        chosen[draft_ms] = facts["k"]
    assert chosen.pop(0.0) >= 4 and set(chosen.values()) == {1}


def test_heads_are_unrolled(place: Path) -> None:
    """Acceptance of a head at each position is what its own tokens give, here of parallel heads that say one
    thing.
    """
    ids = [9, 9, 1, 2, 3, 3, 3, 3]
    hidden = np.zeros((7, 4), np.float16)

    class Threes:
        def __call__(self, states: Any) -> Any:
            import torch

            return torch.tensor([0.0, 0, 1, 0]).expand(len(states), 3, 4)

    import torch

    sample = replace(sample_of(ids, 2), hidden=hidden)
    stage = acceptance.make_medusa_stage(sample, Threes(), torch.tensor([0, 1, 3, 5]), 0.0)
    assert stage.proposals.tolist() == [[NO_TOKEN] * (2 + j) + [3] * (6 - j) for j in range(3)]
    assert replay_rounds(sample, [stage], 3).accepted == (1, 1, 1)


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ({"kind": "auto", "stages": [{"kind": "auto"}]}, "none of them"),
        ({"kind": "auto", "min_match": 2}, "unknown key 'draft.min_match'"),
        (
            {"kind": "model", "checkpoint": "tiny", "draft": {"kind": "auto"}},
            "allowed are ngram, table and staged",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(place: Path, draft: dict[str, Any], words: str) -> None:
    with pytest.raises(SpeccError, match=words):
        load_recipe(recipe(place, draft))


def test_short_forms(place: Path) -> None:
    """`draft: auto` is lookup; a K that is written is kept; without k nothing is measured."""
    bare = load_recipe(recipe(place, "auto", 3))
    assert choice.is_open(bare) and [part.kind for part in bare.draft.parts] == ["ngram"]
    fixed = facts_of(plan_recipe(bare, None))
    assert (fixed["k"], list(fixed["by_k"])) == (3, ["3"])
    path = recipe(place, {"kind": "ngram"})
    assert choice.is_open(load_recipe(path))
    path.write_text(path.read_text().replace('"k": "auto", ', ""))
    assert not choice.is_open(load_recipe(path))
