"""What a session tells about its decisions, and logits of given ids: both against the references in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.table_models import Ahead, draft, noise_table, self_drafting

from specc.errors import InputError
from specc.gate.law import noise
from specc.gate.law.reference import distribution
from specc.runtime import Decision, Event, Model, Options, Table

N = 8
TABLE = noise_table(N, 2)
WIDTHS = (1, 2, 3, 4, 5, 32)


def model(drafter: Any) -> Model:
    engine = Table(TABLE, 2, 96 + 32, WIDTHS)
    return Model.from_parts(engine, drafter, n_ids=N, context=96, k_max=4, assume_exact=True)


def traced(drafter: Any, **options: Any) -> tuple[list[int], list[Event]]:
    """All tokens, and the events of a traced generation."""
    with model(drafter) as opened, opened.session() as session:
        session.trace()
        events = list(session.generate([3, 1, 4], seed=9, max_new_tokens=60, **options))
        return [3, 1, 4, *session.tokens], events


def law_at(text: list[int], position: int, options: dict[str, Any]) -> np.ndarray:
    wanted = {name: value for name, value in options.items() if name != "rule"}
    row = TABLE[text[position - 2] * N + text[position - 1]]
    return distribution(Options(**wanted), row, text[:position], 3)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.0}, {"rule": "coupled"}]
)
@pytest.mark.parametrize("drafter", [draft(TABLE + noise_table(N, 2, seed=8), 2), Ahead()])
def test_decisions_are_those_of_the_references(drafter: Any, options: dict[str, Any]) -> None:
    text, events = traced(drafter, **options)
    seen = [d for event in events for d in event.decisions]
    assert {d.accepted for d in seen} == {True, False} and len(seen) >= 60
    for event in (event for event in events if event.tokens):
        assert [d.emitted for d in event.decisions][: len(event.tokens)] == list(event.tokens)
        assert [d.drafted for d in event.decisions if d.drafted is not None] == list(
            event.drafted[: len(event.decisions)]
        )
    for d in (d for d in seen if d.position < len(text)):
        check_decision(d, law_at(text, d.position, options), options)


def check_decision(d: Decision, p: np.ndarray, options: dict[str, Any]) -> None:
    assert d.p_emitted == pytest.approx(p[d.emitted], rel=1e-12)
    assert (d.p_drafted is None) == (d.drafted is None)
    if d.drafted is not None:
        assert d.p_drafted == pytest.approx(p[d.drafted], rel=1e-12)
        assert d.q_drafted == (1.0 if d.q is None else d.q[d.drafted])
    if options.get("rule") == "coupled" or options.get("temperature") == 0:
        assert d.u is None and d.draw is None
        return
    assert (d.u is None) == (d.drafted is None)
    if d.u is not None and d.q_drafted is not None and d.p_drafted is not None:
        assert d.u == noise.uniform(9, d.position, noise.ACCEPT, 0)
        assert d.accepted == (d.u * d.q_drafted < d.p_drafted)
    if d.draw is not None:
        assert d.draw == noise.uniform(9, d.position, noise.TARGET, 0)
        q = np.zeros(N) if d.drafted is None else np.eye(N)[d.drafted] if d.q is None else d.q
        low, high = noise.draw_interval(np.maximum(p - q, 0), d.emitted)
        assert low - 1e-12 <= d.draw <= high + 1e-12


def test_nothing_is_told_unasked() -> None:
    with self_drafting(TABLE, None, order=2) as opened, opened.session() as session:
        assert all(event.decisions == () for event in session.generate([0], max_new_tokens=5, seed=1))


def test_rows_are_the_tables() -> None:
    """In any width, after a generation, and again after rolling back; the next generation is as it would have
    been.
    """
    ids = np.random.default_rng(0).integers(0, N, 40).tolist()
    wanted = np.stack([TABLE[a * N + b] for a, b in zip([0, *ids], ids, strict=False)])
    with model(Ahead()) as opened, opened.session() as session:
        before = session.run(ids, seed=5, max_new_tokens=20, text=False).tokens
        assert session.rows(ids[:32], 0, 32, wanted=False).shape == (0, N)
        assert np.array_equal(session.rows(ids[32:36], 32, 5), wanted[32:36])
        assert np.array_equal(session.rows(ids[8:11], 8, 3), wanted[8:11])
        assert session.run(ids, seed=5, max_new_tokens=20, text=False).tokens == before


def test_rows_refuse() -> None:
    with model(Ahead()) as opened, opened.session() as session:
        for wrong, found in (
            (([1], 0, 6), "no width 6"),
            (([1, 2], 0, 1), "2 ids do not fit"),
            (([1], 1, 1), "holds 0 entries"),
            (([], 0, 1), "0 ids"),
            (([8], 0, 1), "token id 8"),
            (([1], -1, 1), "holds 0 entries and"),
        ):
            with pytest.raises(InputError, match=found):
                session.rows(*wrong)
        for at in range(0, 96, 32):
            session.rows([1] * 32, at, 32, wanted=False)
        with pytest.raises(InputError, match="do not fit the context of 96"):
            session.rows([1], 96, 1)


def test_rows_end_a_generation() -> None:
    with model(Ahead()) as opened, opened.session() as session:
        running = session.generate([0], max_new_tokens=20)
        next(running)
        session.rows([1], 0, 1)
        with pytest.raises(InputError, match="this generation ended"):
            next(running)
