"""Field faults of end tokens, stop strings and text, each with its switch (support.fault_switches)."""

from __future__ import annotations

import pytest
from support.fault_switches import Check, assert_fails_with_fault, assert_passes
from support.table_models import chain, self_drafting

from specc.runtime import Library


def check_end_tokens(loaded: Library) -> None:
    """R03: an end token ends the text in any slot; no token after it is streamed, counted or cached."""
    for end in range(3, 12):
        with self_drafting(chain(16), loaded, eos=[end]) as model, model.session() as session:
            events = list(session.generate([0], temperature=0, k=4, max_new_tokens=40))
            assert session.tokens == list(range(1, end + 1))
            assert [token for event in events for token in event.tokens] == session.tokens
            assert events[-1].finished == "stop"
            assert session.stats["emitted"] == end
            assert session.stats["target_length"] == end


def check_stop_strings(loaded: Library) -> None:
    """R04: text ends before a stop string, ids with the token that completes it, speculative or plain."""
    letters = [bytes([97 + i]) for i in range(16)]
    with self_drafting(chain(16), loaded, token_bytes=letters) as model, model.session() as session:
        for stop in ("cd", "de", "ef", "fgh", "ijk", "hi", "lm"):
            on = session.run([0], temperature=0, stop=[stop], max_new_tokens=15)
            off = session.run([0], temperature=0, stop=[stop], max_new_tokens=15, speculation=False)
            assert (on.tokens, on.text, on.finish_reason) == (off.tokens, off.text, off.finish_reason)
            assert on.text == "bcdefghijklmnop".split(stop)[0]
            assert on.finish_reason == "stop"
            assert on.tokens[-1] == ord(stop[-1]) - 97


def check_text(loaded: Library) -> None:
    """R24: streamed pieces are valid UTF-8 and join to the text, also of characters split over tokens and
    rounds.
    """
    smile, han = "😀".encode(), "漢".encode()
    pieces = [b"x", smile[:2], smile[2:], han[:1], han[1:2], han[2:]]
    pieces += [smile[:1], smile[1:2], smile[2:3], smile[3:], b" y", b"z"]
    whole = b"".join(pieces[1:]).decode()
    for k in (1, 2, 3, 4):
        with self_drafting(chain(12), loaded, token_bytes=pieces) as model, model.session() as session:
            texts = [event.text for event in session.generate([0], temperature=0, k=k, max_new_tokens=11)]
            assert "".join(texts) == whole
            cut = [event.text for event in session.generate([0], temperature=0, k=k, max_new_tokens=7)]
            assert "".join(cut).rstrip("\ufffd") == "😀漢"


def check_all_end_tokens(loaded: Library) -> None:
    """R25: each end token of a list ends the text."""
    for start, end in ((0, 3), (4, 9), (10, 12)):
        with self_drafting(chain(16), loaded, eos=[3, 9, 12]) as model, model.session() as session:
            assert session.run([start], temperature=0).tokens == list(range(start + 1, end + 1))


CHECKS: list[tuple[Check, str]] = [
    (check_end_tokens, "eos_last_only"),
    (check_stop_strings, "stop_last_only"),
    (check_text, "split_text"),
    (check_all_end_tokens, "first_eos_only"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_check_passes(check: Check) -> None:
    assert_passes(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_check_fails_with_fault(check: Check, fault: str) -> None:
    assert_fails_with_fault(check, fault)
