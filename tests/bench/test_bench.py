"""The arithmetic of `specc bench`, its measuring, its prompts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench_model import ROW_KEYS, table_model
from support.table_models import Ahead, ByWidth, chain

from specc.bench import generations, numbers, prompts, report
from specc.bench.generations import Setting, Task
from specc.bench.numbers import Round
from specc.errors import InputError
from specc.report.plots import choose_ticks
from specc.runtime import Model, Table, library

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(1e-6, 1)).map(
        lambda t: Round(t[0], max(t[0], t[1]), t[0], t[2])
    ),
    max_size=30,
)

# ---------------------------------------------------------------------- arithmetic


@given(VALUES, st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    found = numbers.percentile(values, share)
    assert found is not None and min(values) <= found <= max(values)
    assert found == pytest.approx(float(np.percentile(values, 100 * share)), rel=1e-9, abs=1e-9)


@given(VALUES)
def test_percentiles_rise(values: list[float]) -> None:
    found = [numbers.percentile(values, share) for share in (0, 0.25, 0.5, 0.99, 1)]
    assert found == sorted(found, key=float) and found[2] == pytest.approx(numbers.median_or_none(values))  # type: ignore[arg-type]


def test_nothing_has_no_median() -> None:
    assert (
        numbers.percentile([], 0.5) is None
        and numbers.median_or_none([]) is None
        and numbers.mean([]) is None
    )


@given(ROUNDS)
def test_tokens_of_a_round_share_its_time(rounds: list[Round]) -> None:
    """One share a token but the first round's, and together the time of the rounds that had any."""
    found = numbers.split_round_times(rounds)
    assert len(found) == sum(one.tokens for one in rounds[1:])
    assert sum(found) == pytest.approx(sum(one.seconds for one in rounds[1:] if one.tokens))
    assert len(numbers.list_gaps(rounds)) == sum(one.tokens > 0 for one in rounds[1:])


def test_acceptance_by_position_counts_what_was_reached() -> None:
    rounds = [
        Round(3, 4, 2, 1.0),
        Round(1, 4, 0, 1.0),
        Round(5, 4, 4, 1.0),
        Round(1, 0, 0, 1.0),
        Round(2, 1, 1, 1.0),
    ]
    assert numbers.acceptance_by_position(rounds) == (3 / 4, 1.0, 1 / 2, 1.0)
    assert numbers.acceptance_by_position([Round(1, 0, 0, 1.0)]) == ()


def test_speed_ups_are_medians_of_pairs() -> None:
    """A slow minute that hits both of a pair changes nothing; one that hits one run is outvoted."""
    found = numbers.compute_speed_ups(
        {0: [100.0, 50.0, 100.0], 1: [10.0]}, {0: [150.0, 75.0, 20.0], 1: [20.0]}
    )
    assert found == {0: 1.5, 1: 2.0}


def test_prediction_takes_the_certificates_costs() -> None:
    rounds = [Round(5, 4, 4, 9.9), Round(1, 0, 0, 9.9)]
    assert numbers.predict_speed_up(rounds, {0: 4.0, 4: 6.0}, 0, 2.0) == pytest.approx(6 * 4 / (6 + 4 + 2))
    assert (
        numbers.predict_speed_up(rounds, {0: 4.0}, 0, 2.0) is None
        and numbers.predict_speed_up([], {0: 4.0}, 0, 0.0) is None
    )


@given(st.floats(1e-9, 1e9))
def test_ticks_cover_and_are_few(most: float) -> None:
    marks = choose_ticks(most)
    assert marks[0] == 0 and marks[-1] >= most * (1 - 1e-6) and 4 <= len(marks) <= 6


# ---------------------------------------------------------------------- measuring


TASK = Task(
    {"chat": [[5, 6, 7], [9, 9]], "copy": [[40, 41]]},
    (Setting(0.0, "rejection"), Setting(0.8, "coupled")),
    repeats=2,
    max_new_tokens=12,
    seed=3,
)


def test_modes_take_turns_and_agree() -> None:
    ticks: list[tuple[str, float]] = []
    with table_model() as model, model.session() as session:
        found = generations.measure_generations(session, TASK, lambda step, done: ticks.append((step, done)))
    assert len(found) == TASK.total == 24 and len(ticks) == 24 and ticks[-1] == ("bench", 1.0)
    firsts = [one.mode for one in found[::2]]
    assert firsts == ["plain", "spec"] * 6
    for a, b in zip(found[::2], found[1::2], strict=True):
        assert a.tokens == b.tokens and {a.mode, b.mode} == {"plain", "spec"} and a.prompt == b.prompt
    assert all(sum(r.tokens for r in one.rounds) == len(one.tokens) == 12 for one in found)
    assert all(not r.proposed for one in found if one.mode == "plain" for r in one.rounds)


def test_every_answer_starts_from_an_empty_cache() -> None:
    """Both modes read the whole prompt, although the one before left it in the cache."""
    task = replace(TASK, prompts={"chat": [list(range(70))]}, settings=TASK.settings[:1])
    with table_model() as model, model.session() as session:
        for mode in ("plain", "spec", "spec"):
            generations.run_generation(
                session, task.prompts["chat"][0], mode, task.settings[0], task, "chat", 0, 0
            )
            assert session.stats["prefill_calls"] == 3
        session.run(task.prompts["chat"][0], text=False, max_new_tokens=1, temperature=0.0)
        assert session.stats["prefill_calls"] == 0


def found_rows(drafter: Any = None) -> list[dict[str, Any]]:
    with table_model(drafter) as model, model.session() as session:
        certificate = replace(model.info.certificate, call_ms=(4.0, 4.5, 5.0, 5.5, 6.0, 20.0))
        return report.make_rows(generations.measure_generations(session, TASK), certificate)


def test_rows_have_what_others_rely_on() -> None:
    rows = found_rows()
    assert len(rows) == 8 and all(row.keys() >= ROW_KEYS for row in rows)
    greedy = [row for row in rows if row["temperature"] == 0 and row["mode"] == "spec"]
    for row in greedy:
        assert row["acceptance_rate"] == 1.0 and row["same_text"] == 1.0 and row["enabled"]
        assert row["acceptance_by_position"] == (1.0,) * 4 and row["proposing_share"] == 1.0
        assert row["tokens_per_target_call"] == pytest.approx(12 / 3) and row["predicted_speed_up"] > 2
        assert (
            0 < row["itl_ms_p50"] <= row["itl_ms_p99"] and row["peak_mb"] > 1 and 0 <= row["draft_share"] < 1
        )
    plain = [row for row in rows if row["mode"] == "plain"]
    assert all(row["acceptance_rate"] is None and row["tokens_per_target_call"] == 1.0 for row in plain)
    assert all("speed_up" not in row for row in plain)
    json.dumps(rows, allow_nan=False)


def test_summary_means_over_classes() -> None:
    rows = found_rows()
    found = report.summarize_rows(rows)
    assert [(one["temperature"], one["classes"]) for one in found] == [(0.0, 2), (0.8, 2)]
    spec = [row["speed_up"] for row in rows if row["mode"] == "spec" and row["temperature"] == 0]
    assert found[0]["mean_speed_up"] == pytest.approx(sum(spec) / 2) and found[0]["least_speed_up"] == min(
        spec
    )


def test_break_even_by_k() -> None:
    with table_model() as model:
        certificate = replace(model.info.certificate, call_ms=(4.0, 4.5, 5.0, 5.5, 6.0, 20.0))
        assert report.compute_break_even(certificate, 4) == {1: 1.125, 2: 1.25, 3: 1.375, 4: 1.5}
        assert report.compute_break_even(replace(certificate, call_ms=()), 4) == {}


def test_speculation_that_is_off_says_so() -> None:
    """Without a certificate nothing is proposed; the report names the reason instead of a speed-up out of
    nothing.
    """
    engine = ByWidth(Table(chain(258), 1, 160, (1, 2, 3, 4, 5, 32)), library())
    with Model.from_parts(engine, Ahead(), n_ids=258, context=128) as model, model.session() as session:
        rows = report.make_rows(generations.measure_generations(session, TASK), model.info.certificate)
    spec = [row for row in rows if row["mode"] == "spec"]
    assert all(not row["enabled"] and row["reasons"] and row["acceptance_rate"] is None for row in spec)
    assert all(row["predicted_speed_up"] is None and row["proposing_share"] == 0 for row in spec)


# ---------------------------------------------------------------------- prompts


def test_prompt_files(tmp_path: Path) -> None:
    lines, classes = tmp_path / "a.txt", tmp_path / "b.yaml"
    lines.write_text("one\n\n two \n")
    classes.write_text("chat: [a, b, c, d]\ncode: ['def f():']\n")
    assert prompts.read_file(lines) == {"prompts": ["one", "two"]}
    found = prompts.read_file(classes)
    assert prompts.select_prompts(found, 2) == {"chat": ["a", "c"], "code": ["def f():"]}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "\n\n", "holds no prompt"),
        ("a.yaml", "[a, b]", "holds list"),
        ("a.yaml", "chat: hello", "class 'chat' is not a list"),
        ("a.yaml", "chat: []", "class 'chat' is not a list"),
        ("a.yaml", "3: [a]", "class 3 is not a list"),
        ("a.yaml", "chat: [1]", "class 'chat' is not a list"),
        ("a.yaml", "chat: [", "is no YAML"),
        ("a.yaml", "a: &x [b]\nc: *x", "aliases are not used"),
        ("gone.txt", None, "cannot read the prompts"),
    ],
)
def test_unusable_prompts_are_one_sentence(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        prompts.read_file(tmp_path / name)
    assert "\n" not in str(error.value)


def test_prompts_that_come_along() -> None:
    found = prompts.load_shipped("held-out")
    assert len(found) == 4 and all(len(texts) == 8 for texts in found.values())
