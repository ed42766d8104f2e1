"""The laws of the shipped runtime on table models, and the negative controls that must fail them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from specc.gate import law, stats
from specc.gate.law import exact, independence, reference, selftest
from specc.gate.law import rounds as rounds_judge
from specc.gate.run import TESTS, judge_laws
from specc.runtime import Options, controls, distribution

TRIALS = 40000
SEED = 20240607
GROUPS = 8  # test_laws_hold's parts share the family-wise error
STRONG = ["K=4 rejection model T=1", "K=4 coupled model T=1", "K=4 rejection model all filters"]
NAMED = {case.name: case for case in law.make_full_grid()}


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_laws_hold(k: int, rule: str) -> None:
    """Every slot, joint, pair and length law; family-wise error 1e-4 over the full grid."""
    cases = [case for case in law.make_full_grid() if case.k == k and case.rule == rule]
    checks = law.judge_law(cases, TRIALS if k <= 4 else TRIALS // 2, SEED + k, family_error=1e-4 / GROUPS)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) > 100


def test_full_grid_covers_its_dimensions() -> None:
    """K, rules, drafters and options of the grid; joint laws up to K = 4, pairs and lengths for all."""
    grid = law.make_full_grid()
    assert {case.k for case in grid} == {1, 2, 4, 8}
    assert {case.rule for case in grid} == {"rejection", "coupled"}
    assert {case.options.temperature for case in grid} >= {0.0, 0.7, 1.0, 2.0}
    assert all(
        any(getattr(case.options, name) != off for case in grid)
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
    )
    names = {
        k: [f.name for f in law.judge_case(NAMED[f"K={k} rejection model T=1"], 1000, SEED)] for k in (4, 8)
    }
    assert any("joint" in name for name in names[4])
    assert sum("pair" in name for name in names[8]) == 8
    assert any("round length" in name for name in names[8])


@pytest.mark.parametrize("name", STRONG)
def test_small_difference_is_found(name: str) -> None:
    """The gate's default trials find a total variation of 0.01 in the first emitted token, and none at 0."""
    case, trials = NAMED[name], law.trials_for(TESTS)
    limit = law.FAMILY_ERROR / TESTS
    with law.make_model(case, None) as model, model.session() as session:
        for seed in range(3):
            rounds = law.run_trials(session, case, trials, SEED + seed * trials)
            assert min(finding.p for finding in rounds_judge.judge_rounds(case, rounds)) > limit
            assert compute_first_token_p_value(case, replace_first_tokens(case, rounds, seed)) < limit


def replace_first_tokens(case: law.Case, rounds: law.Rounds, seed: int) -> law.Rounds:
    """Rounds whose first emitted token is the least probable one instead of the most probable in 1 of 100
    rounds.
    """
    p = law.make_process(case, ()).p(law.PROMPT[-2:])
    column, kept = 2 + (rounds.shape[1] - 3) // 2, p > 0
    high, low = int(p.argmax()), int(np.where(kept, p, 2).argmin())
    wrong = (rounds[:, column] == high) & (
        np.random.default_rng(seed).random(len(rounds)) < law.SMALLEST_TV / p[high]
    )
    rounds[wrong, column] = low
    return rounds


def compute_first_token_p_value(case: law.Case, rounds: law.Rounds) -> float:
    process = law.make_process(case, ())
    return next(
        finding.p for finding in rounds_judge.fit_slots(process, rounds) if finding.name == "emitted 0"
    )


def test_default_trials_have_the_stated_power() -> None:
    """The gate's grid has at most TESTS tests, the number that the stated power holds for."""
    laws = judge_laws(None, SEED, lambda *_: None)
    assert [check for check in laws.checks if not check.passed] == []
    assert laws.report["tests"] <= TESTS
    assert laws.report["smallest_tv"] <= law.SMALLEST_TV * 1.01
    assert laws.report["negative_controls"] == len(law.CONTROLS) == 13


@pytest.mark.parametrize(("fault", "name"), law.CONTROLS.items())
def test_negative_controls_are_rejected(fault: str, name: str) -> None:
    """Each fault is found by a law, not only by a rule of structure, at p < 1e-6."""
    assert law.run_control(NAMED[name], fault, TRIALS, SEED, controls()) < 1e-6


@pytest.mark.parametrize("name", sorted({*law.CONTROLS.values(), *law.CHAINED}))
def test_controls_library_without_a_fault_passes(name: str) -> None:
    """The cases of the controls, with two rounds, samples and seeds where they are judged."""
    found = law.judge_case(NAMED[name], TRIALS // 4, SEED, controls())
    assert min(finding.p for finding in found) > 1e-6


OTHER_FAULTS = [
    ("shared_random", "one text for a seed"),
    ("constant_seed", "calls without a seed"),
    ("draft_cache_behind", "two rounds"),
]


@pytest.mark.parametrize(("fault", "check"), OTHER_FAULTS)
def test_what_one_round_does_not_show(fault: str, check: str) -> None:
    """R11, R12, R16: faults of the random numbers and of state kept between rounds fail their own check."""
    case = NAMED["K=4 rejection model T=1"]
    with controls().fault(fault):
        found = independence.judge_independence(case, 20000, SEED, controls())
    assert min(finding.p for finding in found if check in finding.name) < 1e-6


@pytest.mark.slow
def test_self_test() -> None:
    """Every control at each of 20 seeds; no false alarm over 50; a runtime that is off by 0.01 is found."""
    assert selftest.count_found_controls(controls(), 20) == dict.fromkeys(law.CONTROLS, 20)
    assert selftest.count_false_alarms(50, 4000) == 0
    case, trials = NAMED["K=4 rejection model T=1"], law.trials_for(TESTS)
    assert selftest.count_detections(case, law.SMALLEST_TV, 100, trials, law.FAMILY_ERROR / TESTS) >= 99


def test_a_runtime_that_is_off_is_found() -> None:
    """The shipped library over a table that is off by twice SMALLEST_TV, with a quarter of the trials."""
    case, trials = NAMED["K=4 rejection model T=1"], law.trials_for(TESTS) // 4
    assert selftest.count_detections(case, 2 * law.SMALLEST_TV, 2, trials, law.FAMILY_ERROR / TESTS) == 2
    assert selftest.count_detections(case, 0.0, 2, trials, law.FAMILY_ERROR / TESTS) == 0


def test_holm() -> None:
    """Limits step down with the rank and stop at the first that passes."""
    assert stats.holm_limits([0.04, 0.001, 0.9], 0.06) == pytest.approx([0.03, 0.02, 0.03])
    assert stats.holm_limits([0.02, 0.001, 0.9], 0.06) == pytest.approx([0.03, 0.02, 0.06])
    assert stats.holm_limits([], 0.1) == []


def test_dropped_draft_biases_the_emitted_token() -> None:
    """A drafter that withholds drawn tokens of low q is found by the law of the emitted token alone."""
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
    expected = exact.coupled_agreement(p, q)
    assert (
        stats.fit_p_value(np.append(counts, 200000 - counts.sum()), np.append(expected, 1 - expected.sum()))
        > 1e-4
    )


@pytest.mark.parametrize(
    "options", [*law.OPTIONS.values(), law.PENALTIES, Options(top_p=0.8, temperature=1.3)]
)
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
            assert stats.chi_square_sf(x, df) == pytest.approx(
                scipy_stats.chi2.sf(x, df), rel=1e-8, abs=1e-15
            )


def test_power_and_sample_size() -> None:
    """Power grows to what sample_size promises; the noncentral tail agrees with scipy."""
    n = stats.sample_size(0.01, 3, 1e-6, 0.99)
    expected = scipy_stats.ncx2.sf(scipy_stats.chi2.isf(1e-6, 3), 3, n * 0.0004)
    assert stats.power(n, 0.01, 3, 1e-6) == pytest.approx(expected, abs=1e-6)
    assert 0.99 <= expected < 0.9925
    assert stats.smallest_tv(n, 3, 1e-6, 0.99) == pytest.approx(0.01, rel=0.03)


def test_two_sample() -> None:
    """Against scipy; two samples of one law pass, of two laws do not."""
    rng = np.random.default_rng(3)
    a, b = rng.multinomial(500, [0.5, 0.3, 0.2]), rng.multinomial(400, [0.5, 0.3, 0.2])
    expected = scipy_stats.chi2_contingency(np.stack([a, b]), correction=False).pvalue
    assert stats.homogeneity_p_value(a, b) == pytest.approx(expected, rel=1e-9)
    assert stats.homogeneity_p_value(a, a[::-1]) < 1e-6
    assert stats.homogeneity_p_value(np.array([7, 0]), np.array([9, 0])) == 1.0


def test_impossible_outcome_has_p_zero() -> None:
    """One observed token of probability zero gives p = 0, whatever the other counts."""
    assert stats.fit_p_value(np.array([999, 1]), np.array([1.0, 0.0])) == 0.0
    assert stats.fit_p_value(np.array([1000, 0]), np.array([1.0, 0.0])) == 1.0
