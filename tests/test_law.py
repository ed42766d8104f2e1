"""The laws of the shipped runtime on table models, and the negative controls that must fail them."""
from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from specc.gate import exact, law, reference, stats
from specc.runtime import Options, controls, distribution

TRIALS = 40000
SEED = 20240607
SMALLEST_TV, POWER = 0.01, 0.99                # what the strong cases must find
STRONG = ["K=4 rejection model T=1", "K=4 coupled model T=1", "K=4 rejection model all filters"]
NAMED = {case.name: case for case in law.full_grid()}


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_laws_hold(k: int, rule: str) -> None:
    """Every slot, joint, pair and length law at the family-wise error over the full grid."""
    cases = [case for case in law.full_grid() if case.k == k and case.rule == rule]
    checks = law.judge_all(cases, TRIALS if k <= 4 else TRIALS // 2, SEED + k)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) > 100


@pytest.mark.parametrize("name", STRONG)
def test_laws_hold_with_power(name: str) -> None:
    """Enough trials to find a total variation of SMALLEST_TV in the emitted token of the first slot."""
    alpha = law.FAMILY_ERROR / 500
    trials = stats.sample_size(SMALLEST_TV, law.full_grid()[0].n - 1, alpha, POWER)
    found = law.judge_case(NAMED[name], trials, SEED)
    assert [finding for finding in found if finding.p < alpha] == []


CONTROLS = {
    "argmax_replacement": "K=4 rejection model T=1",
    "no_residual": "K=4 rejection model T=1",
    "bonus_row": "K=4 rejection model T=1",
    "q_other_options": "K=4 rejection model all filters",
    "q_temperature": "K=4 rejection model T=0.7",
    "drop_low_q": "K=4 rejection model T=1",
    "options_on_bonus_only": "K=4 rejection model all filters",
    "penalty_half": "K=4 rejection model penalties",
    "extra_token": "K=4 rejection model T=1",
    "k_from_discarded": "K=4 rejection model T=1",
}


@pytest.mark.parametrize(("fault", "name"), CONTROLS.items())
def test_negative_controls_are_rejected(fault: str, name: str) -> None:
    """Each fault is found by a law, not only by a rule of structure, at p < 1e-6; without it the library passes."""
    case, library = NAMED[name], controls()
    with library.fault(fault):
        found = law.judge_case(case, TRIALS, SEED, library)
    assert min(finding.p for finding in found if not finding.structure) < 1e-6
    honest = law.judge_case(case, TRIALS, SEED, library)
    assert min(finding.p for finding in honest) > 1e-6


def test_dropped_draft_biases_the_emitted_token() -> None:
    """Once drawn, judged: a drafter that drops low q shows in the emitted token alone."""
    case = law.Case("near draft", 1, "rejection", "model", Options(temperature=2.0), noise=0.5)
    with controls().fault("drop_low_q"):
        found = law.judge_case(case, TRIALS, SEED, controls())
    emitted = [finding.p for finding in found if "emitted 0" in finding.name]
    assert min(emitted) < 1e-6


def test_judging_is_repeatable() -> None:
    """Same seed, same numbers; another seed, other numbers."""
    case = NAMED["K=2 rejection model T=1"]
    assert law.judge_case(case, 2000, 1) == law.judge_case(case, 2000, 1)
    assert law.judge_case(case, 2000, 1) != law.judge_case(case, 2000, 2)


def test_exact_laws_sum_to_one() -> None:
    """Slot laws, lengths and joint law are probabilities, and the first emitted token follows p."""
    process = law.make_process(NAMED["K=4 rejection model T=1"], ())
    assert sum(exact.joint_law(process).values()) == pytest.approx(1, abs=1e-12)
    assert exact.length_law(process).sum() == pytest.approx(1, abs=1e-12)
    accepted, replaced = exact.slot_laws(process)[0]
    assert np.allclose(accepted + replaced, process.p(process.start), atol=1e-15)


def test_coupled_agreement_by_simulation() -> None:
    """The closed form for two exponential races over one noise, against a simulation."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    noise = rng.exponential(size=(200000, 5))
    a, b = (noise / p).argmin(1), (noise / q).argmin(1)
    counts = np.bincount(a[a == b], minlength=5)
    law_of = exact.coupled_agreement(p, q)
    assert stats.fit(np.append(counts, 200000 - counts.sum()), np.append(law_of, 1 - law_of.sum())) > 1e-4


@pytest.mark.parametrize("options", [*law.OPTIONS.values(), law.PENALTIES, Options(top_p=0.8, temperature=1.3)])
def test_c_distribution_is_the_reference(options: Options) -> None:
    """C and numpy agree on random rows with history, and keep the same set."""
    rng = np.random.default_rng(11)
    for size in (4, 8, 1000):
        logits = rng.normal(0, 2, size).astype(np.float32)
        history = rng.integers(0, size, 12).tolist()
        ours = distribution(logits, options, history=history, n_prompt=5)
        theirs = reference.distribution(options, logits, history, 5)
        assert np.array_equal(ours > 0, theirs > 0)
        assert np.allclose(ours, theirs, atol=1e-12)


def test_chi_square_tail() -> None:
    """Against scipy, far into the tail."""
    for df in (1, 3, 17, 300):
        for x in (0.1, 1.0, df, 2.0 * df, df + 100.0):
            assert stats.chi_square_sf(x, df) == pytest.approx(scipy_stats.chi2.sf(x, df), rel=1e-8, abs=1e-15)


def test_power_and_sample_size() -> None:
    """Power grows to what sample_size promises; the noncentral tail agrees with scipy."""
    n = stats.sample_size(0.01, 3, 1e-6, 0.99)
    expected = scipy_stats.ncx2.sf(scipy_stats.chi2.isf(1e-6, 3), 3, n * 0.0004)
    assert stats.power(n, 0.01, 3, 1e-6) == pytest.approx(expected, abs=1e-6)
    assert 0.99 <= expected < 0.9925
    assert stats.smallest_tv(n, 3, 1e-6, 0.99) == pytest.approx(0.01, rel=0.03)


def test_impossible_outcome_has_p_zero() -> None:
    """A token of probability zero is proof, not statistics."""
    assert stats.fit(np.array([999, 1]), np.array([1.0, 0.0])) == 0.0
    assert stats.fit(np.array([1000, 0]), np.array([1.0, 0.0])) == 1.0
