"""The certificate judge on table engines that are right, or wrong in known ways."""
from __future__ import annotations

from typing import Any

import pytest
from table_models import (
    TOKENS,
    Disturbed,
    by_neighbour,
    exact_model,
    flaky,
    noise_in_a_row,
    not_a_number,
    other_kernel,
    shifted,
)

from specc.gate import certificate as certify_judge
from specc.runtime import Model, Ngram, controls, library


def test_exact_engine_passes() -> None:
    with exact_model() as model:
        found = certify_judge.certify(model, TOKENS, 0)
    assert found.exact
    assert all(check.passed for check in found.checks)
    assert found.certificate.reasons == ()
    assert found.certificate.rows_compared > 1000


@pytest.mark.parametrize("disturb", [noise_in_a_row(1e-6), noise_in_a_row(1e-2), shifted, by_neighbour, not_a_number])
def test_wrong_engine_is_numerics(disturb: Any) -> None:
    """R01, R13, R44: rows that depend on slot, neighbours or luck end as numerics."""
    with Model.from_parts(Disturbed(disturb), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.certify(model, TOKENS, 0)
        assert not found.exact
        assert found.certificate.reasons == ("numerics",)
        assert not all(check.passed for check in found.checks)
        model.apply(found.certificate)
        assert not model.info.enabled
        assert "numerics" in model.info.reasons
        with model.session() as session:
            if disturb is not not_a_number:
                assert len(session.run([0, 1], seed=1, max_new_tokens=5).tokens) == 5


def test_other_kernel_is_another_class() -> None:
    """Widths 2 to 5 agree with each other and not with 1: the law is at width 2, 1 is never used."""
    with Model.from_parts(Disturbed(other_kernel), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.certify(model, TOKENS, 0)
        assert [2, 3, 4, 5] in found.certificate.classes
        assert found.certificate.law_width in (2, 3, 4, 5)


def test_flaky_engine_is_not_exact_at_its_widths() -> None:
    """An engine that answers differently on repeat loses at least a width."""
    with Model.from_parts(Disturbed(flaky), Ngram(), n_ids=8, context=256, k_max=4) as model:
        assert -1 in certify_judge.certify(model, TOKENS, 0).certificate.width_class


def test_bounded_needs_a_limit() -> None:
    """allow_bounded holds the mean total variation against the recipe's limit."""
    with Model.from_parts(Disturbed(noise_in_a_row(1e-3)), n_ids=8, context=256, k_max=4) as model:
        assert certify_judge.certify(model, TOKENS, 0, allow_bounded=0.05).certificate.reasons == ()
        assert certify_judge.certify(model, TOKENS, 0, allow_bounded=1e-9).certificate.reasons == ("numerics",)


def test_sharpness() -> None:
    """One flipped bit is found in whatever call, with whatever seed; a judge that sees nothing fails its own proof."""
    assert all(certify_judge.sharpness(seed).passed for seed in (*range(10), 2**64 - 1))
    for at in range(1, certify_judge.CALLS + 1, 7):
        assert -1 in certify_judge.flipped(1, at, library())[0].width_class
    with controls().fault("numerics_unchecked"):
        assert not certify_judge.sharpness(0, controls()).passed


def test_promise_of_one_row() -> None:
    """A dialect that promises the same bits at every width has its law at one row, or fails by name."""
    with exact_model() as model:
        found = certify_judge.certify(model, TOKENS, 0, invariant=True)
        assert (found.exact, found.certificate.law_width) == (True, 1)
    with Model.from_parts(Disturbed(other_kernel), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.certify(model, TOKENS, 0, invariant=True)
        assert found.certificate.reasons == ("numerics",)
        assert [check.value for check in found.checks if "promises" in check.name] == [4.0]
