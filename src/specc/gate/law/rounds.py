"""Tests of one round: counts of what the runtime did against the exact law of the same round.

Null hypothesis of every test: the trials are independent and follow the law that `exact` computes from p, q
and the rule. Statistic: Pearson's chi-square over the cells of that law (`stats.fit_p_value`, which pools
rare cells). Level and number of trials are set by `judge`: Holm's correction over all tests, and enough
trials to find a total variation of SMALLEST_TV with probability POWER.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate.law import exact, reference
from specc.gate.law.case import Case, LawTest, Rounds, drafted_tokens, emitted_tokens, make_process
from specc.gate.law.exact import Process, State
from specc.gate.stats import fit_p_value


def judge_rounds(case: Case, rounds: Rounds) -> list[LawTest]:
    """All tests of one round of one case; the joint law only where K and the vocabulary are at most 4."""
    proposed = drafted_tokens(rounds)[0]
    chain = tuple(int(t) for t in proposed if t >= 0) if case.drafter == "ngram" else ()
    process = make_process(case, chain)
    tests = [*check_structure(case, chain, rounds), *fit_slots(process, rounds)]
    tests += [*fit_lengths(process, rounds), *fit_pairs(process, rounds)]
    if case.k <= 4 and case.n <= 4:
        tests.append(fit_joint(process, rounds))
    return [replace(test, name=f"{case.name}: {test.name}") for test in tests]


def check_structure(case: Case, chain: State, rounds: Rounds) -> Iterator[LawTest]:
    """Properties of every round: K are drafted, one more than accepted is emitted, accepted ids were
    drafted.
    """
    whole = rounds[:, 0] == (len(chain) or case.k)
    yield LawTest("K tokens are proposed", float(whole.all()), True)
    one_more = (emitted_tokens(rounds) >= 0).sum(1) == rounds[:, 1] + 1
    yield LawTest("one token more than accepted", float(one_more.all()), True)
    drafted = drafted_tokens(rounds)
    inside = np.arange(drafted.shape[1]) < rounds[:, 1:2]
    same = drafted == emitted_tokens(rounds)[:, :-1]
    yield LawTest("accepted tokens were drafted", float(same[inside].all()), True)
    if chain:
        constant = (drafted[:, : len(chain)] == np.array(chain)).all()
        yield LawTest("a deterministic drafter repeats itself", float(constant), True)


def fit_slots(process: Process, rounds: Rounds) -> Iterator[LawTest]:
    """For each slot three tests: its accepted tokens, its replacement (or bonus) tokens, all its emitted
    tokens.

    Laws: min(p, q) or the coupled agreement, p minus that, and p, each averaged over the states that reach
    the slot; a last cell counts the rounds that have no such token.
    """
    for i, (accepted, replaced) in enumerate(exact.slot_laws(process)):
        tokens = emitted_tokens(rounds)[:, i]
        was_accepted, was_replaced = tokens[rounds[:, 1] > i], tokens[rounds[:, 1] == i]
        if i < process.k:
            counts = count_tokens(was_accepted, process.n, len(rounds))
            yield LawTest(f"accepted {i}", fit_p_value(counts, append_rest(accepted)))
        name = "replacement" if i < process.k else "bonus"
        counts = count_tokens(was_replaced, process.n, len(rounds))
        yield LawTest(f"{name} {i}", fit_p_value(counts, append_rest(replaced)))
        counts = count_tokens(tokens[tokens >= 0], process.n, len(rounds))
        yield LawTest(f"emitted {i}", fit_p_value(counts, append_rest(accepted + replaced)))


def fit_lengths(process: Process, rounds: Rounds) -> Iterator[LawTest]:
    """One test of the accepted lengths 0..K."""
    counts = np.bincount(np.clip(rounds[:, 1], 0, process.k), minlength=process.k + 1)
    law = np.maximum(exact.length_law(process), 0.0).round(15)
    yield LawTest("round length", fit_p_value(counts, law))


def fit_pairs(process: Process, rounds: Rounds) -> Iterator[LawTest]:
    """One test for each two neighbouring slots: their emitted tokens jointly, and the rounds that end
    before.
    """
    for i, law in enumerate(exact.pair_laws(process)):
        reached = rounds[rounds[:, 1] > i]
        first, second = emitted_tokens(reached)[:, i].astype(np.int64), emitted_tokens(reached)[:, i + 1]
        counts = count_tokens(first * process.n + second, process.n**2, len(rounds))
        yield LawTest(f"pair {i}, {i + 1}", fit_p_value(counts, append_rest(law)))


def fit_joint(process: Process, rounds: Rounds) -> LawTest:
    """One test of whole rounds: accepted length and all emitted tokens together."""
    law = exact.joint_law(process)
    base = process.n + 1
    weights = base ** np.arange(process.k + 2, dtype=np.int64)
    columns = [rounds[:, 1:2], emitted_tokens(rounds)[:, : process.k + 1]]
    outcomes = (np.concatenate(columns, axis=1).astype(np.int64) + 1) @ weights
    values, counts = np.unique(outcomes, return_counts=True)
    seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
    expected = {int(np.dot(pad(key, process.k + 2) + 1, weights)): p for key, p in law.items()}
    cells = sorted(expected.keys() | seen.keys())
    observed = np.array([seen.get(cell, 0) for cell in cells], np.int64)
    probability = np.array([expected.get(cell, 0.0) for cell in cells])
    return LawTest("joint law of the round", fit_p_value(observed, probability))


def pad(key: State, size: int) -> npt.NDArray[np.int64]:
    """The tuple as an array [size], filled up with -1."""
    return np.array([*key, *[-1] * (size - len(key))], np.int64)


def count_tokens(tokens: npt.NDArray[Any], n: int, total: int) -> npt.NDArray[np.int64]:
    """Counts [n + 1] of the ids 0..n-1 and of the rounds, of `total`, that have none."""
    counts = np.bincount(tokens, minlength=n)[:n]
    return np.append(counts, total - counts.sum()).astype(np.int64)


def append_rest(law: reference.Row) -> reference.Row:
    """The law [n] with what it lacks to 1 behind it [n + 1]; a rest below 1e-12 is rounding and
    counts as 0.
    """
    rest = 1.0 - law.sum()
    return np.append(np.where(law > 1e-15, law, 0.0), rest if rest > 1e-12 else 0.0)
