"""Exact laws of a round on table models, computed from p, q and the rule.

A round goes through slots 0..K. In slot i < K the draft's token is accepted or replaced; slot K is the bonus.
The state before a slot holds the tokens that p and q depend on: the last two tokens of a Markov table, the
whole history with penalties. `rejection` follows Leviathan et al. 2023 and Chen et al. 2023 (accept with
probability min(1, p / q), replace from the normalised positive part of p - q), so a slot emits token t by
acceptance with probability min(p, q)(t). `coupled` is Gumbel-max coupling: both models draw with the same
noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specc.gate.law.reference import Row

State = tuple[int, ...]
"""Tokens that p and q depend on."""


@dataclass(frozen=True)
class Process:
    """What decides a round: rule, K, and p and q by state and depth."""

    n: int
    """Size of the vocabulary."""
    k: int
    rule: str
    start: State
    p: Callable[[State], Row]
    q: Callable[[State, int], Row]
    keep: int
    """Tokens that a state holds; 0: all."""


def split_slot(rule: str, p: Row, q: Row) -> tuple[Row, Row]:
    """(accepted, replaced): probability that the slot emits each token by acceptance and by replacement; sums
    to p.
    """
    accepted = np.minimum(p, q) if rule == "rejection" else coupled_agreement(p, q)
    return accepted, p - accepted


def coupled_agreement(p: Row, q: Row) -> Row:
    """[n] probability that two exponential races over the same noise are both won by t.

    Token s arrives in the race of p at E_s / p_s with E_s exponential, so t wins both exactly when E_s / E_t
    >= max(p_s / p_t, q_s / q_t) for every s, which has probability 1 / sum_s max(p_s / p_t, q_s / q_t).
    """
    out = np.zeros_like(p)
    for t in np.flatnonzero((p > 0) & (q > 0)):
        out[t] = 1.0 / np.maximum(p / p[t], q / q[t]).sum()
    return out


def reached_states(process: Process) -> list[dict[State, float]]:
    """For each slot 0..K the states in which it is reached, with their probabilities."""
    reached = [{process.start: 1.0}]
    for depth in range(process.k):
        after: dict[State, float] = {}
        for state, weight in reached[depth].items():
            accepted, _ = split_slot(process.rule, process.p(state), process.q(state, depth))
            for token in np.flatnonzero(accepted):
                key = advance(process, state, int(token))
                after[key] = after.get(key, 0.0) + weight * float(accepted[token])
        reached.append(after)
    return reached


def advance(process: Process, state: State, token: int) -> State:
    """The state after a token."""
    return (*state, token)[-process.keep :] if process.keep else (*state, token)


def slot_laws(process: Process) -> list[tuple[Row, Row]]:
    """For each slot 0..K (accepted [n], replaced [n]) over all rounds, not given that it is reached; bonus:
    (0, p).
    """
    laws = []
    for depth, reached in enumerate(reached_states(process)):
        accepted, replaced = np.zeros(process.n), np.zeros(process.n)
        for state, weight in reached.items():
            a, r = slot_law(process, state, depth)
            accepted, replaced = accepted + weight * a, replaced + weight * r
        laws.append((accepted, replaced))
    return laws


def slot_law(process: Process, state: State, depth: int) -> tuple[Row, Row]:
    """(accepted, replaced) of one slot in one state; nothing is accepted in the bonus slot."""
    p = process.p(state)
    return (
        split_slot(process.rule, p, process.q(state, depth))
        if depth < process.k
        else (np.zeros(process.n), p)
    )


def length_law(process: Process) -> Row:
    """[K + 1] probability that so many tokens are accepted."""
    reach: Row = np.array([sum(reached.values()) for reached in reached_states(process)])
    law: Row = reach - np.append(reach[1:], 0.0)
    return law


def pair_laws(process: Process) -> list[Row]:
    """For each pair of slots (i, i + 1) the law [n * n] of their emitted tokens, of rounds that reach slot i
    + 1.
    """
    laws = []
    for depth, reached in enumerate(reached_states(process)[:-1]):
        law = np.zeros((process.n, process.n))
        for state, weight in reached.items():
            accepted, _ = slot_law(process, state, depth)
            for token in np.flatnonzero(accepted):
                law[token] += weight * accepted[token] * process.p(advance(process, state, int(token)))
        laws.append(law.ravel())
    return laws


def joint_law(process: Process) -> dict[State, float]:
    """Probability of each whole round: (accepted length, emitted tokens...)."""
    law: dict[State, float] = {}

    def visit(state: State, emitted: State, weight: float) -> None:
        depth = len(emitted)
        accepted, replaced = slot_law(process, state, depth)
        for token in range(process.n):
            outcome = (depth, *emitted, token)
            if replaced[token] > 0:
                law[outcome] = weight * float(replaced[token])
            if accepted[token] > 0:
                visit(advance(process, state, token), (*emitted, token), weight * float(accepted[token]))

    visit(process.start, (), 1.0)
    return law
