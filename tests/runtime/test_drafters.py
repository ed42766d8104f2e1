"""Drafters and backends written in Python: their tokens, their errors, what they see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.table_models import Ahead, Logits, Python, chain, draft, noise_table

from specc.errors import RuntimeFault
from specc.runtime import DraftContext, Drafter, Io, Model, Ngram, Node


def test_python_backend_exception_is_an_error() -> None:
    """An exception in a backend fails the call with its sentence; the session can start again."""

    def spoil(logits: Logits, io: Io) -> None:
        if io.past_len[0] == 3:
            raise ValueError("no such slot")

    with (
        Model.from_parts(Python(spoil), n_ids=8, context=64, assume_exact=True) as model,
        model.session() as session,
    ):
        with pytest.raises(RuntimeFault, match="no such slot"):
            session.run([0], temperature=0)
        assert session.tokens == [1, 2, 3]
        assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]


class Sampling(Drafter):
    """Draws from flat logits, as a sampled draft model would."""

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        return [context.draw(np.zeros(context.n_ids, np.float32), depth) for depth in range(context.k)]


class Failing(Drafter):
    """Breaks after three rounds, by exception or by an id that there is not."""

    def __init__(self, how: str) -> None:
        self.how, self.rounds = how, 0

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        self.rounds += 1
        if self.rounds > 3 and self.how == "raise":
            raise RuntimeError("out of drafts")
        return [999 if self.rounds > 3 else 1]


def test_python_drafters_keep_the_text() -> None:
    """Coupled text does not depend on the drafter: none, one in Python that samples, n-gram, a table."""
    table = noise_table(8, 1)
    texts = set()
    for drafter in (None, Sampling(), Ahead(), Ngram(1, 3), draft(table)):
        with Model.table(table, drafter=drafter) as model, model.session() as session:
            texts.add(tuple(session.run([0, 1], rule="coupled", seed=9, max_new_tokens=100).tokens))
    assert len(texts) == 1


@pytest.mark.parametrize("how", ["raise", "bad id"])
def test_failing_drafter_is_left_out(how: str) -> None:
    """The text goes on plain with reason draft-error."""
    with Model.table(chain(8), drafter=Failing(how)) as model, model.session() as session:
        result = session.run([0], temperature=0, max_new_tokens=20)
        assert result.tokens == [(i + 1) % 8 for i in range(20)]
        assert result.stats["reasons"] == ["draft-error"]


def test_python_drafter_sees_committed_tokens() -> None:
    """tokens, n_prompt, k, rule and seed reach the drafter; commit gets a growing length."""

    class Watching(Ahead):
        def __init__(self) -> None:
            self.seen: list[tuple[list[int], int, int, str, int]] = []
            self.kept: list[int] = []

        def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
            self.seen.append(
                (context.tokens.tolist(), context.n_prompt, context.k, context.rule, context.seed)
            )
            return super().propose(state, context)

        def commit(self, state: Any, n_keep: int) -> None:
            self.kept.append(n_keep)

    watching = Watching()
    with Model.table(chain(8), drafter=watching) as model, model.session() as session:
        session.run([6, 7], temperature=0, rule="coupled", seed=2**63, max_new_tokens=7)
    assert watching.seen == [
        ([6, 7], 2, 4, "coupled", 2**63),
        ([6, 7, 0, 1, 2, 3, 4], 2, 1, "coupled", 2**63),
    ]
    assert watching.kept[1:] == [6, 8]
