"""Field faults, each checked on the shipped library and shown to be found.

A check takes a library. `test_holds` runs it on the shipped one; `test_found_when_put_back` runs it on the controls
library with the named fault active, where it must fail.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import put_back
from support.table_models import (
    Ahead,
    ByWidth,
    Logits,
    Poisoning,
    Python,
    chain,
    draft,
    noise_table,
    self_drafting,
)

from specc.errors import InputError, RuntimeFault
from specc.runtime import Io, Library, Model, Options, Table, distribution

NUMERICS = 7


def check_widths(loaded: Library) -> None:
    """R01: rows that depend on the width never get a bit-exact certificate with K = 4."""
    table = Table(noise_table(8, 1), 1, 128 + 32, (1, 2, 3, 4, 5, 32))
    tokens = np.random.default_rng(0).integers(0, 8, 300)
    with Model.from_parts(table, n_ids=8, context=128, loaded=loaded) as model:
        assert model.certify(tokens).classes == [[1, 2, 3, 4, 5, 32]]
    with Model.from_parts(ByWidth(table, loaded), n_ids=8, context=128, loaded=loaded) as model:
        found = model.certify(tokens)
        assert [5] in found.classes
        assert [1, 2, 3, 4, 32] in found.classes


def check_end_tokens(loaded: Library) -> None:
    """R03: an end token ends the text in whatever slot it lands; nothing behind it is streamed, counted or cached."""
    for end in range(3, 12):
        with self_drafting(chain(16), loaded, eos=[end]) as model, model.session() as session:
            events = list(session.generate([0], temperature=0, k=4, max_new_tokens=40))
            assert session.tokens == list(range(1, end + 1))
            assert [token for event in events for token in event.tokens] == session.tokens
            assert events[-1].finished == "stop"
            assert session.stats["emitted"] == end
            assert session.stats["target_length"] == end


def check_stop_strings(loaded: Library) -> None:
    """R04: text ends before a stop string, ids with the token that completes it, as without speculation."""
    letters = [bytes([97 + i]) for i in range(16)]
    with self_drafting(chain(16), loaded, token_bytes=letters) as model, model.session() as session:
        for stop in ("cd", "de", "ef", "fgh", "ijk", "hi", "lm"):
            on = session.run([0], temperature=0, stop=[stop], max_new_tokens=15)
            off = session.run([0], temperature=0, stop=[stop], max_new_tokens=15, speculation=False)
            assert (on.tokens, on.text, on.finish_reason) == (off.tokens, off.text, off.finish_reason)
            assert on.text == "bcdefghijklmnop".split(stop)[0]
            assert on.finish_reason == "stop"
            assert on.tokens[-1] == ord(stop[-1]) - 97


def check_options_everywhere(loaded: Library) -> None:
    """R05: a banned token, and one below min_p, never appears, whatever the slot."""
    table = noise_table(8, 1)
    banned = int(table[1].argmax())
    with self_drafting(table, loaded) as model, model.session() as session:
        out = session.trials([0, 1], 3000, k=4, seed=1, logit_bias={banned: -np.inf})[:, 0]
        assert banned not in out[:, 6:]
        weak = np.flatnonzero(np.exp(table[1] - table[1].max()) < 0.3)
        out = session.trials([0, 1], 3000, k=4, seed=1, min_p=0.3)[:, 0]
        assert not np.isin(out[:, 6], weak).any()


def check_filter_ties(loaded: Library) -> None:
    """R06: on an exact hit nucleus keeps no token more, ties keep the lower id, for target and draft alike."""
    flat = np.zeros((4, 4), np.float32)
    assert distribution(flat[0], Options(top_p=0.5), loaded=loaded).tolist() == [0.5, 0.5, 0, 0]
    assert distribution([0, 1, 1, 1], Options(top_k=2), loaded=loaded).tolist() == [0, 0.5, 0.5, 0]
    with self_drafting(flat, loaded) as model, model.session() as session:
        out = session.trials([0], 500, k=4, seed=2, top_p=0.5)[:, 0]
        assert out[:, 6:].max() == 1
        assert (out[:, 1] == 4).all()


def check_temperatures(loaded: Library) -> None:
    """R07: 0 is argmax, everything above samples, however small; no NaN, and plain and speculative agree."""
    table = chain(8)
    table[0, 2] = table[0, 1]  # after 0, ids 1 and 2 are tied
    with self_drafting(table, loaded) as model, model.session() as session:
        for temperature in (0.0, 1e-40, 1e-8, 1e-6, 1e-5):
            for on in (True, False):
                ask: dict[str, Any] = {"temperature": temperature, "speculation": on, "max_new_tokens": 2}
                first = [session.run([0], seed=i, **ask).tokens[0] for i in range(60)]
                assert set(first) == ({1} if temperature == 0 else {1, 2})
        for bad in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="temperature"):
                session.run([0], temperature=bad)


def check_seeds(loaded: Library) -> None:
    """R11: a seed gives one text, whatever else runs; K may change it for `rejection`, never for `coupled`."""
    target = noise_table(8, 2)
    model = Model.table(target, order=2, drafter=draft(noise_table(8, 2, 9), 2), k_max=5, loaded=loaded)
    with model, model.session() as one, model.session() as other:
        ask: dict[str, Any] = {"seed": 42, "temperature": 2.0, "max_new_tokens": 60}
        for k in range(1, 6):
            alone = one.run([0, 1], k=k, **ask).tokens
            tokens: list[int] = []
            noise = other.generate([3], seed=7, max_new_tokens=200)
            for event in one.generate([0, 1], k=k, **ask):
                tokens += event.tokens
                next(noise)
            assert tokens == alone
        texts = {tuple(one.run([0, 1], k=k, rule="coupled", **ask).tokens) for k in range(1, 6)}
        assert len(texts) == 1


def check_fresh_seeds(loaded: Library) -> None:
    """R12: unseeded requests differ, samples of one seed differ and repeat."""
    with self_drafting(noise_table(8, 1), loaded) as model:

        def texts(**options: Any) -> list[tuple[int, ...]]:
            found = []
            for i in range(20):
                with model.session() as session:
                    asked = {name: value(i) for name, value in options.items()}
                    found.append(tuple(session.run([0], max_new_tokens=40, **asked).tokens))
            return found

        assert len(set(texts())) == 20
        samples = texts(seed=lambda _: 5, sample=lambda i: i)
        assert len(set(samples)) == 20
        assert samples == texts(seed=lambda _: 5, sample=lambda i: i)


def check_broken_rows(loaded: Library) -> None:
    """R13: a NaN or infinite row, or one with nothing left, is an error of its own and gives no token."""
    for value in (np.nan, np.inf):
        for slot in range(4):

            def spoil(logits: Logits, io: Io, slot: int = slot, value: float = value) -> None:
                if io.past_len[0] + slot >= 6 and len(logits) > slot:
                    logits[slot, 3] = value

            parts: dict[str, Any] = {"n_ids": 8, "context": 64, "assume_exact": True, "loaded": loaded}
            with Model.from_parts(Python(spoil), Ahead(), **parts) as model, model.session() as session:
                with pytest.raises(RuntimeFault) as error:
                    session.run([0, 1], temperature=0.5, seed=1, max_new_tokens=40)
                assert error.value.code == NUMERICS
                assert all(0 <= token < 8 for token in session.tokens)
    with pytest.raises(RuntimeFault, match=r".+"):
        distribution(np.full(4, -np.inf), Options(), loaded=loaded)
    with pytest.raises(RuntimeFault, match=r".+"):
        distribution([0, np.nan, 1], Options(temperature=0), loaded=loaded)


def check_self_draft(loaded: Library) -> None:
    """R16: the target as its own drafter is accepted always, for 500 tokens, and its cache is never behind."""
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
    """R17: the last tokens come with a smaller K or none, to exactly the context; a shorter draft context is fine."""
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
    """R18: after a 9-token prompt the steps stand at 8, 9, 10, ... with that many entries before them."""
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
    """R19, R41: what stands behind the length is never read: after other prompts, rollbacks, and poison."""
    table, prompts = noise_table(8, 2), ([0, 1, 2, 3, 4], [0, 1, 5, 6], [7], [0, 1, 2, 3, 4, 5, 6, 7, 1])
    ask: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 30}
    model = Model.table(table, order=2, drafter=draft(noise_table(8, 2, 9), 2), loaded=loaded)
    with model, model.session() as used:
        for prompt in prompts:
            with model.session() as fresh:
                wanted = fresh.run(prompt, **ask).tokens
            assert used.run(prompt, **ask).tokens == wanted
    clean = Table(table, 2, 128 + 32, (1, 2, 3, 4, 5, 32))
    for value in (float("nan"), 1e38):
        texts = []
        for backend in (clean, Poisoning(clean, loaded)):
            if isinstance(backend, Poisoning):
                backend.value = value
            parts: dict[str, Any] = {"n_ids": 8, "context": 128, "assume_exact": True, "loaded": loaded}
            with Model.from_parts(backend, draft(table, 2), **parts) as model, model.session() as session:
                texts.append(session.run([0, 1, 2], **ask).tokens)
        assert texts[0] == texts[1]


def check_vocabulary(loaded: Library) -> None:
    """R21: columns behind the tokenizer's ids are masked on both sides, in both orders of width."""
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


def check_text(loaded: Library) -> None:
    """R24: pieces are whole UTF-8 and join to the whole, however a character is split over tokens and rounds."""
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
    """R25: every end token of a list ends the text."""
    for start, end in ((0, 3), (4, 9), (10, 12)):
        with self_drafting(chain(16), loaded, eos=[3, 9, 12]) as model, model.session() as session:
            assert session.run([start], temperature=0).tokens == list(range(start + 1, end + 1))


def check_cancel(loaded: Library) -> None:
    """R54: cancel from another thread ends a generation within a call; the session is usable afterwards."""
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
    """R55: no tokens, ids out of range, nothing asked for: that call only; another session in mid-text goes on."""
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
    """R56: one token fits behind the longest prompt; longer ones are an error with both numbers, and no more."""
    with Model.table(chain(8), context=32, loaded=loaded) as model, model.session() as session:
        result = session.run([0] * 31, temperature=0, max_new_tokens=1000)
        assert (result.tokens, result.finish_reason) == ([1], "length")
        for length in (32, 33, 320):
            with pytest.raises(InputError, match=rf"{length} tokens.*32"):
                session.run([0] * length)
            assert session.run([0], temperature=0, max_new_tokens=1).tokens == [1]


CHECKS: list[tuple[Callable[[Library], None], str]] = [
    (check_widths, "numerics_unchecked"),
    (check_end_tokens, "eos_last_only"),
    (check_stop_strings, "stop_last_only"),
    (check_options_everywhere, "options_on_bonus_only"),
    (check_filter_ties, "top_p_extra"),
    (check_temperatures, "greedy_threshold"),
    (check_seeds, "shared_random"),
    (check_fresh_seeds, "constant_seed"),
    (check_broken_rows, "accept_nan"),
    (check_self_draft, "draft_cache_behind"),
    (check_context_end, "no_clamp"),
    (check_positions, "position_off_by_one"),
    (check_stale_entries, "stale_entries"),
    (check_vocabulary, "vocabulary_width"),
    (check_text, "split_text"),
    (check_all_end_tokens, "first_eos_only"),
    (check_cancel, "ignore_cancel"),
    (check_empty_prompts, "empty_prompt"),
    (check_long_prompts, "prompt_limit"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_holds(check: Callable[[Library], None]) -> None:
    put_back.holds(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_found_when_put_back(check: Callable[[Library], None], fault: str) -> None:
    put_back.is_found(check, fault)


UNSEEDED = """
import sys
from contextlib import nullcontext
from specc.runtime import Model, controls, library

fault = sys.argv[1]
with controls().fault(fault) if fault else nullcontext():
    loaded = controls() if fault else library()
    with Model.table([[0.0] * 8] * 8, loaded=loaded) as model, model.session() as session:
        print(session.run([0], max_new_tokens=40).tokens)
"""


@pytest.mark.parametrize(("fault", "different"), [("", 6), ("constant_seed", 1)])
def test_new_processes_differ(fault: str, different: int) -> None:
    """R12: unseeded requests of new processes differ; with its fault put back they are one text."""
    command = [sys.executable, "-c", UNSEEDED, fault]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(6)]
    texts = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    assert len(set(texts)) == different
