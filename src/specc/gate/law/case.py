"""One law test's subject: a table model with a drafter, a rule and options, its rounds and its exact
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate.law import reference
from specc.gate.law.exact import Process, State
from specc.runtime import Hierarchy, Library, Model, ModelDraft, Ngram, Options, Session, Table

PROMPT = (0, 1, 2, 3, 0, 1, 2, 0, 1)
"""The n-gram drafter finds 0 1 twice in it."""
CONTEXT = 64
Rounds = npt.NDArray[np.int32]
"""[trials, 2 + k_max + (k_max + 1)]: proposed, accepted, drafted ids, emitted ids; -1 where a slot
has none.
"""


@dataclass(frozen=True)
class Case:
    """One table model, drafter, rule and set of options."""

    name: str
    k: int
    rule: str
    """`rejection` or `coupled`."""
    drafter: str
    """`model`, `self` (the target itself), `ngram`, or `hierarchy`: a model that is sped up by lookup."""
    options: Options
    n: int = 4
    """Size of the vocabulary."""
    order: int = 2
    """Tokens that the next one depends on."""
    noise: float = 1.0
    """Standard deviation of the draft's logits around the target's."""

    @property
    def has_penalties(self) -> bool:
        """Whether p depends on more than the last two tokens."""
        o = self.options
        return bool(o.repetition_penalty != 1 or o.presence_penalty or o.frequency_penalty)


@dataclass(frozen=True)
class LawTest:
    """Result of one test of one case.

    name: what was tested; p: the p-value; structure: a property that every round must have, where p is 0
    (violated) or 1 (holds) and no significance level applies.
    """

    name: str
    p: float
    structure: bool = False


def make_tables(case: Case) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(target, draft) logits [n ** order, n]; the same for every case of the same size."""
    rng = np.random.default_rng(1000 * case.n + case.order)
    target = rng.normal(0.0, 1.2, (case.n**case.order, case.n)).astype(np.float32)
    draft = target + rng.normal(0.0, case.noise, target.shape).astype(np.float32)
    return target, target.copy() if case.drafter == "self" else draft


def make_model(case: Case, library: Library | None, tv: float = 0.0) -> Model:
    """The case's model. K_max is K + 2, so that a token too many would be seen.

    tv: total variation by which the target's row at the prompt is made wrong, to measure the power of the
    tests.
    """
    target, draft = make_tables(case)
    if tv:
        target = shift_mass(target, PROMPT[-2] * case.n + PROMPT[-1], tv)
    engine = Table(draft, case.order, CONTEXT + 32, (*range(1, case.k + 4), 32))
    drafter: Any = Ngram(1, 2) if case.drafter == "ngram" else ModelDraft(engine)
    if case.drafter == "hierarchy":
        drafter = Hierarchy(engine, Ngram(1, 2), case.n)
    return Model.table(
        target, order=case.order, drafter=drafter, k_max=case.k + 2, context=CONTEXT, loaded=library
    )


def shift_mass(table: npt.NDArray[np.float32], row: int, tv: float) -> npt.NDArray[np.float32]:
    """The table with `tv` of one row's probability moved from its most to its least probable token."""
    p = reference.softmax(table[row].astype(np.float64))
    p[p.argmax()] -= tv
    p[p.argmin()] += tv
    changed: npt.NDArray[np.float32] = table.copy()
    changed[row] = np.log(p)
    return changed


def sampling_options(case: Case) -> dict[str, Any]:
    """The case's sampling options as keywords of a request."""
    return {name: getattr(case.options, name) for name in Options.__dataclass_fields__}


def run_trials(
    session: Session, case: Case, trials: int, seed: int, rounds: int = 1, sample: int = 0
) -> Rounds:
    """Rounds [trials, record] behind the case's prompt; [trials, rounds, record] for more than one in
    a row.
    """
    request = {"rule": case.rule, "k": case.k, "seed": seed, "sample": sample, **sampling_options(case)}
    records = session.trials(PROMPT, trials, rounds, **request)
    return records[:, 0] if rounds == 1 else records


def make_process(case: Case, chain: State) -> Process:
    """The exact process of a case; chain: the tokens that a deterministic drafter proposes, () for a
    model.
    """
    target, draft = make_tables(case)

    def row(table: npt.NDArray[np.float32], state: State) -> reference.Row:
        last = state[-1] if case.order == 1 else state[-2] * case.n + state[-1]
        return reference.distribution(case.options, table[last], state, len(PROMPT))

    p = lru_cache(maxsize=None)(lambda state: row(target, state))
    q = lru_cache(maxsize=None)(lambda state: row(draft, state))

    def q_at(state: State, depth: int) -> reference.Row:
        return reference.one_hot(case.n, chain[depth]) if chain else q(state)

    k = len(chain) if case.drafter == "ngram" else case.k
    start, keep = (PROMPT, 0) if case.has_penalties else (PROMPT[-2:], 2)
    return Process(case.n, k, case.rule, start, p, q_at, keep)


def drafted_tokens(rounds: Rounds) -> Rounds:
    """[trials, k_max] drafted ids."""
    return rounds[:, 2 : 2 + (rounds.shape[1] - 3) // 2]


def emitted_tokens(rounds: Rounds) -> Rounds:
    """[trials, k_max + 1] emitted ids."""
    return rounds[:, 2 + (rounds.shape[1] - 3) // 2 :]
