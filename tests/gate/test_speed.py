"""The speed judge: costs, counts, the K that pays."""

from __future__ import annotations

from dataclasses import replace

from support.table_models import TOKENS, exact_model, table

from specc.gate.engine import equality, speed
from specc.runtime import Certificate, Model, ModelDraft


def costs(model: Model, *call_ms: float) -> Certificate:
    return replace(model.info.certificate, call_ms=call_ms)


def test_best_k_follows_costs() -> None:
    """Free rows: the largest K; rows that cost in full: no gain."""
    classes = speed.make_prompt_classes(TOKENS, 256, 0)
    with exact_model(ModelDraft(table())) as model:
        free = speed.judge_speed(model, costs(model, 9.0, 9.0, 9.0, 9.0, 9.0, 30.0), classes)
        assert free.k == 4
        assert free.check.passed
        assert 4.0 < free.best <= 5.0
        dear = speed.judge_speed(model, costs(model, 9.0, 18.0, 27.0, 36.0, 45.0, 300.0), classes)
        assert not dear.check.passed
        middle = speed.judge_speed(model, costs(model, 9.0, 10.0, 11.0, 40.0, 60.0, 300.0), classes)
        assert middle.k == 2
        best = middle.as_dict()["best"]
        assert {(row["prompt_class"], row["temperature"]) for row in best} == {
            (name, t) for name in classes for t in speed.TEMPERATURES
        }
        assert speed.break_even(costs(model, 9.0, 9.0, 9.0, 9.0, 18.0, 30.0), 4, 0.0) == 2.0


def test_a_tie_goes_to_the_larger_k() -> None:
    """K = 3 and 4 that noise alone tells apart: 4; a gain beyond it decides."""

    def row(k: int, speed_up: float) -> speed.SpeedRow:
        return speed.SpeedRow("prose", 0.0, k, speed_up, 0.5, 1.5, 0.5, (0.5,))

    assert speed.choose_k([row(1, 1.2), row(3, 1.528), row(4, 1.5236)]) == 4
    assert speed.choose_k([row(3, 1.56), row(4, 1.5236)]) == 3


def test_useless_drafter_does_not_gain() -> None:
    """Proposals that are never right cost more than they bring."""
    classes = speed.make_prompt_classes(TOKENS, 256, 0)
    with exact_model(equality.RandomDrafter()) as model:
        found = speed.judge_speed(model, costs(model, 9.0, 9.5, 10.0, 10.5, 11.0, 60.0), classes)
    assert all(row.acceptance < 0.5 for row in found.rows)
    assert {row.prompt_class for row in found.rows} == {"prose", "copy"}
    assert {row.k for row in found.rows} == {1, 2, 3, 4}


def test_useful_k_is_the_largest_of_a_width() -> None:
    """K = 1 and 2 both pay for three rows: only 2 is tried."""
    certificate = Certificate("bit-exact", 1, (1, 3, 5, 8), (0, 0, 0, 1), 1, 0, ())
    assert speed.list_useful_k(certificate, 4) == [2, 4]
    assert speed.find_verify_width(certificate, 5) == 0


def test_one_gain_is_enough() -> None:
    """no-gain only where no K gains in any class and temperature; each cell's own best K is told."""
    rows = [
        speed.SpeedRow(name, t, k, gain, 0.5, 1.5, 1.0, ())
        for name, t, k, gain in (
            ("prose", 0.0, 1, 0.9),
            ("prose", 0.0, 4, 0.6),
            ("copy", 0.0, 1, 1.0),
            ("copy", 0.0, 4, 1.2),
        )
    ]
    assert [(row.prompt_class, row.k) for row in speed.select_best_rows(rows)] == [("prose", 1), ("copy", 4)]


def test_draft_cost_is_a_median() -> None:
    """One slow generation decides nothing; none that proposed is free."""

    def count(k: int, *ms: float) -> speed.AcceptanceCount:
        return speed.AcceptanceCount("prose", 0.0, k, {1: 1}, 1, 0, 0, 0, (), (), ms)

    assert speed.median_draft_ms([count(2, 1.0, 90.0), count(2, 2.0), count(4, 7.0)], 2) == 2.0
    assert speed.median_draft_ms([count(2)], 2) == 0.0
