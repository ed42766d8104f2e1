"""The certificate judge on table engines that are right, or wrong in known ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.table_models import (
    LOGITS,
    TOKENS,
    Disturbed,
    Stale,
    at_capacity,
    by_neighbour,
    by_slot,
    exact_model,
    flaky,
    noise_in_a_row,
    noise_of_luck,
    not_a_number,
    other_kernel,
    shifted,
    verified_otherwise,
)

from specc.gate.engine import certificate as certify_judge
from specc.runtime import Model, ModelDraft, Ngram, Options, Table, controls, library


def test_exact_engine_passes() -> None:
    with exact_model() as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0)
    assert found.usable
    assert all(check.passed for check in found.checks)
    assert found.certificate.reasons == ()
    assert found.certificate.rows_compared > 1000
    certificate = found.certificate
    assert (certificate.evidence, certificate.tv_rows, certificate.words) == ("", 0, "exact, bit for bit")


FAULTS: dict[str, tuple[Any, str]] = {
    "noise 1e-6 in one row": (lambda: Disturbed(noise_in_a_row(1e-6)), "is not what it was at another slot"),
    "noise 1e-2 in one row": (lambda: Disturbed(noise_in_a_row(1e-2)), "is not what it was at another slot"),
    "noise of luck 1e-6": (lambda: Disturbed(noise_of_luck(1e-6)), "when it was repeated"),
    "rows shifted by one": (lambda: Disturbed(shifted), "is not what it was at another slot"),
    "stale entry read": (Stale, "repeated|another slot"),
    "K rows by another kernel": (lambda: Disturbed(verified_otherwise), "at width 1 differs from width 5"),
    "neighbours": (lambda: Disturbed(by_neighbour), "another slot or beside other rows"),
    "slot (R44)": (lambda: Disturbed(by_slot), "another slot"),
    "near the end of the context": (
        lambda: Disturbed(at_capacity),
        "at width 1 differs from width 5|another slot",
    ),
    "not a number (R13)": (lambda: Disturbed(not_a_number), "not finite"),
    "flaky on repeat": (lambda: Disturbed(flaky), "when it was repeated"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_injected_fault_is_numerics(name: str) -> None:
    """R01, R13, R44: refused with the reason code and the evidence; plain decoding goes on where there are
    numbers.
    """
    make, evidence = FAULTS[name]
    with Model.from_parts(make(), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0, invariant=True, bounded_rows=48)
        assert not found.usable
        assert found.certificate.reasons == ("numerics",)
        assert not all(check.passed for check in found.checks)
        assert any(part in found.certificate.evidence for part in evidence.split("|"))
        model.apply(found.certificate)
        assert not model.info.enabled
        assert "numerics" in model.info.reasons
        with model.session() as session:
            if name != "not a number (R13)":
                result = session.run([0, 1], seed=1, max_new_tokens=5)
                assert (len(result.tokens), result.stats["reasons"]) == (5, ["numerics"])


def test_other_kernel_is_another_class() -> None:
    """Widths 2 to 5 agree with each other and not with 1: the law is at width 2, 1 is never used."""
    with Model.from_parts(Disturbed(other_kernel), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0)
        assert [2, 3, 4, 5] in found.certificate.classes
        assert found.certificate.law_width in (2, 3, 4, 5)
        assert "at width 1 differs from width 5" in found.certificate.evidence
        assert (found.usable, found.certificate.unrepeatable) == (True, 0)


def test_flaky_engine_is_never_bounded() -> None:
    """An engine that answers differently on repeat has no law, whatever the recipe allows."""
    for disturb in (flaky, noise_of_luck(1e-6)):
        with Model.from_parts(Disturbed(disturb), Ngram(), n_ids=8, context=256, k_max=4) as model:
            found = certify_judge.judge_certificate(model, TOKENS, 0, allow_bounded=1.0, bounded_rows=48)
            assert found.certificate.unrepeatable > 0
            assert (found.usable, found.certificate.reasons) == (False, ("numerics",))


def test_bounded_needs_a_limit() -> None:
    """allow_bounded holds the bound of the mean total variation; every surface then says approximate."""
    with Model.from_parts(
        Disturbed(noise_in_a_row(1e-3)),
        ModelDraft(Table(LOGITS, 2, 288, (1, 2, 3, 4, 5, 32))),
        n_ids=8,
        context=256,
        k_max=4,
    ) as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0, allow_bounded=0.1)
        certificate = found.certificate
        assert (found.usable, certificate.reasons, certificate.kind) == (True, (), "bounded")
        assert 0 < certificate.tv_max < 0.01 < certificate.tv_mean < 0.1
        assert certificate.tv_rows >= 1000
        model.apply(certificate)
        assert model.info.enabled
        assert model.info.certificate.words == f"approximate, mean TV <= {certificate.tv_mean:.4g}"
        assert certify_judge.judge_certificate(model, TOKENS, 0, allow_bounded=1e-9).certificate.reasons == (
            "numerics",
        )


def test_distance_is_under_the_sampling_options() -> None:
    """Options that leave one token leave no distance but flips; without noise there is none of either."""

    def measured(sampling: Options | None, size: float = 0.05) -> Any:
        with Model.from_parts(Disturbed(noise_in_a_row(size)), n_ids=8, context=256, k_max=4) as model:
            return model.certify(TOKENS, sampling=sampling, bounded=True)

    free, greedy = measured(None), measured(Options(temperature=0.0))
    assert greedy.tv_max in (0.0, 1.0)
    assert 0 < free.tv_max < 0.2
    assert free.flips == greedy.flips
    assert free.flip_margin < 0.5
    assert free.flips_per_10k == pytest.approx(1e4 * free.flips / free.tv_rows)
    flips = measured(None, 3.0)
    assert flips.flips > 10
    assert flips.tv_mean > 0.1


def test_certificate_survives_its_struct() -> None:
    """Every field goes to C and back."""
    with exact_model() as model:
        wanted = replace(
            model.certify(TOKENS), tv_rows=5, flips=2, flip_margin=0.25, unrepeatable=1, evidence="é" * 20
        )
        model.apply(wanted)
        assert model.info.certificate == wanted


def test_sharpness() -> None:
    """One flipped bit is found in whatever call, with whatever seed; a judge that sees nothing fails its own
    proof.
    """
    assert all(certify_judge.check_sharpness(seed).passed for seed in (0, 1, 2**64 - 1))
    for at in range(1, certify_judge.CALLS + 1, 41):
        assert -1 in certify_judge.certify_flipped(1, at, library())[0].width_class
    with controls().fault("numerics_unchecked"):
        assert not certify_judge.check_sharpness(0, controls()).passed


def test_promise_of_one_row() -> None:
    """A dialect that promises the same bits at every width has its law at one row, or fails by name."""
    with exact_model() as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0, invariant=True)
        assert (found.usable, found.certificate.law_width) == (True, 1)
    with Model.from_parts(Disturbed(other_kernel), Ngram(), n_ids=8, context=256, k_max=4) as model:
        found = certify_judge.judge_certificate(model, TOKENS, 0, invariant=True, bounded_rows=48)
        assert found.certificate.reasons == ("numerics",)
        assert [check.value for check in found.checks if "promises" in check.name] == [4.0]
