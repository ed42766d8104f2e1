"""A small draft, a middle model, a target: the composition's laws on tables with known p and q, and its
faults.

All that the middle model emits goes to the target with its own q, so a round's laws are those of the middle
model drafting alone, whatever the small draft is. 20,000 rounds as in test_law_drafts; each fault is put back
and found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.table_models import chain, noise_table

from specc.errors import SpeccError
from specc.gate import law, stats
from specc.gate.law import reference
from specc.gate.law import rounds as rounds_judge
from specc.runtime import (
    Drafter,
    HeadDraft,
    Hierarchy,
    Library,
    Model,
    ModelDraft,
    Ngram,
    Staged,
    Table,
    controls,
)

N, K, TRIALS, SEED, LEVEL = 4, 4, 20000, 7, 1e-6
CASES = {case.name: case for case in law.make_full_grid()}
NAMES = ["K=4 rejection model T=1", "K=4 rejection model all filters", "K=4 rejection model penalties"]
COUPLED = "K=4 coupled model T=1"
WIDE = (*range(1, 8), 32)


def engine(logits: Any, hidden: str = "") -> Table:
    """A table as a draft's engine, its order by its size."""
    return Table(logits, 2 if len(logits) > N else 1, law.CONTEXT + 32, WIDE, hidden)


def small(name: str) -> Any:
    """What speeds the middle model up: a table of its own, lookup, or both in a chain."""
    model = ModelDraft(engine(noise_table(N, 1, 31)))
    return {"model": model, "ngram": Ngram(1, 4), "chain": Staged([Ngram(2, 4), model])}[name]


def composed(case: law.Case, drafts: str, k: int = 3, library: Library | None = None) -> Model:
    """The case's target, its draft table as the middle model, a small draft before that."""
    target, middle = law.make_tables(case)
    drafter = Hierarchy(engine(middle), small(drafts), N, k)
    return Model.table(target, order=2, drafter=drafter, k_max=K + 2, context=law.CONTEXT, loaded=library)


def findings(case: law.Case, drafts: str, k: int = 3, library: Library | None = None) -> list[law.LawTest]:
    """All laws of a round."""
    with composed(case, drafts, k, library) as model, model.session() as session:
        return rounds_judge.judge_rounds(case, law.run_trials(session, case, TRIALS, SEED))


@pytest.mark.parametrize("drafts", ["model", "ngram", "chain"])
@pytest.mark.parametrize("name", NAMES)
def test_composition(name: str, drafts: str) -> None:
    """Nodes follow the middle model's q, so accepted, replacement, bonus, pair and joint laws are those of p
    and q.
    """
    assert min(finding.p for finding in findings(CASES[name], drafts)) > LEVEL


@pytest.mark.parametrize("k", [1, 2, 7])
def test_composition_at_other_lengths(k: int) -> None:
    """The small draft proposes one token at a time, two, or more than fit."""
    assert min(finding.p for finding in findings(CASES[NAMES[0]], "model", k)) > LEVEL


@pytest.mark.parametrize("fault", ["middle_accepted_only", "middle_same_random", "no_residual"])
def test_faults_of_the_composition_are_found(fault: str) -> None:
    """Sending only what the middle model accepted; one set of numbers for both judgements; an inner law not
    q.
    """
    case = CASES[NAMES[0]]
    with controls().fault(fault):
        found = findings(case, "model", library=controls())
    assert min(finding.p for finding in found if not finding.structure and "emitted" in finding.name) < LEVEL


def text_law(library: Library | None, row_ms: float = 0.0) -> float:
    """Chi-square of the first two tokens of generations against p alone: the text's own law, whatever a round
    sent.

    row_ms: what a further row costs, with a call of one row at 1 ms; 0: no prices, so that every node pays.
    """
    case = CASES[NAMES[0]]
    target, _ = law.make_tables(case)
    with composed(case, "model", 3, library) as model:
        have = model.info.certificate
        costs = (
            tuple(1 + row_ms * (min(width, K + 1) - 1) for width in have.widths) if row_ms else have.call_ms
        )
        model.apply(replace(have, call_ms=costs, draft_call_ms=row_ms))
        with model.session() as session:
            rounds = session.trials(law.PROMPT, TRIALS, rounds=2, seed=SEED, k=K)
    emitted = rounds[:, :, 2 + (rounds.shape[2] - 3) // 2 :].reshape(TRIALS, -1)
    first = np.stack([row[row >= 0][:2] for row in emitted])
    expected = np.zeros((N, N))
    for a, b in np.ndindex(N, N):
        rows = target[law.PROMPT[-2] * N + law.PROMPT[-1]], target[law.PROMPT[-1] * N + a]
        p, q = (reference.softmax(row.astype(np.float64)) for row in rows)
        expected[a, b] = p[a] * q[b]
    counts = np.bincount(first[:, 0] * N + first[:, 1], minlength=N * N)
    return stats.fit_p_value(counts, expected.ravel())


def test_text_follows_the_target_alone() -> None:
    """Of 20,000 generations; with only accepted tokens sent it does not."""
    assert text_law(None) > LEVEL
    with controls().fault("middle_accepted_only"):
        assert text_law(controls()) < LEVEL


@pytest.mark.parametrize("row_ms", [0.01, 0.1, 0.3])
def test_stops_of_the_controller_keep_the_text(row_ms: float) -> None:
    """A node is left out by what stands before it and the middle model's next q, never by what was drawn from
    that.
    """
    assert text_law(None, row_ms) > LEVEL


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_and_greedy_text(temperature: float) -> None:
    """The same text with and without; the same nodes as the middle model alone, from fewer calls of it."""
    case = CASES[COUPLED]
    target, middle = law.make_tables(case)
    with composed(case, "model") as model, model.session() as session:
        alone = Model.table(
            target, order=2, drafter=ModelDraft(engine(middle)), k_max=K + 2, context=law.CONTEXT
        )
        with alone, alone.session() as other:
            ask: dict[str, Any] = {
                "rule": "coupled",
                "temperature": temperature,
                "k": K,
                "max_new_tokens": 40,
            }
            for seed in range(20):
                texts = [session.run(law.PROMPT, seed=seed, speculation=on, **ask) for on in (False, True)]
                wanted = other.run(law.PROMPT, seed=seed, **ask)
                assert texts[0].tokens == texts[1].tokens == wanted.tokens
                assert texts[1].stats["accepted_length"] == wanted.stats["accepted_length"]


def test_middle_model_is_called_less_often() -> None:
    """A small draft that is right: four nodes from one call of the middle model and four of its own."""
    table = chain(8)
    drafter = Hierarchy(Table(table, 1, 600, WIDE), Ngram(1, 2), 8, 4)
    with Model.table(table, drafter=drafter, k_max=K, context=400) as model, model.session() as session:
        stats = session.run([i % 8 for i in range(20)], temperature=0, max_new_tokens=300).stats
        plain = session.run([i % 8 for i in range(20)], temperature=0, max_new_tokens=300, speculation=False)
    assert plain.stats["emitted"] == stats["emitted"] == 300
    assert stats["accepted"] == stats["proposed"] and stats["draft_calls"] <= stats["rounds"] + 1


@pytest.mark.parametrize("drafts", ["model", "ngram"])
def test_cache_is_never_behind(drafts: str) -> None:
    """R16: the target as its own middle model is accepted always, over 200 tokens; K = 4, 4, 0, 0, 4."""
    table = noise_table(8, 2)
    inner = ModelDraft(Table(noise_table(8, 2, 9), 2, 600, WIDE)) if drafts == "model" else Ngram(1, 4)
    drafter = Hierarchy(Table(table, 2, 600, WIDE), inner, 8, 3)
    with (
        Model.table(table, order=2, drafter=drafter, k_max=K, context=500) as model,
        model.session() as session,
    ):
        text = [0, 1]
        for k in (4, 4, 0, 0, 4) * 4:
            result = session.run(text, temperature=0, k=k, speculation=k > 0, max_new_tokens=10)
            assert result.stats["accepted"] == result.stats["proposed"]
            assert (result.stats["proposed"] > 0) == (k > 0)
            text += result.tokens


class Whole(Drafter):
    """A drafter of whole chains."""


def test_what_cannot_speed_up_a_middle_model_is_refused() -> None:
    """Heads over the target's hidden states, drafters of whole chains, a hierarchy within a chain,
    other ids.
    """
    table = noise_table(N, 1)
    head = HeadDraft("feature", engine(noise_table(N, 2), "reads"), N, N)
    for drafter, words in (
        (Hierarchy(engine(table), head, N), "reads the target's hidden states"),
        (Hierarchy(engine(table), Whole(), N), "proposes whole chains only"),
        (Hierarchy(engine(table), Ngram(1, 2), N, 0), "1 to 15 tokens at a time"),
        (Staged([Ngram(1, 2), Hierarchy(engine(table), Ngram(1, 2), N)]), "proposes whole chains only"),
    ):
        with pytest.raises(SpeccError, match=words):
            Model.table(table, drafter=drafter)
    other = Hierarchy(engine(table), Ngram(1, 2), N - 1)
    with Model.table(table, drafter=other) as model, model.session() as session:
        assert session.run([0], max_new_tokens=5).stats["reasons"] == ["draft-error"]
