"""Field faults of requests, each with its switch (support.fault_switches)."""

from __future__ import annotations

import threading

import pytest
from support.fault_switches import Check, assert_fails_with_fault, assert_passes
from support.table_models import Python, chain

from specc.errors import InputError
from specc.runtime import Library, Model


def check_cancel(loaded: Library) -> None:
    """R54: cancelling from another thread ends a generation within a call; the session stays usable."""
    backend = Python(pause=0.002)
    model = Model.from_parts(backend, n_ids=8, context=400, assume_exact=True, loaded=loaded)
    with model, model.session() as session:
        timer = threading.Timer(0.05, session.cancel)
        timer.start()
        result = session.run([0], text=False, temperature=0, max_new_tokens=390)
        timer.join()
        assert result.finish_reason == "cancelled"
        assert len(result.tokens) < 200
        again = session.run([0], temperature=0, max_new_tokens=3)
        assert (again.tokens, again.finish_reason) == ([1, 2, 3], "length")


def check_empty_prompts(loaded: Library) -> None:
    """R55: an empty prompt or ids out of range fail that call only; another session continues."""
    model = Model.table(chain(8), loaded=loaded)
    with model, model.session() as session, model.session() as other:
        running = other.generate([0], temperature=0, max_new_tokens=20)
        next(running)
        for prompt in ([], [-1], [8], [2**31 - 1], [0, 8]):
            with pytest.raises(InputError):
                session.run(prompt)
            assert session.run([0], temperature=0, max_new_tokens=1).tokens == [1]
        assert session.run([0], max_new_tokens=0).tokens == []
        list(running)
        assert other.tokens == [(i + 1) % 8 for i in range(20)]


def check_long_prompts(loaded: Library) -> None:
    """R56: after the longest prompt one token fits; a longer one is an error with both numbers."""
    with Model.table(chain(8), context=32, loaded=loaded) as model, model.session() as session:
        result = session.run([0] * 31, temperature=0, max_new_tokens=1000)
        assert (result.tokens, result.finish_reason) == ([1], "length")
        for length in (32, 33, 320):
            with pytest.raises(InputError, match=rf"{length} tokens.*32"):
                session.run([0] * length)
            assert session.run([0], temperature=0, max_new_tokens=1).tokens == [1]


CHECKS: list[tuple[Check, str]] = [
    (check_cancel, "ignore_cancel"),
    (check_empty_prompts, "empty_prompt"),
    (check_long_prompts, "prompt_limit"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_check_passes(check: Check) -> None:
    assert_passes(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_check_fails_with_fault(check: Check, fault: str) -> None:
    assert_fails_with_fault(check, fault)
