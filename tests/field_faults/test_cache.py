"""Field faults of widths, positions, the KV cache and the context, each with its switch
(support.fault_switches).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.fault_switches import Check, assert_fails_with_fault, assert_passes
from support.table_models import ByWidth, Poisoning, Python, draft, noise_table, self_drafting

from specc.errors import InputError
from specc.runtime import Library, Model, Table


def check_widths(loaded: Library) -> None:
    """R01: a width whose rows differ from those of the others is put into a width class of its own."""
    table = Table(noise_table(8, 1), 1, 128 + 32, (1, 2, 3, 4, 5, 32))
    tokens = np.random.default_rng(0).integers(0, 8, 300)
    with Model.from_parts(table, n_ids=8, context=128, loaded=loaded) as model:
        assert model.certify(tokens).classes == [[1, 2, 3, 4, 5, 32]]
    with Model.from_parts(ByWidth(table, loaded), n_ids=8, context=128, loaded=loaded) as model:
        classes = model.certify(tokens).classes
        assert [5] in classes
        assert [1, 2, 3, 4, 32] in classes


def check_self_draft(loaded: Library) -> None:
    """R16: with the target as its own draft all proposals are accepted; the draft's cache is complete."""
    with self_drafting(noise_table(8, 2), loaded, order=2, context=600) as model, model.session() as session:
        committed = 2
        for event in session.generate([0, 1], temperature=0, max_new_tokens=500):
            assert event.accepted == event.proposed
            if event.proposed and committed > 2:
                assert session.stats["draft_length"] in (committed - 1, committed - 2)
            committed += len(event.tokens)
        assert session.stats["emitted"] == 500
        assert session.stats["accepted_length"][4] >= 99


def check_context_end(loaded: Library) -> None:
    """R17: K shrinks at the end of the context, which is filled exactly; the draft may have a shorter one."""
    table = noise_table(8, 2)
    parts: dict[str, Any] = {"order": 2, "k_max": 5, "context": 32, "loaded": loaded}
    for capacity, length in itertools.product((24 + 32, 32 + 32, 200), (1, 20, 23, 24, 27, 30, 31)):
        with (
            Model.table(table, drafter=draft(table, 2, capacity), **parts) as model,
            model.session() as session,
        ):
            prompt = [i % 8 for i in range(length)]
            plain = session.run(prompt, temperature=0, speculation=False, max_new_tokens=99)
            count = length
            for event in session.generate(prompt, temperature=0, k=5, max_new_tokens=99):
                assert count + event.proposed < 32 or not event.proposed
                count += len(event.tokens)
            assert event.finished == "length"
            assert (count, session.tokens) == (32, plain.tokens)
    with Model.table(table, **parts) as model, model.session() as session:
        for length in (32, 33, 320):
            with pytest.raises(InputError, match="32"):
                session.run([0] * length)


def check_positions(loaded: Library) -> None:
    """R18: after a prompt of 9 tokens the calls have positions 8, 9, 10, ... and as many cache entries."""
    backend = Python()
    model = Model.from_parts(backend, n_ids=8, context=64, assume_exact=True, loaded=loaded)
    with model, model.session() as session:
        session.run([0, 1, 2, 3, 4, 5, 6, 7, 0], temperature=0, max_new_tokens=4)
    assert [(past, position[0]) for past, position in backend.calls] == [
        (0, 0),
        (8, 8),
        (9, 9),
        (10, 10),
        (11, 11),
    ]
    assert backend.calls[0][1][:8] == list(range(8))


def check_stale_entries(loaded: Library) -> None:
    """R19, R41: cache entries beyond the length are never read: of other prompts, of rollbacks, poisoned
    ones.
    """
    table, prompts = noise_table(8, 2), ([0, 1, 2, 3, 4], [0, 1, 5, 6], [7], [0, 1, 2, 3, 4, 5, 6, 7, 1])
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 30}
    model = Model.table(table, order=2, drafter=draft(noise_table(8, 2, 9), 2), loaded=loaded)
    with model, model.session() as used:
        for prompt in prompts:
            with model.session() as fresh:
                wanted = fresh.run(prompt, **options).tokens
            assert used.run(prompt, **options).tokens == wanted
    clean = Table(table, 2, 128 + 32, (1, 2, 3, 4, 5, 32))
    for value in (float("nan"), 1e38):
        texts = []
        for backend in (clean, Poisoning(clean, loaded)):
            if isinstance(backend, Poisoning):
                backend.value = value
            parts: dict[str, Any] = {"n_ids": 8, "context": 128, "assume_exact": True, "loaded": loaded}
            with Model.from_parts(backend, draft(table, 2), **parts) as model, model.session() as session:
                texts.append(session.run([0, 1, 2], **options).tokens)
        assert texts[0] == texts[1]


def check_vocabulary(loaded: Library) -> None:
    """R21: logits beyond the tokenizer's ids are masked, whether target or draft has more of them."""
    wide = np.pad(noise_table(6, 1), ((0, 0), (0, 2)), constant_values=9.0)
    wider = np.pad(noise_table(6, 1), ((0, 0), (0, 5)), constant_values=9.0)
    for target, other in ((wide, wider), (wider, wide)):
        with (
            Model.table(target, n_ids=6, drafter=draft(other), loaded=loaded) as model,
            model.session() as session,
        ):
            for temperature in (0.0, 1.0):
                tokens = session.run([0], temperature=temperature, seed=1, max_new_tokens=60).tokens
                assert max(tokens) < 6
                assert session.stats["reasons"] == []


CHECKS: list[tuple[Check, str]] = [
    (check_widths, "numerics_unchecked"),
    (check_self_draft, "draft_cache_behind"),
    (check_context_end, "no_clamp"),
    (check_positions, "position_off_by_one"),
    (check_stale_entries, "stale_entries"),
    (check_vocabulary, "vocabulary_width"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_check_passes(check: Check) -> None:
    assert_passes(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_check_fails_with_fault(check: Check, fault: str) -> None:
    assert_fails_with_fault(check, fault)
