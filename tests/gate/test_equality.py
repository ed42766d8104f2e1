"""Equality and two-sample judges on table engines."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.table_models import LOGITS, TOKENS, WIDTHS, Disturbed, table

from specc.gate import Check
from specc.gate.engine import equality, two_sample
from specc.progress import no_progress
from specc.runtime import Certificate, Io, Model, ModelDraft, Ngram, Table, controls


def judged(drafter: Any, engine: Any = None) -> list[Check]:
    work = equality.make_work(TOKENS, 256, 5)
    engine = engine or table()
    with Model.from_parts(engine, drafter, n_ids=8, context=256, k_max=4, assume_exact=True) as model:
        script = drafter if isinstance(drafter, equality.ScriptedDrafter) else None
        with model.session() as session:
            plain = equality.generate_plain(session, work)
            checks = list(equality.judge_drafter(session, work, "x", plain, script))
            return checks if script is None else [*checks, equality.judge_lengths(session, work, script, 4)]


@pytest.mark.parametrize(
    "make", [equality.ScriptedDrafter, equality.RandomDrafter, Ngram, lambda: ModelDraft(table())]
)
def test_equal_text(make: Any) -> None:
    """Greedy and coupled ids are equal; the scripted drafter reaches every accepted length."""
    checks = judged(make())
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == (3 if make is equality.ScriptedDrafter else 2)


def test_unequal_text_is_found() -> None:
    """An engine whose verify rows come from another kernel, claimed to be exact."""

    def rough(self: Disturbed, logits: Any, io: Io, rows: int) -> None:
        if rows > 1:
            logits[:] = np.round(logits)

    checks = judged(equality.ScriptedDrafter(), Disturbed(rough))
    assert any(not check.passed and check.value > 0 for check in checks)


@pytest.mark.parametrize("context", [6, 7, 20, 256])
@pytest.mark.parametrize("k", [1, 4])
def test_every_length_occurs_in_any_context(context: int, k: int) -> None:
    """Texts that end early and contexts of K + 2 tokens still reach every accepted length, the same way each
    time.
    """
    work, script = equality.make_work(TOKENS[:9], context, 5), equality.ScriptedDrafter()
    engine = Table(LOGITS, 2, context + 32, WIDTHS)
    parts: dict[str, Any] = {"n_ids": 8, "context": context, "k_max": k, "assume_exact": True}
    with Model.from_parts(engine, script, **parts) as model, model.session() as session:
        assert equality.judge_lengths(session, work, script, k).passed


def test_missing_length_is_counted() -> None:
    """Speculation that never runs reaches no length."""
    work, script = equality.make_work(TOKENS, 256, 5), equality.ScriptedDrafter()
    with (
        Model.from_parts(table(), script, n_ids=8, context=256, k_max=4) as model,
        model.session() as session,
    ):
        check = equality.judge_lengths(session, work, script, 4)
    assert (check.passed, check.value) == (False, 10.0)


# ---------------------------------------------------------------------- two samples


def likely(a: int, b: int) -> list[int]:
    """A prompt that ends in a, b and has them before, with the most probable next token behind."""
    return [a, b, int(LOGITS[8 * a + b].argmax()), 7, a, b]


def drawn(fault: str = "") -> list[Check]:
    """Checks of two contexts over the controls library."""
    loaded, prompts = controls(), [likely(0, 1), likely(5, 3)]
    parts: dict[str, Any] = {"n_ids": 8, "context": 256, "k_max": 4, "assume_exact": True, "loaded": loaded}
    with (
        loaded.fault(fault) if fault else nullcontext(),
        Model.from_parts(table(), Ngram(1, 3), **parts) as model,
    ):
        checks, report = two_sample.judge_two_sample(model, model.info.certificate, prompts, 7, no_progress)
        assert report["trials"] == two_sample.TRIALS
        assert 0 < report["smallest_tv"] < 0.5
    return checks


def test_plain_and_rejection_are_one_law() -> None:
    """Right: four p-values that pass, the same each time; wrong: found."""
    checks = drawn()
    assert len(checks) == 4
    assert all(check.passed for check in checks)
    assert checks == drawn()
    assert not all(check.passed for check in drawn("no_residual"))


def test_two_sample_trials_are_fewer_where_prompts_are_read_again() -> None:
    """The prefill chunk in another class: each trial costs a prompt."""
    apart = Certificate("bit-exact", 1, (1, 3, 8), (0, 0, 1), 1, 0, ())
    assert not two_sample.is_prompt_kept(apart)
    assert two_sample.is_prompt_kept(replace(apart, width_class=(0, 0, 0)))
