"""What one round does not show: two rounds in a row, samples, neighbouring seeds, calls without a seed, other
sessions.

Null hypothesis of the chi-square tests: the two things compared are independent and each follows its exact
law. Level and number of trials are those of `judge`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate.law import exact
from specc.gate.law.case import (
    PROMPT,
    Case,
    LawTest,
    Rounds,
    make_model,
    make_process,
    run_trials,
    sampling_options,
)
from specc.gate.law.exact import Process, State
from specc.gate.stats import fit_p_value
from specc.runtime import Library, Session

UNSEEDED = 4000
"""Calls without a seed, at most."""


def judge_independence(case: Case, trials: int, seed: int, library: Library | None = None) -> list[LawTest]:
    """All tests of this module for one case with a model drafter and no penalties."""
    process = make_process(case, ())
    with make_model(case, library) as model, model.session() as session, model.session() as other:
        rounds = run_trials(session, case, trials, seed, rounds=2)
        tests = [*fit_two_rounds(process, rounds), *fit_samples(case, session, process, trials, seed)]
        tests.append(check_same_seed(case, session, other, seed))
    return [replace(test, name=f"{case.name}: {test.name}") for test in tests]


def fit_two_rounds(process: Process, rounds: Rounds) -> Iterator[LawTest]:
    """Accepted length of a first round with the first token of the next, and with the next one's accepted
    length.

    rounds: [trials, 2, record]. Finds faults in what a rejection leaves behind: a cache, a position, a draft.
    """
    k, n = process.k, process.n
    first, second = rounds[:, 0], rounds[:, 1]
    token = second[:, 2 + (second.shape[1] - 3) // 2]
    token_law, length_law = np.zeros((k + 1, n)), np.zeros((k + 1, k + 1))
    for (length, state), weight in end_laws(process).items():
        token_law[length] += weight * process.p(state)
        length_law[length] += weight * exact.length_law(replace(process, start=state))
    lengths = np.clip(first[:, 1], 0, k).astype(np.int64)
    counts = count_cells(lengths * n + token, (k + 1) * n)
    yield LawTest("two rounds, length and next token", fit_p_value(counts, normalize_law(token_law)))
    counts = count_cells(lengths * (k + 1) + np.clip(second[:, 1], 0, k), (k + 1) ** 2)
    yield LawTest("two rounds, both lengths", fit_p_value(counts, normalize_law(length_law)))


def end_laws(process: Process) -> dict[tuple[int, State], float]:
    """Probability of each (accepted length, state behind the round)."""
    law: dict[tuple[int, State], float] = {}
    for depth, reached in enumerate(exact.reached_states(process)):
        for state, weight in reached.items():
            _, emitted = exact.slot_law(process, state, depth)
            for token in np.flatnonzero(emitted):
                key = depth, exact.advance(process, state, int(token))
                law[key] = law.get(key, 0.0) + weight * float(emitted[token])
    return law


def fit_samples(case: Case, session: Session, process: Process, trials: int, seed: int) -> Iterator[LawTest]:
    """Pairs of first tokens follow p times p: two samples of one seed, neighbouring seeds, calls without a
    seed.
    """
    p = process.p(process.start)
    law = normalize_law(np.outer(p, p))
    first, second = (run_trials(session, case, trials, seed, sample=number) for number in (0, 1))
    counts = count_pairs(first, second, case.n)
    yield LawTest("two samples of one seed are independent", fit_p_value(counts, law))
    first, second = run_trials(session, case, trials, seed), run_trials(session, case, trials, seed + trials)
    counts = count_pairs(first, second, case.n)
    yield LawTest("neighbouring seeds are independent", fit_p_value(counts, law))
    tokens = np.array([draw_unseeded(session, case) for _ in range(min(trials, UNSEEDED))])
    counts = count_cells(tokens[0:-1:2] * case.n + tokens[1::2], case.n**2)
    yield LawTest("calls without a seed are independent", fit_p_value(counts, law))


def draw_unseeded(session: Session, case: Case) -> int:
    """First token of a call without a seed."""
    options = {"rule": case.rule, "k": case.k, "max_new_tokens": 1, **sampling_options(case)}
    return session.run(PROMPT, text=False, **options).tokens[0]


def check_same_seed(case: Case, session: Session, other: Session, seed: int, generations: int = 5) -> LawTest:
    """A seed gives one text with another session at work between its rounds; for `coupled` with any K as
    well.
    """
    options: dict[str, Any] = {"rule": case.rule, "max_new_tokens": 30, **sampling_options(case)}
    equal = True
    for i in range(generations):
        alone = session.run(PROMPT, text=False, k=case.k, seed=seed + i, **options).tokens
        disturbance = other.generate(PROMPT[:3], seed=seed + 99 + i, temperature=2.0, max_new_tokens=40)
        beside = list[int]()
        for event in session.generate(PROMPT, k=case.k, seed=seed + i, **options):
            beside += event.tokens
            next(disturbance, None)
        disturbance.close()
        equal &= alone == beside
        for k in range(1, case.k) if case.rule == "coupled" else ():
            equal &= alone == session.run(PROMPT, text=False, k=k, seed=seed + i, **options).tokens
    return LawTest("one text for a seed beside other sessions", float(equal), True)


def count_cells(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """How often each of the cells 0..count-1 occurs [count]."""
    return np.bincount(values.astype(np.int64), minlength=count).astype(np.int64)


def count_pairs(first: Rounds, second: Rounds, n: int) -> npt.NDArray[np.int64]:
    """Counts [n * n] of the first tokens of two sets of rounds."""
    column = 2 + (first.shape[1] - 3) // 2
    return count_cells(first[:, column].astype(np.int64) * n + second[:, column], n * n)


def normalize_law(law: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The law flattened, entries below 1e-15 (rounding) set to 0, summing to 1."""
    flat = np.where(law.ravel() > 1e-15, law.ravel(), 0.0)
    total: npt.NDArray[np.float64] = flat / flat.sum()
    return total
