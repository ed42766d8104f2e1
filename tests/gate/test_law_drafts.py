"""Laws of every kind of draft on table models with known p and q: heads, reduced vocabularies, stages, stops,
switches.

Tests at p > 1e-6 over fixed seeds; 20,000 rounds find a total variation of 0.03 in the law of one slot of
four ids at that level with probability 0.99 (specc.gate.stats.sample_size). Each fault that a kind can have
is put back and found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draft_files import write_table
from support.table_models import noise_table

from specc.gate import law, stats
from specc.gate.law import reference
from specc.gate.law import rounds as rounds_judge
from specc.gate.law.exact import Process, State
from specc.runtime import (
    Certificate,
    HeadDraft,
    Library,
    Model,
    Ngram,
    Options,
    Staged,
    StaticNgram,
    Table,
    TableHeads,
    controls,
)

N, K, TRIALS, SEED, LEVEL = 4, 4, 20000, 7, 1e-6
IDS = (0, 2, 3)
WIDE = (1, 2, 3, 4, 5, 6, 7, 32)
CASES = {case.name: case for case in law.make_full_grid()}
NAMES = ["K=4 rejection model T=1", "K=4 rejection model all filters", "K=4 coupled model T=1"]
Q = Callable[[State, int], reference.Row]


def target(case: law.Case, drafter: Any, library: Library | None = None) -> Model:
    """The case's table as a target that gives hidden states."""
    table, _ = law.make_tables(case)
    backend = Table(table, 2, law.CONTEXT + 32, WIDE, "gives")
    return Model.from_parts(
        backend, drafter, n_ids=N, context=law.CONTEXT, k_max=K + 2, assume_exact=True, loaded=library
    )


def draft_row(case: law.Case, ids: tuple[int, ...], state: State) -> reference.Row:
    """q of the case's draft table in a state, over a reduced vocabulary."""
    _, draft = law.make_tables(case)
    logits = np.full(N, -np.inf, np.float32)
    logits[list(ids)] = draft[state[-2] * N + state[-1]][list(ids)]
    return reference.distribution(case.options, logits, state, len(law.PROMPT))


def feature(case: law.Case, ids: tuple[int, ...] | None = None, stop: float = 0.0) -> HeadDraft:
    """A head whose previous token comes from the hidden states alone, so that a row out of step shows."""
    _, draft = law.make_tables(case)
    table = draft if ids is None else draft[:, list(ids)]
    return HeadDraft("feature", Table(table, 2, law.CONTEXT + 32, WIDE, "reads"), N, N, ids, stop)


def judge(case: law.Case, drafter: Any, q: Q, library: Library | None = None) -> list[law.LawTest]:
    """All laws of a round, q being a function of the whole state and the depth."""
    table, _ = law.make_tables(case)

    def p(state: State) -> reference.Row:
        return reference.distribution(case.options, table[state[-2] * N + state[-1]], state, len(law.PROMPT))

    process = Process(N, K, case.rule, law.PROMPT, lru_cache(maxsize=None)(p), lru_cache(maxsize=None)(q), 0)
    with target(case, drafter, library) as model, model.session() as session:
        rounds = law.run_trials(session, case, TRIALS, SEED)
    found = [
        *rounds_judge.check_structure(case, (), rounds),
        *rounds_judge.fit_slots(process, rounds),
        *rounds_judge.fit_lengths(process, rounds),
    ]
    return [*found, *rounds_judge.fit_pairs(process, rounds), rounds_judge.fit_joint(process, rounds)]


@pytest.mark.parametrize("name", NAMES)
def test_feature_head(name: str) -> None:
    """q of a feature head is the table row of (the hidden state's token, the token): rows and features are in
    step.
    """
    case = CASES[name]
    found = judge(case, feature(case), lambda state, _: draft_row(case, (0, 1, 2, 3), state))
    assert min(finding.p for finding in found) > LEVEL


@pytest.mark.parametrize("name", NAMES)
def test_reduced_vocabulary(name: str) -> None:
    """R62: q is zero outside the map, the residual still covers every id, and the race uses the ids' own
    noise.
    """
    case = CASES[name]
    found = judge(case, feature(case, IDS), lambda state, _: draft_row(case, IDS, state))
    assert min(finding.p for finding in found) > LEVEL


def test_map_taken_for_offsets_is_found() -> None:
    """R62, negative control: columns read as other ids give other laws of the proposals."""
    case = CASES[NAMES[0]]
    found = judge(
        case, replace(feature(case, IDS), ids=(0, 1, 3)), lambda state, _: draft_row(case, IDS, state)
    )
    assert min(finding.p for finding in found if not finding.structure) < LEVEL


@pytest.mark.parametrize("name", NAMES)
def test_medusa_heads(name: str) -> None:
    """Head i proposes the token i + 1 places behind the hidden state's own."""
    case, table = CASES[name], np.random.default_rng(8).normal(0, 1, (K + 2, N, N)).astype(np.float32)
    drafter = HeadDraft("medusa", TableHeads(table), N, N)

    def q(state: State, depth: int) -> reference.Row:
        return reference.distribution(case.options, table[depth, law.PROMPT[-2]], state, len(law.PROMPT))

    assert min(finding.p for finding in judge(case, drafter, q)) > LEVEL


def lookup(state: State, low: int = 2, high: int = 4) -> int | None:
    """What followed the longest earlier match, the latest of those."""
    for length in range(high, low - 1, -1):
        for at in range(len(state) - 2, length - 2, -1):
            if state[at - length + 1 : at + 1] == state[-length:]:
                return state[at + 1]
    return None


@pytest.mark.parametrize("name", NAMES)
def test_stages(name: str) -> None:
    """Lookup first, a head where lookup is silent: each node has the q of the stage that proposed it."""
    case = CASES[name]

    def q(state: State, _: int) -> reference.Row:
        found = lookup(state)
        return draft_row(case, IDS, state) if found is None else reference.one_hot(N, found)

    staged = Staged([Ngram(2, 4), feature(case, IDS)])
    assert min(finding.p for finding in judge(case, staged, q)) > LEVEL


@pytest.mark.parametrize("fault", ["q_temperature", "q_other_options", "drop_low_q", "no_residual"])
def test_faults_of_heads_are_found(fault: str) -> None:
    """R02 and its like, put back in the head's own path."""
    case = CASES["K=4 rejection model T=0.7" if fault == "q_temperature" else NAMES[1]]
    with controls().fault(fault):
        found = judge(case, feature(case, IDS), lambda state, _: draft_row(case, IDS, state), controls())
    assert min(finding.p for finding in found if not finding.structure) < LEVEL


def first_tokens(model: Model, options: dict[str, Any], count: int = 3, trials: int = TRIALS) -> np.ndarray:
    """[trials, count] first ids of as many generations."""
    with model.session() as session:
        rounds = session.trials(law.PROMPT, trials, rounds=count, seed=SEED, **options)
    emitted = rounds[:, :, 2 + (rounds.shape[2] - 3) // 2 :].reshape(trials, -1)
    return np.stack([row[row >= 0][:count] for row in emitted])


def judge_text(case: law.Case, tokens: np.ndarray) -> float:
    """Chi-square of the first ids as a whole against the target alone."""
    table, _ = law.make_tables(case)
    expected = np.zeros((N,) * tokens.shape[1])
    for index in np.ndindex(expected.shape):
        state, weight = law.PROMPT, 1.0
        for token in index:
            row = reference.distribution(
                case.options, table[state[-2] * N + state[-1]], state, len(law.PROMPT)
            )
            state, weight = (*state, token), weight * float(row[token])
        expected[index] = weight
    counts = np.bincount(np.ravel_multi_index(tuple(tokens.T), expected.shape), minlength=expected.size)
    return stats.fit_p_value(counts, expected.ravel())


PRICES = {
    "even": (1.0, 1.1, 1.2, 1.3, 1.4),
    "steep": (1.0, 1.5, 2.4, 3.0, 3.6),
    "flat": (1.0, 1.01, 1.02, 1.03, 1.04),
}


def priced(model: Model, costs: tuple[float, ...], draft_call_ms: float = 0.05) -> Certificate:
    """A certificate with prices for the model's widths: of 1 to K + 1 rows, the last one for more."""
    have = model.info.certificate
    call_ms = tuple(costs[min(width, len(costs)) - 1] for width in have.widths)
    return replace(have, call_ms=call_ms, draft_call_ms=draft_call_ms)


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("stop", [0.0, 0.6])
def test_stops_and_prices_keep_the_text(prices: str, stop: float) -> None:
    """A stop looks at the next q before its draw, the controller at costs and committed tokens: the text
    follows p.
    """
    case = CASES[NAMES[0]]
    staged = Staged([Ngram(2, 4), feature(case, IDS, stop)])
    with target(case, staged) as model:
        model.apply(priced(model, PRICES[prices]))
        tokens = first_tokens(model, {"k": K})
        with model.session() as session:
            stats_of = session.run(law.PROMPT, seed=1, max_new_tokens=40).stats
    assert judge_text(case, tokens) > LEVEL
    assert stats_of["proposed"] > 0 or prices == "steep"


def test_a_stop_behind_the_draw_is_found() -> None:
    """Negative control: the same stop, looking at what was drawn."""
    case = CASES[NAMES[0]]
    with controls().fault("drop_low_q"), target(case, feature(case), controls()) as model:
        tokens = first_tokens(model, {"k": K})
    assert judge_text(case, tokens) < LEVEL


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_long_text_under_the_controller(rule: str) -> None:
    """60 generations of 200 tokens with pauses on and off: the next token given the last follows p in every
    context.
    """
    table = noise_table(N, 1, 5)
    pairs, paused = np.zeros((N, N), np.int64), 0
    with Model.table(table, drafter=Ngram(1, 4), k_max=K) as model:
        model.apply(priced(model, PRICES["steep"]))
        with model.session() as session:
            for seed in range(60):
                result = session.run([0, 1], rule=rule, seed=seed, max_new_tokens=200)
                text = np.array([1, *result.tokens])
                np.add.at(pairs, (text[:-1], text[1:]), 1)
                paused += result.stats["rounds_paused"]
                assert result.stats["rounds"] <= 200
    p = np.exp(table.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    assert min(stats.fit_p_value(pairs[i], p[i]) for i in range(N)) > LEVEL
    assert paused > 0 or rule == "rejection"


def test_seeded_runs_repeat(tmp_path: Path) -> None:
    """Bit for bit: ids, and what was proposed, whatever ran in the session before; no clock decides."""
    case = CASES[NAMES[0]]
    table = write_table(tmp_path / "t.bin", [0, 1, 2, 3] * 20, N)
    drafter = Staged([Ngram(2, 4), StaticNgram(table, N), feature(case, IDS)])
    with target(case, drafter) as model:
        model.apply(priced(model, PRICES["even"]))
        with model.session() as session:
            runs = [session.run(law.PROMPT, seed=seed, max_new_tokens=40) for seed in (3, 4, 3)]
    assert runs[0].tokens == runs[2].tokens
    assert runs[0].stats["proposed"] == runs[2].stats["proposed"]
    assert runs[0].stats["accepted_length"] == runs[2].stats["accepted_length"]


def test_k_switched_keeps_a_self_draft_whole() -> None:
    """K = 4, 4, 0, 0, 4 over one cache: the target as its own head is accepted always, and no entry is missed
    (R16).
    """
    options = Options(temperature=0)
    case = replace(CASES["K=4 rejection self T=1"], options=options)
    table, _ = law.make_tables(case)
    head = HeadDraft("feature", Table(table, 2, 400, WIDE, "reads"), N, N)
    backend = Table(table, 2, 400, WIDE, "gives")
    parts = Model.from_parts(backend, head, n_ids=N, context=300, k_max=K, assume_exact=True)
    with parts as model, model.session() as session:
        text = list(law.PROMPT)
        for k in (4, 4, 0, 0, 4) * 4:
            result = session.run(text, temperature=0, k=k, speculation=k > 0, max_new_tokens=10)
            assert result.stats["accepted"] == result.stats["proposed"]
            assert (result.stats["proposed"] > 0) == (k > 0)
            text += result.tokens
        whole = len(text) - len(law.PROMPT)
        plain = session.run(law.PROMPT, temperature=0, speculation=False, max_new_tokens=whole)
        assert [*law.PROMPT, *plain.tokens] == text


def test_pauses_when_nothing_is_accepted(tmp_path: Path) -> None:
    """R58: a table that is always wrong stops being asked; of 400 rounds at most 12 pay for rows that bring
    nothing.
    """
    wrong = write_table(tmp_path / "w.bin", [i * 3 % 8 for i in range(80)], 8)
    chain = (8 * np.roll(np.eye(8), 1, axis=1)).astype(np.float32)
    with Model.table(chain, drafter=StaticNgram(wrong, 8), k_max=K, context=512) as model:
        model.apply(priced(model, PRICES["even"]))
        with model.session() as session:
            stats_of = session.run([3, 6], temperature=0, max_new_tokens=400).stats
    assert stats_of["rounds"] == 400
    assert stats_of["rounds_proposing"] <= 12


@pytest.mark.parametrize("ids", [(0, 2, 2), (2, 0, 3), (0, 1, 4), (-1, 0, 1), ()])
def test_wrong_maps_are_refused(ids: tuple[int, ...]) -> None:
    """R62: repeated, unsorted, outside the target's ids, empty."""
    case = CASES[NAMES[0]]
    _, draft = law.make_tables(case)
    head = HeadDraft("feature", Table(draft[:, : max(len(ids), 1)], 2, 96, WIDE, "reads"), N, N, ids)
    with pytest.raises(Exception, match="map|column|ids"):
        target(case, head)


def test_heads_of_another_target_are_refused() -> None:
    """Other hidden size, and a target that gives no hidden states."""
    case = CASES[NAMES[0]]
    head = feature(case)
    with pytest.raises(Exception, match="hidden|numbers"):
        target(case, replace(head, hidden=5))
    with pytest.raises(Exception, match="hidden states"):
        Model.table(noise_table(N, 2), order=2, drafter=head)
