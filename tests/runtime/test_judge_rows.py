"""The row kernels by their host path: the distribution of specc_distribution bit for bit, and the law of the
draws.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from specc.errors import InputError, RuntimeFault
from specc.runtime import Options, distribution
from specc.runtime.pure import judge_rows

OPTIONS = st.builds(
    Options,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, 90),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
    repetition_penalty=st.floats(0.5, 2.0),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-1, 1),
    logit_bias=st.dictionaries(st.integers(0, 70), st.floats(-9, 9), max_size=4),
)
VALUES = st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -np.inf]))
LOGITS = st.lists(VALUES, min_size=71, max_size=80)


@settings(max_examples=150, deadline=None)
@given(LOGITS, OPTIONS, st.lists(st.integers(0, 70), max_size=20), st.lists(st.integers(0, 70), max_size=4))
def test_rows_equal_the_core(
    row: list[float], options: Options, history: list[int], proposed: list[int]
) -> None:
    """Every row of a round, with the tokens proposed before it as history, is the core's distribution to the
    bit.
    """
    row[0] = 0.5
    rows = np.array([np.roll(row, 3 * i) for i in range(len(proposed) + 1)], np.float32)
    prompt = len(history) // 2
    judged = judge_rows(rows, proposed, options, history=history, n_prompt=prompt)
    for i, p in enumerate(judged.p):
        want = distribution(rows[i], options, history=[*history, *proposed[:i]], n_prompt=prompt)
        assert np.array_equal(p, want)


@pytest.mark.parametrize("rule", ["rejection", "coupled"])
def test_law_of_one_slot(rule: str) -> None:
    """A slot's token follows p, whatever was proposed: chi-square over 6000 seeds, threshold 1e-5. Negative
    control: a law that moves 0.04 from one token to another is refused by the same test (power over 0.99 at
    this size).
    """
    rng = np.random.default_rng(3)
    rows, options = rng.normal(0, 1.2, (2, 8)).astype(np.float32), Options(temperature=0.9, top_k=6)
    counts = np.zeros(8)
    for seed in range(6000):
        judged = judge_rows(rows, [2], options, rule=rule, seed=seed, position=5)
        counts[judged.token[0]] += 1
    p = judged.p[0]
    wrong = p.copy()
    wrong[np.argsort(p)[-2:]] += [-0.04, 0.04]

    def statistic(law: np.ndarray) -> float:
        kept = law > 0
        assert counts[~kept].sum() == 0
        return float(((counts[kept] - 6000 * law[kept]) ** 2 / (6000 * law[kept])).sum())

    limit = chi2.isf(1e-5, int((p > 0).sum()) - 1)
    assert statistic(p) < limit < statistic(wrong)


def test_large_vocabulary_and_flat_rows() -> None:
    """More ids than a sort's first size, all tied: top_p walks through the lower ids."""
    rows = np.zeros((1, 40000), np.float32)
    options = Options(top_p=0.25)
    judged = judge_rows(rows, [], options, seed=4)
    assert np.array_equal(judged.p[0], distribution(rows[0], options))
    assert np.count_nonzero(judged.p[0]) == 10000


def test_rows_without_a_law() -> None:
    """NaN, nothing left, and numbers that do not fit are sentences."""
    rows = np.zeros((2, 8), np.float32)
    rows[1, 3] = np.nan
    with pytest.raises(RuntimeFault, match="NaN"):
        judge_rows(rows, [1], Options())
    with pytest.raises(RuntimeFault, match="no token is left"):
        judge_rows(rows[:1], [], Options(logit_bias=dict.fromkeys(range(8), -np.inf)))
    with pytest.raises(InputError, match="rows are the proposed tokens and one more"):
        judge_rows(rows, [1, 2], Options())
    with pytest.raises(InputError, match="out of range"):
        judge_rows(rows, [8], Options())
