"""The law judge: the shipped runtime on table models whose laws are known exactly.

Null hypothesis: every round follows the exact law of its case. Each test is a chi-square test of goodness of
fit (`rounds`, `independence`); Holm's step-down correction over all of them keeps the probability that a
correct runtime fails any test at most FAMILY_ERROR. The number of trials follows from the smallest fault that
has to be found: a total variation of SMALLEST_TV in the law of one slot's emitted token is found with
probability POWER at the level of the smallest p-value. Negative controls show the power on real faults: each
known fault, put back by name in the controls library, must give a p-value below CONTROL_LIMIT.
"""

from __future__ import annotations

from specc.gate.checks import Check
from specc.gate.law.case import PROMPT, Case, LawTest, make_model, run_trials, sampling_options
from specc.gate.law.grid import make_full_grid
from specc.gate.law.independence import judge_independence
from specc.gate.law.rounds import judge_rounds
from specc.gate.stats import holm_limits, sample_size
from specc.progress import Progress, no_progress
from specc.runtime import Library, Session

FAMILY_ERROR = 9e-5
"""The two-sample judge has the rest of 1e-4."""
SMALLEST_TV, POWER = 0.01, 0.99
CONTROL_LIMIT, CONTROL_TRIALS = 1e-6, 40000
CONTROLS = {
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
    "draft_cache_behind": "K=4 rejection model T=1",
}
"""Fault, and the case that must show it."""
TWO_ROUND_CONTROLS = ("draft_cache_behind",)
"""Faults that one round cannot show: q is still what the token was drawn from, only the second round is
wrong.
"""
CHAINED = ("K=4 rejection model T=1", "K=4 coupled model T=1", "K=4 rejection model all filters")
"""Cases that are also judged over two rounds, samples and seeds."""


def judge_law(
    cases: list[Case],
    trials: int,
    seed: int,
    library: Library | None = None,
    progress: Progress = no_progress,
    family_error: float = FAMILY_ERROR,
) -> list[Check]:
    """A Check for each test of each case; the limit is the test's level after Holm's correction, the value
    its p-value.

    Case number i draws from seed `seed` + (i << 32). progress: called with "law" after each case.
    """
    tests: list[tuple[LawTest, int]] = []
    for i, case in enumerate(cases):
        case_seed = (seed + (i << 32)) % 2**64
        tests += [(test, case_seed) for test in judge_case(case, trials, case_seed, library)]
        progress("law", (i + 1) / len(cases))
    limits = iter(holm_limits([test.p for test, _ in tests if not test.structure], family_error))
    levels = [1.0 if test.structure else next(limits) for test, _ in tests]
    return [
        Check(f"law: {test.name}", level, test.p, test.p >= level, test_seed)
        for (test, test_seed), level in zip(tests, levels, strict=True)
    ]


def judge_case(case: Case, trials: int, seed: int, library: Library | None = None) -> list[LawTest]:
    """Runs one case and tests its rounds; coupled text is also compared with speculation off."""
    with make_model(case, library) as model, model.session() as session:
        tests = judge_rounds(case, run_trials(session, case, trials, seed))
        if case.rule == "coupled":
            tests.append(check_same_text(case, session, seed))
    if case.name in CHAINED:
        tests += judge_independence(case, trials, seed + 2 * trials, library)
    return tests


def check_same_text(case: Case, session: Session, seed: int, generations: int = 10) -> LawTest:
    """Coupled: the same seed gives the same ids with speculation on and off."""
    options = {"rule": "coupled", "k": case.k, "max_new_tokens": 40, **sampling_options(case)}
    equal = True
    for i in range(generations):
        texts = [
            session.run(PROMPT, text=False, seed=seed + i, speculation=on, **options).tokens
            for on in (True, False)
        ]
        equal &= texts[0] == texts[1]
    return LawTest(f"{case.name}: same text with speculation off", float(equal), True)


def trials_for(tests: int, n: int = 4) -> int:
    """Trials that find SMALLEST_TV in a law over n tokens with probability POWER, at the level of one of
    `tests`.
    """
    return sample_size(SMALLEST_TV, n - 1, FAMILY_ERROR / tests, POWER)


def judge_controls(library: Library, seed: int) -> list[Check]:
    """One Check for each fault: a test of its law (not only of structure) has a p-value below
    CONTROL_LIMIT.
    """
    by_name, checks = {case.name: case for case in make_full_grid()}, []
    for fault, name in CONTROLS.items():
        p = run_control(by_name[name], fault, CONTROL_TRIALS, seed, library)
        label = f"law: negative control {fault} is found"
        checks.append(Check(label, CONTROL_LIMIT, p, p < CONTROL_LIMIT, seed))
    return checks


def run_control(case: Case, fault: str, trials: int, seed: int, library: Library) -> float:
    """Smallest p-value of the case with a fault put back."""
    with library.fault(fault):
        if fault in TWO_ROUND_CONTROLS:
            tests = judge_independence(case, trials, seed, library)
        else:
            with make_model(case, library) as model, model.session() as session:
                tests = judge_rounds(case, run_trials(session, case, trials, seed))
    return min(test.p for test in tests if not test.structure)
