"""What one round does not show: two rounds in a row, samples, calls without a seed, seeds beside other sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specc.gate import exact
from specc.gate.exact import Process, State
from specc.gate.stats import fit
from specc.runtime import Library, Session

if TYPE_CHECKING:
    from specc.gate.law import Case, Finding, Rounds

UNSEEDED = 4000  # calls without a seed


def two_rounds(process: Process, rounds: Rounds) -> Iterator[tuple[str, float]]:
    """Accepted length of a first round with the first token of the next, and with its accepted length.

    rounds: [trials, 2, record]. An error may hide in what a rejection leaves behind: a cache, a position, a draft.
    """
    k, n = process.k, process.n
    first, second = rounds[:, 0], rounds[:, 1]
    token = second[:, 2 + (second.shape[1] - 3) // 2]
    after = ends(process)
    tokens, lengths = np.zeros((k + 1, n)), np.zeros((k + 1, k + 1))
    for (length, state), weight in after.items():
        again = replace(process, start=state)
        tokens[length] += weight * process.p(state)
        lengths[length] += weight * exact.length_law(again)
    whole = np.clip(first[:, 1], 0, k).astype(np.int64)
    yield "two rounds, length and next token", fit(cells(whole * n + token, (k + 1) * n), clean(tokens))
    pairs = whole * (k + 1) + np.clip(second[:, 1], 0, k)
    yield "two rounds, both lengths", fit(cells(pairs, (k + 1) ** 2), clean(lengths))


def ends(process: Process) -> dict[tuple[int, State], float]:
    """Probability of (accepted length, state behind the round)."""
    found: dict[tuple[int, State], float] = {}
    for depth, reached in enumerate(exact.states(process)):
        for state, weight in reached.items():
            _, emitted = exact.slot(process, state, depth)
            for token in np.flatnonzero(emitted):
                key = depth, exact.advance(process, state, int(token))
                found[key] = found.get(key, 0.0) + weight * float(emitted[token])
    return found


def cells(values: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    return np.bincount(values.astype(np.int64), minlength=count).astype(np.int64)


def clean(law: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Flat, without rounding dust, summing to 1."""
    flat = np.where(law.ravel() > 1e-15, law.ravel(), 0.0)
    total: npt.NDArray[np.float64] = flat / flat.sum()
    return total


def samples(case: Case, session: Session, process: Process, trials: int, seed: int) -> Iterator[Finding]:
    """First tokens of two samples of one seed, of calls without a seed one after another: pairs follow p times p."""
    from specc.gate.law import Finding, run_trials

    p = process.p(process.start)
    law = clean(np.outer(p, p))
    one, other = (run_trials(session, case, trials, seed, sample=number) for number in (0, 1))
    yield Finding(
        f"{case.name}: two samples of one seed are independent", fit(paired(one, other, case.n), law)
    )
    one, other = run_trials(session, case, trials, seed), run_trials(session, case, trials, seed + trials)
    yield Finding(f"{case.name}: neighbouring seeds are independent", fit(paired(one, other, case.n), law))
    tokens = np.array([unseeded(session, case) for _ in range(min(trials, UNSEEDED))])
    pairs = cells(tokens[0:-1:2] * case.n + tokens[1::2], case.n**2)
    yield Finding(f"{case.name}: calls without a seed are independent", fit(pairs, law))


def paired(one: Rounds, other: Rounds, n: int) -> npt.NDArray[np.int64]:
    """Counts [n * n] of the first tokens of two sets of rounds."""
    column = 2 + (one.shape[1] - 3) // 2
    return cells(one[:, column].astype(np.int64) * n + other[:, column], n * n)


def unseeded(session: Session, case: Case) -> int:
    """First token of a call without a seed."""
    from specc.gate.law import PROMPT, options_of

    return session.run(
        PROMPT, text=False, rule=case.rule, k=case.k, max_new_tokens=1, **options_of(case)
    ).tokens[0]


def same_seed(case: Case, session: Session, other: Session, seed: int, generations: int = 5) -> Finding:
    """A seed gives one text with another session at work between its rounds; for `coupled` with any K as well."""
    from specc.gate.law import PROMPT, Finding, options_of

    ask: dict[str, Any] = {"rule": case.rule, "max_new_tokens": 30, **options_of(case)}
    equal = True
    for i in range(generations):
        alone = session.run(PROMPT, text=False, k=case.k, seed=seed + i, **ask).tokens
        noise, beside = (
            other.generate(PROMPT[:3], seed=seed + 99 + i, temperature=2.0, max_new_tokens=40),
            list[int](),
        )
        for event in session.generate(PROMPT, k=case.k, seed=seed + i, **ask):
            beside += event.tokens
            next(noise, None)
        noise.close()
        equal &= alone == beside
        for k in range(1, case.k) if case.rule == "coupled" else ():
            equal &= alone == session.run(PROMPT, text=False, k=k, seed=seed + i, **ask).tokens
    return Finding(f"{case.name}: one text for a seed beside other sessions", float(equal), True)


def judge(case: Case, trials: int, seed: int, library: Library | None = None) -> list[Finding]:
    """All of this module for one case with a model drafter and no penalties."""
    from specc.gate.law import Finding, make_model, make_process, run_trials

    process = make_process(case, ())
    with make_model(case, library) as model, model.session() as session, model.session() as other:
        rounds = run_trials(session, case, trials, seed, rounds=2)
        found = [Finding(f"{case.name}: {name}", p) for name, p in two_rounds(process, rounds)]
        found += samples(case, session, process, trials, seed)
        return [*found, same_seed(case, session, other, seed)]
