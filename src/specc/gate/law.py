"""The law judge: the shipped runtime on table models whose laws are known exactly.

Rounds come from specc_trials, laws from exact.py over reference.py; independence.py adds what one round does not show.
Each check is a chi-square test; Holm's correction over all checks keeps the chance of a false alarm at FAMILY_ERROR.
Trials follow from the smallest difference to be found: SMALLEST_TV in the law of a slot's emitted token, with POWER, at
the level of the smallest of all p-values. Negative controls, faults put back by name in the controls library, must be
found at CONTROL_LIMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.gate import exact, independence, reference
from specc.gate.checks import Check
from specc.gate.exact import Process, State
from specc.gate.stats import fit, holm, sample_size
from specc.runtime import Hierarchy, Library, Model, ModelDraft, Ngram, Options, Session, Table

FAMILY_ERROR = 9e-5  # the two-sample judge has the rest of 1e-4
SMALLEST_TV, POWER = 0.01, 0.99
CONTROL_LIMIT, CONTROL_TRIALS = 1e-6, 40000
CONTROLS = {  # fault, and the case that must show it
    "argmax_replacement": "K=4 rejection model T=1",
    "no_residual": "K=4 rejection model T=1",
    "bonus_row": "K=4 rejection model T=1",
    "drop_low_q": "K=4 rejection model T=1",
    "q_other_options": "K=4 rejection model all filters",
    "q_temperature": "K=4 rejection model T=0.7",
    "options_on_bonus_only": "K=4 rejection model all filters",
    "penalty_half": "K=4 rejection model penalties",
    "extra_token": "K=4 rejection model T=1",
    "k_from_discarded": "K=4 rejection model T=1",
    "middle_accepted_only": "K=4 rejection hierarchy T=1",
    "middle_same_random": "K=4 rejection hierarchy T=1",
    "draft_cache_behind": "K=4 rejection model T=1",  # q is still what the token was drawn from: two rounds show it
}
PAIRED = ("draft_cache_behind",)  # controls that only two rounds in a row show
PROMPT = (0, 1, 2, 3, 0, 1, 2, 0, 1)  # the n-gram drafter finds 0 1 twice in it
CONTEXT = 64
Rounds = npt.NDArray[np.int32]  # [trials, proposed, accepted, drafted..., emitted...]


@dataclass(frozen=True)
class Case:
    """One table model, drafter, rule and set of options."""

    name: str
    k: int
    rule: str  # "rejection" or "coupled"
    drafter: str  # "model", "self", "ngram", or "hierarchy": a model sped up by lookup
    options: Options
    n: int = 4
    order: int = 2
    noise: float = 1.0  # how far the draft's logits are from the target's

    @property
    def penalised(self) -> bool:
        """Whether p depends on more than the last two tokens."""
        o = self.options
        return bool(o.repetition_penalty != 1 or o.presence_penalty or o.frequency_penalty)


@dataclass(frozen=True)
class Finding:
    """One p-value of one case; `structure` is a rule that must hold in every round (p is 0 or 1)."""

    name: str
    p: float
    structure: bool = False


def tables(case: Case) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(target, draft) logits [n ** order, n], fixed by the case's size."""
    rng = np.random.default_rng(1000 * case.n + case.order)
    target = rng.normal(0.0, 1.2, (case.n**case.order, case.n)).astype(np.float32)
    draft = target + rng.normal(0.0, case.noise, target.shape).astype(np.float32)
    return target, target.copy() if case.drafter == "self" else draft


def make_model(case: Case, library: Library | None, tv: float = 0.0) -> Model:
    """The case's model; its K_max leaves room to see a token too many. tv: its row at the prompt is off by so much."""
    target, draft = tables(case)
    if tv:
        target = off_by(target, PROMPT[-2] * case.n + PROMPT[-1], tv)
    engine = Table(draft, case.order, CONTEXT + 32, (*range(1, case.k + 4), 32))
    drafter: Any = Ngram(1, 2) if case.drafter == "ngram" else ModelDraft(engine)
    if case.drafter == "hierarchy":
        drafter = Hierarchy(engine, Ngram(1, 2), case.n)
    return Model.table(
        target, order=case.order, drafter=drafter, k_max=case.k + 2, context=CONTEXT, loaded=library
    )


def options_of(case: Case) -> dict[str, Any]:
    """The case's sampling options as keywords."""
    return {name: getattr(case.options, name) for name in Options.__dataclass_fields__}


def run_trials(
    session: Session, case: Case, trials: int, seed: int, rounds: int = 1, sample: int = 0
) -> Rounds:
    """[trials, 2 + 2 (k + 2) + 1] rounds of the case's prompt, [trials, rounds, ...] for more than one in a row."""
    ask = {"rule": case.rule, "k": case.k, "seed": seed, "sample": sample, **options_of(case)}
    found = session.trials(PROMPT, trials, rounds, **ask)
    return found[:, 0] if rounds == 1 else found


def make_process(case: Case, chain: State) -> Process:
    """The exact process of a case; chain: what a one-hot drafter proposes, () for a model drafter."""
    target, draft = tables(case)

    def row(table: npt.NDArray[np.float32], state: State) -> reference.Row:
        last = state[-1] if case.order == 1 else state[-2] * case.n + state[-1]
        return reference.distribution(case.options, table[last], state, len(PROMPT))

    p = lru_cache(maxsize=None)(lambda state: row(target, state))
    q = lru_cache(maxsize=None)(lambda state: row(draft, state))

    def q_at(state: State, depth: int) -> reference.Row:
        return reference.one_hot(case.n, chain[depth]) if chain else q(state)

    k = len(chain) if case.drafter == "ngram" else case.k
    start, keep = (PROMPT, 0) if case.penalised else (PROMPT[-2:], 2)
    return Process(case.n, k, case.rule, start, p, q_at, keep)


def judge_rounds(case: Case, rounds: Rounds) -> list[Finding]:
    """All p-values of one case."""
    chain = tuple(int(t) for t in drafted(rounds)[0] if t >= 0) if case.drafter == "ngram" else ()
    process = make_process(case, chain)
    found = [*structure(case, chain, rounds), *slots(process, rounds)]
    found += [*lengths(process, rounds), *pairs(process, rounds)]
    if case.k <= 4 and case.n <= 4:
        found.append(joint(process, rounds))
    return [replace(finding, name=f"{case.name}: {finding.name}") for finding in found]


def structure(case: Case, chain: State, rounds: Rounds) -> Iterator[Finding]:
    """What holds in every round: K are drafted, one more than accepted is emitted, accepted ones were drafted."""
    whole = rounds[:, 0] == (len(chain) or case.k)
    yield Finding("K tokens are proposed", float(whole.all()), True)
    one_more = (emitted(rounds) >= 0).sum(1) == rounds[:, 1] + 1
    yield Finding("one token more than accepted", float(one_more.all()), True)
    inside = np.arange(drafted(rounds).shape[1]) < rounds[:, 1:2]
    same = drafted(rounds) == emitted(rounds)[:, :-1]
    yield Finding("accepted tokens were drafted", float(same[inside].all()), True)
    if chain:
        constant = (drafted(rounds)[:, : len(chain)] == np.array(chain)).all()
        yield Finding("a deterministic drafter repeats itself", float(constant), True)


def slots(process: Process, rounds: Rounds) -> Iterator[Finding]:
    """Accepted, replacement, bonus and emitted tokens of each slot, each with the rounds that do not get there."""
    for i, (accepted, replaced) in enumerate(exact.slot_laws(process)):
        tokens = emitted(rounds)[:, i]
        was_accepted, was_replaced = tokens[rounds[:, 1] > i], tokens[rounds[:, 1] == i]
        name = "replacement" if i < process.k else "bonus"
        if i < process.k:
            yield Finding(
                f"accepted {i}", fit(histogram(was_accepted, process.n, len(rounds)), with_rest(accepted))
            )
        yield Finding(
            f"{name} {i}", fit(histogram(was_replaced, process.n, len(rounds)), with_rest(replaced))
        )
        everyone = histogram(tokens[tokens >= 0], process.n, len(rounds))
        yield Finding(f"emitted {i}", fit(everyone, with_rest(accepted + replaced)))


def lengths(process: Process, rounds: Rounds) -> Iterator[Finding]:
    """Accepted lengths."""
    counts = np.bincount(np.clip(rounds[:, 1], 0, process.k), minlength=process.k + 1)
    yield Finding("round length", fit(counts, np.maximum(exact.length_law(process), 0.0).round(15)))


def pairs(process: Process, rounds: Rounds) -> Iterator[Finding]:
    """Emitted tokens of neighbouring slots, of rounds that reach the second."""
    for i, law in enumerate(exact.pair_laws(process)):
        reached = rounds[rounds[:, 1] > i]
        first, second = emitted(reached)[:, i].astype(np.int64), emitted(reached)[:, i + 1]
        counts = histogram(first * process.n + second, process.n**2, len(rounds))
        yield Finding(f"pair {i}, {i + 1}", fit(counts, with_rest(law)))


def joint(process: Process, rounds: Rounds) -> Finding:
    """Whole rounds: accepted length and all emitted tokens together."""
    law = exact.joint_law(process)
    base = process.n + 1
    weights = base ** np.arange(process.k + 2, dtype=np.int64)
    columns = np.concatenate([rounds[:, 1:2], emitted(rounds)[:, : process.k + 1]], axis=1).astype(np.int64)
    keys = {int(np.dot(pad(key, process.k + 2) + 1, weights)): weight for key, weight in law.items()}
    values, counts = np.unique((columns + 1) @ weights, return_counts=True)
    seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
    cells = sorted(keys.keys() | seen.keys())
    observed = np.array([seen.get(cell, 0) for cell in cells], np.int64)
    return Finding("joint law of the round", fit(observed, np.array([keys.get(cell, 0.0) for cell in cells])))


def pad(key: State, size: int) -> npt.NDArray[np.int64]:
    """The tuple as an array, -1 behind it."""
    return np.array([*key, *[-1] * (size - len(key))], np.int64)


def drafted(rounds: Rounds) -> Rounds:
    """[trials, k_max] drafted tokens."""
    return rounds[:, 2 : 2 + (rounds.shape[1] - 3) // 2]


def emitted(rounds: Rounds) -> Rounds:
    """[trials, k_max + 1] emitted tokens."""
    return rounds[:, 2 + (rounds.shape[1] - 3) // 2 :]


def histogram(tokens: npt.NDArray[Any], n: int, total: int) -> npt.NDArray[np.int64]:
    """Counts of 0..n-1 and of the rounds without any."""
    counts = np.bincount(tokens, minlength=n)[:n]
    return np.append(counts, total - counts.sum()).astype(np.int64)


def with_rest(law: reference.Row) -> reference.Row:
    """The law [n] and what is missing to 1; rounding below 1e-12 counts as nothing."""
    rest = 1.0 - law.sum()
    return np.append(np.where(law > 1e-15, law, 0.0), rest if rest > 1e-12 else 0.0)


OPTIONS: dict[str, Options] = {
    "greedy": Options(temperature=0.0),
    "T=0.7": Options(temperature=0.7),
    "T=1": Options(),
    "T=2": Options(temperature=2.0),
    "top_k": Options(top_k=3),
    "top_p": Options(top_p=0.8),
    "min_p": Options(min_p=0.25),
    "all filters": Options(temperature=0.8, top_k=3, top_p=0.9, min_p=0.1, logit_bias={0: -1.0, 3: 0.5}),
}
PENALTIES = Options(temperature=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.6)


def full_grid() -> list[Case]:
    """K, rules, drafters and options of the law tests, and penalties at K = 4."""
    cases = [
        Case(f"K={k} {rule} {drafter} {name}", k, rule, drafter, options)
        for k in (1, 2, 4, 8)
        for rule in ("rejection", "coupled")
        for drafter in ("model", "self", "ngram")
        for name, options in OPTIONS.items()
    ]
    return cases + penalty_cases() + large_cases() + hierarchy_cases()


def penalty_cases() -> list[Case]:
    """Penalties see the round's own tokens."""
    return [
        Case(f"K={k} {rule} model penalties", k, rule, "model", PENALTIES)
        for k in (2, 4)
        for rule in ("rejection", "coupled")
    ]


def large_cases() -> list[Case]:
    """Sixteen ids, an order-1 table."""
    return [
        Case(f"K=4 {rule} model 16 ids", 4, rule, "model", OPTIONS["all filters"], n=16, order=1)
        for rule in ("rejection", "coupled")
    ]


def hierarchy_cases() -> list[Case]:
    """Lookup speeds up the draft table, whose q all of a round's tokens must follow."""
    rules = ("rejection", "coupled")
    return [Case(f"K=4 {rule} hierarchy T=1", 4, rule, "hierarchy", OPTIONS["T=1"]) for rule in rules]


CHAINED = ("K=4 rejection model T=1", "K=4 coupled model T=1", "K=4 rejection model all filters")
"""Cases that are also judged over two rounds, samples and seeds."""


def short_grid() -> list[Case]:
    """The gate's own choice: every rule, drafter and option once, at K = 1, 4 and 8."""
    wanted = [(4, rule, "model", name) for rule in ("rejection", "coupled") for name in OPTIONS]
    wanted += [
        (k, "rejection", drafter, "all filters") for k in (1, 8) for drafter in ("model", "self", "ngram")
    ]
    wanted += [
        (4, "coupled", "ngram", "T=1"),
        (4, "rejection", "ngram", "T=1"),
        (4, "rejection", "self", "T=0.7"),
    ]
    named = {case.name: case for case in full_grid()}
    cases = [named[f"K={k} {rule} {drafter} {name}"] for k, rule, drafter, name in wanted]
    return cases + penalty_cases()[2:] + hierarchy_cases()[:1]


def judge_case(case: Case, trials: int, seed: int, library: Library | None = None) -> list[Finding]:
    """Runs one case and judges it; coupled text is also compared with speculation off."""
    with make_model(case, library) as model, model.session() as session:
        found = judge_rounds(case, run_trials(session, case, trials, seed))
        if case.rule == "coupled":
            found.append(same_text(case, session, seed))
    return (
        [*found, *independence.judge(case, trials, seed + 2 * trials, library)]
        if case.name in CHAINED
        else found
    )


def same_text(case: Case, session: Session, seed: int, generations: int = 10) -> Finding:
    """Coupled: the same seed gives the same ids with speculation on and off."""
    options = options_of(case)
    equal = True
    for i in range(generations):
        texts = [
            session.run(
                PROMPT,
                text=False,
                rule="coupled",
                k=case.k,
                seed=seed + i,
                speculation=on,
                max_new_tokens=40,
                **options,
            ).tokens
            for on in (True, False)
        ]
        equal &= texts[0] == texts[1]
    return Finding(f"{case.name}: same text with speculation off", float(equal), True)


def judge_all(
    cases: list[Case],
    trials: int,
    seed: int,
    library: Library | None = None,
    progress: Callable[[int, int], Any] | None = None,
    family_error: float = FAMILY_ERROR,
) -> list[Check]:
    """A Check for each p-value of each case; case number i has seed `seed` + (i << 32)."""
    found: list[tuple[Finding, int]] = []
    for i, case in enumerate(cases):
        case_seed = (seed + (i << 32)) % 2**64
        found += [(finding, case_seed) for finding in judge_case(case, trials, case_seed, library)]
        if progress is not None:
            progress(i + 1, len(cases))
    limits = iter(holm([finding.p for finding, _ in found if not finding.structure], family_error))
    held = [(f, 1.0 if f.structure else next(limits), s) for f, s in found]
    return [Check(f"law: {f.name}", limit, f.p, f.p >= limit, s) for f, limit, s in held]


def trials_for(tests: int, n: int = 4) -> int:
    """Rounds that find SMALLEST_TV in a law over n tokens with POWER, at the level of one of so many tests."""
    return sample_size(SMALLEST_TV, n - 1, FAMILY_ERROR / tests, POWER)


def judge_controls(library: Library, seed: int) -> list[Check]:
    """Each fault must be found by a law, not only by a rule of structure, at CONTROL_LIMIT."""
    named, checks = {case.name: case for case in full_grid()}, []
    for fault, name in CONTROLS.items():
        p = control(named[name], fault, CONTROL_TRIALS, seed, library)
        checks.append(
            Check(f"law: negative control {fault} is found", CONTROL_LIMIT, p, p < CONTROL_LIMIT, seed)
        )
    return checks


def control(case: Case, fault: str, trials: int, seed: int, library: Library) -> float:
    """Smallest p-value of the case with a fault put back."""
    with library.fault(fault):
        if fault in PAIRED:
            found = independence.judge(case, trials, seed, library)
        else:
            with make_model(case, library) as model, model.session() as session:
                found = judge_rounds(case, run_trials(session, case, trials, seed))
    return min(finding.p for finding in found if not finding.structure)


def off_by(table: npt.NDArray[np.float32], row: int, tv: float) -> npt.NDArray[np.float32]:
    """The table with tv of one row's mass moved from its most to its least probable token."""
    p = reference.softmax(table[row].astype(np.float64))
    p[p.argmax()] -= tv
    p[p.argmin()] += tv
    changed: npt.NDArray[np.float32] = table.copy()
    changed[row] = np.log(p)
    return changed
