"""Chi-square tests, their power, and Holm's correction, without a statistics package (a device has none)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

SMALLEST_EXPECTED = 5.0
"""Cells with a smaller expected count are pooled (Cochran 1954), so that the chi-square approximation
holds.
"""


def chi_square_sf(x: float, df: int) -> float:
    """P(X >= x) for X chi-square with df degrees of freedom: the regularised upper incomplete gamma
    function.
    """
    if x <= 0 or df <= 0:
        return 1.0
    a, z = df / 2, x / 2
    return 1.0 - _gamma_series(a, z) if z < a + 1 else _gamma_fraction(a, z)


def chi_square_quantile(alpha: float, df: int) -> float:
    """x with chi_square_sf(x, df) == alpha, by bisection."""
    low, high = 0.0, df + 20.0
    while chi_square_sf(high, df) > alpha:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_square_sf(middle, df) > alpha else (low, middle)
    return high


def power(n: float, tv: float, df: int, alpha: float) -> float:
    """Lower bound of the probability that a chi-square test at level alpha with n trials rejects a law that
    is wrong by total variation tv or more.

    With d the differences of the cells, the statistic is noncentral chi-square with noncentrality
    n * sum(d^2 / p) >= n * (2 tv)^2 (Cauchy-Schwarz), summed here as a Poisson mixture of central ones.
    """
    x, half = chi_square_quantile(alpha, df), n * (2 * tv) ** 2 / 2
    spread = 8 * math.sqrt(half) + 20
    total = 0.0
    for j in range(max(0, int(half - spread)), int(half + spread) + 1):
        weight = math.exp(-half + j * math.log(half) - math.lgamma(j + 1)) if half > 0 else float(j == 0)
        total += weight * chi_square_sf(x, df + 2 * j)
    return total


def sample_size(tv: float, df: int, alpha: float, wanted: float) -> int:
    """Fewest trials (to 1 %) that find total variation tv with the wanted power at level alpha."""
    low, high = 0.0, 1000.0
    while power(high, tv, df, alpha) < wanted:
        low, high = high, 2 * high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, tv, df, alpha) < wanted else (low, middle)
    return math.ceil(high)


def smallest_tv(n: float, df: int, alpha: float, wanted: float) -> float:
    """The total variation that n trials find with the wanted power at level alpha (to 1 %)."""
    low, high = 0.0, 1.0
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(n, middle, df, alpha) < wanted else (low, middle)
    return high


def holm_limits(p_values: list[float], family_error: float) -> list[float]:
    """Level of each test by Holm's step-down procedure (Holm 1979); a p-value below its level is rejected.

    The smallest of m p-values is held against family_error / m, the next against family_error / (m - 1), and
    so on until one passes; all from there on keep that one's level. The probability of rejecting any true
    hypothesis is at most family_error, whatever the dependence between the tests.
    """
    order = np.argsort(np.array(p_values), kind="stable")
    limits, limit = [0.0] * len(p_values), 0.0
    stopped = False
    for rank, place in enumerate(order):
        limit = limit if stopped else family_error / (len(p_values) - rank)
        stopped = stopped or p_values[place] >= limit
        limits[place] = limit
    return limits


def fit_p_value(observed: npt.NDArray[np.int64], law: npt.NDArray[np.float64]) -> float:
    """p-value of Pearson's chi-square test of goodness of fit.

    Hypothesis: `observed` [cells] are counts of independent draws from `law` [cells], which sums to 1. 0 if a
    cell of probability 0 was hit. Cells with an expected count below SMALLEST_EXPECTED are pooled into one,
    and that one with the smallest of the others if it is still below. Degrees of freedom: cells after
    pooling, less one.
    """
    if bool(np.any((law <= 0) & (observed > 0))):
        return 0.0
    expected = law * observed.sum()
    small = expected < SMALLEST_EXPECTED
    counts, means = _pool(observed, small), _pool(expected, small)
    if len(means) > 1 and means[-1] < SMALLEST_EXPECTED:
        counts, means = _merge_last(counts, means)
    statistic = float((((counts - means) ** 2)[means > 0] / means[means > 0]).sum())
    return chi_square_sf(statistic, len(means) - 1)


def homogeneity_p_value(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> float:
    """p-value of the chi-square test of homogeneity. Hypothesis: the counts a and b [cells] are of samples of
    one law.

    Cells whose two counts sum to less than 2 * SMALLEST_EXPECTED are pooled. Degrees of freedom: cells less
    one.
    """
    small = a + b < 2 * SMALLEST_EXPECTED
    first, second = _pool(a, small), _pool(b, small)
    n, m = first.sum(), second.sum()
    expected = (first + second) * n / (n + m)
    kept = first + second > 0
    difference = (first - expected)[kept] ** 2 * (n + m) / m
    return chi_square_sf(float((difference / expected[kept]).sum()), int(kept.sum()) - 1)


def _pool(values: npt.NDArray[np.generic], small: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The large cells, then one with the sum of the small ones if there are any."""
    large, rest = values[~small].astype(np.float64), values[small].astype(np.float64).sum()
    return np.append(large, rest) if bool(small.any()) else large


def _merge_last(
    counts: npt.NDArray[np.float64], means: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Adds the last cell to the smallest of the others."""
    smallest = int(np.argmin(means[:-1]))
    counts[smallest] += counts[-1]
    means[smallest] += means[-1]
    return counts[:-1], means[:-1]


def _gamma_series(a: float, z: float) -> float:
    """Regularised lower incomplete gamma for z < a + 1."""
    term = total = 1 / a
    n = a
    while abs(term) > 1e-17 * abs(total):
        n += 1
        term *= z / n
        total += term
    return total * math.exp(-z + a * math.log(z) - math.lgamma(a))


def _gamma_fraction(a: float, z: float) -> float:
    """Regularised upper incomplete gamma for z >= a + 1, Lentz' continued fraction."""
    tiny = 1e-300
    b = z + 1 - a
    c, d = 1 / tiny, 1 / b
    h = d
    for i in range(1, 10000):
        an = -i * (i - a)
        b += 2
        d = 1 / _off_zero(an * d + b, tiny)
        c = _off_zero(b + an / c, tiny)
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    log_scale = -z + a * math.log(z) - math.lgamma(a)
    return math.exp(log_scale) * h if log_scale > -740 else 0.0


def _off_zero(x: float, tiny: float) -> float:
    return tiny if abs(x) < tiny else x
