"""Field faults of drafts, each with its switch (support.fault_switches)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.fault_switches import Check, assert_fails_with_fault, assert_passes
from support.table_models import chain, draft, noise_table, self_drafting

from specc.errors import SpeccError
from specc.gate import law, stats
from specc.gate.law import reference
from specc.gate.law import rounds as rounds_judge
from specc.gate.law.case import emitted_tokens
from specc.runtime import DraftContext, Drafter, HeadDraft, Library, Model, Node, Options, Table

CASE = law.Case("R02", 4, "rejection", "model", Options(temperature=0.7, top_k=3))
WIDE = (*range(1, 8), 32)


def check_reported_q(loaded: Library) -> None:
    """R02: tokens of 50,000 rounds (T = 0.7, top_k = 3) follow the laws of the q that the draft reports."""
    with law.make_model(CASE, loaded) as model, model.session() as session:
        findings = rounds_judge.judge_rounds(CASE, law.run_trials(session, CASE, 50000, 3))
    assert min(finding.p for finding in findings) > 1e-6


def check_reduced_q(loaded: Library) -> None:
    """R02: with a draft head over 3 of 4 ids and fp16 logits the text follows the target."""
    target, rows = law.make_tables(CASE)
    coarse = (0.3 * rows[:, [0, 2, 3]]).astype(np.float16).astype(np.float32)
    head = HeadDraft("feature", Table(coarse, 2, 96, WIDE, "reads"), 4, 4, (0, 2, 3))
    parts: dict[str, Any] = {
        "n_ids": 4,
        "context": law.CONTEXT,
        "k_max": 6,
        "assume_exact": True,
        "loaded": loaded,
    }
    with (
        Model.from_parts(Table(target, 2, 96, WIDE, "gives"), head, **parts) as model,
        model.session() as session,
    ):
        rounds = law.run_trials(session, CASE, 50000, 3)
    expected = reference.distribution(
        CASE.options, target[law.PROMPT[-2] * 4 + law.PROMPT[-1]], law.PROMPT, 9
    )
    counts = np.bincount(emitted_tokens(rounds)[:, 0], minlength=4)
    assert stats.fit_p_value(counts, expected) > 1e-6


def check_switched_k(loaded: Library) -> None:
    """R16: after K = 4, 4, 0, 0, 4 over one cache, all proposals of a self-draft are still accepted."""
    with self_drafting(noise_table(8, 2), loaded, order=2, context=600) as model, model.session() as session:
        text = [0, 1]
        for k in (4, 4, 0, 0, 4) * 5:
            result = session.run(text, temperature=0, k=k, speculation=k > 0, max_new_tokens=15)
            assert result.stats["accepted"] == result.stats["proposed"]
            assert (result.stats["proposed"] > 0) == (k > 0)
            text += result.tokens


def check_unpaid_drafts(loaded: Library) -> None:
    """R58: a draft that is never right is soon off; by the certificate's costs it takes 5 % at most."""
    wrong = np.roll(chain(8), 2, axis=1)
    with Model.table(chain(8), drafter=draft(wrong), k_max=4, context=600, loaded=loaded) as model:
        have = model.info.certificate
        costs = tuple(1.0 + 0.15 * (min(width, 5) - 1) for width in have.widths)
        model.apply(replace(have, call_ms=costs, draft_call_ms=0.3))
        with model.session() as session:
            stats = session.run([3, 4], temperature=0, max_new_tokens=500).stats
    assert stats["emitted"] == 500 and stats["accepted"] == 0
    spent = stats["rounds"] + 0.15 * stats["proposed"] + 0.3 * stats["draft_calls"]
    assert spent <= 1.05 * 500


class Branching(Drafter):
    """The two likeliest next tokens as siblings."""

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        last = int(context.tokens[-1])
        return [Node((last + 1) % 8, parent=-1), Node((last + 2) % 8, parent=-1)][: context.k]


def check_trees(loaded: Library) -> None:
    """R61: a tree of proposals is refused with a reason code, and the text continues without it."""
    with Model.table(chain(8), drafter=Branching(), loaded=loaded) as model, model.session() as session:
        result = session.run([0], temperature=0, max_new_tokens=10)
    assert result.tokens == [(i + 1) % 8 for i in range(10)]
    assert (result.stats["reasons"], result.stats["proposed"]) == (["draft-error"], 0)


def check_maps(loaded: Library) -> None:
    """R62: id maps that are not strictly rising are refused when a model is made."""
    table = noise_table(4, 2)
    for ids in ((0, 1, 1), (2, 0, 3), (0, 0, 0)):
        head = HeadDraft("feature", Table(table[:, :3], 2, 96, WIDE, "reads"), 4, 4, ids)
        with pytest.raises(SpeccError, match="strictly rising"):
            Model.from_parts(
                Table(table, 2, 96, WIDE, "gives"), head, n_ids=4, context=64, loaded=loaded
            ).close()


CHECKS: list[tuple[Check, str]] = [
    (check_reported_q, "q_of_argmax"),
    (check_reported_q, "q_other_options"),
    (check_reported_q, "q_temperature"),
    (check_reduced_q, "q_of_argmax"),
    (check_switched_k, "draft_cache_behind"),
    (check_unpaid_drafts, "always_proposes"),
    (check_trees, "tree_unchecked"),
    (check_maps, "map_unchecked"),
]


@pytest.mark.parametrize("check", sorted({check for check, _ in CHECKS}, key=lambda check: check.__name__))
def test_check_passes(check: Check) -> None:
    assert_passes(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_check_fails_with_fault(check: Check, fault: str) -> None:
    assert_fails_with_fault(check, fault)
