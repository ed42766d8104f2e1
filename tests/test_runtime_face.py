"""The runtime through its Python face: field faults, each checked on the shipped library and shown to be found.

A check takes a library. `test_holds` runs it on the shipped one; `test_found_when_put_back` runs it on the controls
library with the named fault active, where it must fail.
"""
from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from specc.errors import InputError, RuntimeFault, SpeccError
from specc.runtime import (
    Backend,
    DraftContext,
    Drafter,
    Io,
    Library,
    Model,
    ModelDraft,
    Ngram,
    Node,
    Options,
    Table,
    Wrapped,
    controls,
    device,
    distribution,
    library,
)

Logits = npt.NDArray[np.float32]
NUMERICS, BUSY = 7, 9


# ---------------------------------------------------------------------- small models


def chain(n: int, strength: float = 6.0) -> Logits:
    """Order 1: after b comes b + 1, nearly surely."""
    return np.roll(strength * np.eye(n), 1, axis=1).astype(np.float32)


def noise_table(n: int, order: int, seed: int = 4) -> Logits:
    """Random rows without ties."""
    return np.random.default_rng(seed).normal(0, 1.5, (n**order, n)).astype(np.float32)


def draft(table: Logits, order: int = 1, capacity: int = 1024) -> ModelDraft:
    """A drafter over a table."""
    return ModelDraft(Table(table, order, capacity, (1, 2, 3, 4, 5, 6, 32)))


def self_drafting(table: Logits, loaded: Library | None, order: int = 1, **parts: Any) -> Model:
    """Target and draft are one table."""
    return Model.table(table, order=order, drafter=draft(table, order), loaded=loaded, **parts)


class Python(Backend):
    """A chain model in Python that records its calls; `spoil` may write into the logits, `pause` is in seconds."""

    vocab, capacity, widths = 8, 600 + 16, (1, 2, 3, 4, 5, 16)

    def __init__(self, spoil: Callable[[Logits, Io], None] | None = None, pause: float = 0.0) -> None:
        self.spoil, self.pause = spoil, pause
        self.calls: list[tuple[int, list[int]]] = []

    def open(self, io: Io) -> Any:
        return io

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        time.sleep(self.pause)
        self.calls.append((int(cache.past_len[0]), cache.position[:rows].tolist()))
        for i, row in enumerate(cache.logit_rows[:n_logits]):
            cache.logits[i] = chain(8)[cache.input_ids[row] % 8]
        if self.spoil is not None:
            self.spoil(cache.logits[:n_logits], cache)


class Ahead(Drafter):
    """Proposes b + 1, b + 2, ... modulo n."""

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        return [(int(context.tokens[-1]) + 1 + i) % context.n_ids for i in range(context.k)]


class ByWidth(Wrapped):
    """Rows of five-row calls are off by the least bit."""

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        if rows == 5:
            cache[2].logits[:n_logits] = np.nextafter(cache[2].logits[:n_logits], np.float32(np.inf))


class Poisoning(Wrapped):
    """Everything behind the length is overwritten before each call."""

    value = float("nan")

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        self.poison(cache, int(cache[2].past_len[0]), self.value)
        super().run(cache, rows, n_logits)


# ---------------------------------------------------------------------- checks of field faults


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
    table[0, 2] = table[0, 1]                  # after 0, ids 1 and 2 are tied
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
        with Model.table(table, drafter=draft(table, 2, capacity), **parts) as model, model.session() as session:
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
    assert [(past, position[0]) for past, position in backend.calls] == [(0, 0), (8, 8), (9, 9), (10, 10), (11, 11)]
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
        with Model.table(target, n_ids=6, drafter=draft(other), loaded=loaded) as model, model.session() as session:
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


CHECKS: list[tuple[Callable[[Library], None], str]] = [
    (check_widths, "numerics_unchecked"), (check_end_tokens, "eos_last_only"), (check_stop_strings, "stop_last_only"),
    (check_options_everywhere, "options_on_bonus_only"), (check_filter_ties, "top_p_extra"),
    (check_temperatures, "greedy_threshold"), (check_seeds, "shared_random"), (check_fresh_seeds, "constant_seed"),
    (check_broken_rows, "accept_nan"), (check_self_draft, "draft_cache_behind"), (check_context_end, "no_clamp"),
    (check_positions, "position_off_by_one"), (check_stale_entries, "stale_entries"),
    (check_vocabulary, "vocabulary_width"), (check_text, "split_text"), (check_all_end_tokens, "first_eos_only"),
    (check_cancel, "ignore_cancel"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_holds(check: Callable[[Library], None]) -> None:
    """The shipped library, and the controls library without a fault, pass."""
    check(library())
    check(controls())


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_found_when_put_back(check: Callable[[Library], None], fault: str) -> None:
    """With its fault active each check fails."""
    with controls().fault(fault), pytest.raises((AssertionError, SpeccError, pytest.fail.Exception)):
        check(controls())


# ---------------------------------------------------------------------- requests, prompts, threads


@pytest.mark.parametrize("option", [
    {"top_p": 0.0}, {"top_p": 2.0}, {"top_k": -1}, {"min_p": 1.5}, {"k": 17}, {"k": -1}, {"k": "four"}, {"k": 2**40},
    {"rule": "lossy"}, {"repetition_penalty": 0.0}, {"max_new_tokens": -1}, {"seed": -1}, {"seed": 2**64},
    {"seed": 1.5},
    {"logit_bias": {99: 1.0}}, {"logit_bias": {0: float("nan")}}, {"logit_bias": {0: float("inf")}}, {"logit_bias": 3},
    {"stop": [""]}, {"stop": ["x" * 300]}, {"stop": ["a"] * 17}, {"stop": [3]}, {"beams": 2}, {"temperature": None},
])
def test_bad_options(option: dict[str, Any]) -> None:
    """One sentence that names the option; the session goes on."""
    with self_drafting(chain(8), None, token_bytes=[b"a"] * 8) as model, model.session() as session:
        with pytest.raises(InputError, match=next(iter(option)).replace("_", ".")):
            session.run([0], **option)
        assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]


@pytest.mark.parametrize("prompt", [[], [-1], [8], [2**40], [0.5], "text", [[0]], None])
def test_bad_prompts(prompt: Any) -> None:
    """R55, R56: an error for that call only; another session in mid-text goes on."""
    with self_drafting(chain(8), None) as model, model.session() as session, model.session() as other:
        running = other.generate([0], temperature=0, max_new_tokens=20)
        next(running)
        with pytest.raises(InputError):
            session.run(prompt)
        assert session.run([0], temperature=0, max_new_tokens=1).tokens == [1]
        list(running)
        assert other.tokens[:5] == [1, 2, 3, 4, 5]
        assert len(other.tokens) == 20


def test_nothing_asked_for() -> None:
    """max_new_tokens 0 calls nothing and ends."""
    with self_drafting(chain(8), None) as model, model.session() as session:
        result = session.run([0], max_new_tokens=0)
        assert (result.tokens, result.finish_reason) == ([], "length")
        assert session.run([0], text=False, max_new_tokens=0).finish_reason == "length"


def test_run_without_events_is_the_same() -> None:
    """Tokens and finish reason with and without Python in the loop."""
    with self_drafting(chain(8), None, eos=[5]) as model, model.session() as session:
        asked: list[dict[str, Any]] = [{}, {"max_new_tokens": 3}, {"ignore_eos": True, "max_new_tokens": 9}]
        for options in asked:
            a = session.run([0], temperature=0, text=False, **options)
            b = session.run([0], temperature=0, **options)
            assert (a.tokens, a.finish_reason) == (b.tokens, b.finish_reason)


def test_dropping_the_iterator_cancels() -> None:
    """R54: a generation left early stops; the next one is whole; the old iterator refuses to go on."""
    with self_drafting(noise_table(8, 1), None) as model, model.session() as session:
        for _ in range(1000):
            for _event in session.generate([0], seed=1, max_new_tokens=100):
                break
        old = session.generate([0], seed=1)
        next(old)
        whole = session.run([0], seed=1, max_new_tokens=50).tokens
        assert len(whole) == 50
        with pytest.raises(InputError, match="another"):
            next(old)
        with model.session() as fresh:
            assert fresh.run([0], seed=1, max_new_tokens=50).tokens == whole


def test_second_thread_is_answered_busy() -> None:
    """A session in use answers another thread at once and is not disturbed."""
    parts: dict[str, Any] = {"n_ids": 8, "context": 200, "assume_exact": True}
    with Model.from_parts(Python(pause=0.003), **parts) as model, model.session() as session:
        results: list[Any] = []
        worker = threading.Thread(target=lambda: results.append(
            session.run([0], text=False, temperature=0, max_new_tokens=60)))
        worker.start()
        time.sleep(0.05)
        with pytest.raises(RuntimeFault) as error:
            session.run([0])
        worker.join()
        assert error.value.code == BUSY
        assert results[0].tokens == [(i + 1) % 8 for i in range(60)]


def test_many_threads_one_model() -> None:
    """Sessions of one model on eight threads give what each gives alone."""
    with Model.table(noise_table(8, 2), order=2, drafter=draft(noise_table(8, 2, 9), 2)) as model:
        def text(seed: int) -> list[int]:
            with model.session() as session:
                return session.run([0, 1], seed=seed, text=False, max_new_tokens=200).tokens

        alone = [text(seed) for seed in range(8)]
        found: dict[int, list[int]] = {}
        workers = [threading.Thread(target=lambda s=seed: found.update({s: text(s)})) for seed in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [found[seed] for seed in range(8)] == alone


# ---------------------------------------------------------------------- parts in Python


def test_python_backend_exception_is_an_error() -> None:
    """An exception in a backend fails the call with its sentence; the session can start again."""
    def spoil(logits: Logits, io: Io) -> None:
        if io.past_len[0] == 3:
            raise ValueError("no such slot")

    with Model.from_parts(Python(spoil), n_ids=8, context=64, assume_exact=True) as model, model.session() as session:
        with pytest.raises(RuntimeFault, match="no such slot"):
            session.run([0], temperature=0)
        assert session.tokens == [1, 2, 3]
        assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]


class Sampling(Drafter):
    """Draws from flat logits, as a sampled draft model would."""

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        return [context.draw(np.zeros(context.n_ids, np.float32), depth) for depth in range(context.k)]


class Failing(Drafter):
    """Breaks after three rounds, by exception or by an id that there is not."""

    def __init__(self, how: str) -> None:
        self.how, self.rounds = how, 0

    def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
        self.rounds += 1
        if self.rounds > 3 and self.how == "raise":
            raise RuntimeError("out of drafts")
        return [999 if self.rounds > 3 else 1]


def test_python_drafters_keep_the_text() -> None:
    """Coupled text does not depend on the drafter: none, one in Python that samples, n-gram, a table."""
    table = noise_table(8, 1)
    texts = set()
    for drafter in (None, Sampling(), Ahead(), Ngram(1, 3), draft(table)):
        with Model.table(table, drafter=drafter) as model, model.session() as session:
            texts.add(tuple(session.run([0, 1], rule="coupled", seed=9, max_new_tokens=100).tokens))
    assert len(texts) == 1


@pytest.mark.parametrize("how", ["raise", "bad id"])
def test_failing_drafter_is_left_out(how: str) -> None:
    """The text goes on plain with reason draft-error."""
    with Model.table(chain(8), drafter=Failing(how)) as model, model.session() as session:
        result = session.run([0], temperature=0, max_new_tokens=20)
        assert result.tokens == [(i + 1) % 8 for i in range(20)]
        assert result.stats["reasons"] == ["draft-error"]


def test_python_drafter_sees_committed_tokens() -> None:
    """tokens, n_prompt, k, rule and seed reach the drafter; commit gets a growing length."""
    class Watching(Ahead):
        def __init__(self) -> None:
            self.seen: list[tuple[list[int], int, int, str, int]] = []
            self.kept: list[int] = []

        def propose(self, state: Any, context: DraftContext) -> list[Node | int]:
            self.seen.append((context.tokens.tolist(), context.n_prompt, context.k, context.rule, context.seed))
            return super().propose(state, context)

        def commit(self, state: Any, n_keep: int) -> None:
            self.kept.append(n_keep)

    watching = Watching()
    with Model.table(chain(8), drafter=watching) as model, model.session() as session:
        session.run([6, 7], temperature=0, rule="coupled", seed=2**63, max_new_tokens=7)
    assert watching.seen == [([6, 7], 2, 4, "coupled", 2**63), ([6, 7, 0, 1, 2, 3, 4], 2, 1, "coupled", 2**63)]
    assert watching.kept[1:] == [6, 8]


# ---------------------------------------------------------------------- models, certificates, lifetimes


def test_info_and_reasons() -> None:
    """A model is certified only where its maker or the gate says so."""
    table = Table(noise_table(8, 1), 1, 64 + 16, (1, 2, 3, 16))
    with Model.from_parts(table, Ngram(), n_ids=8, context=64, k_max=2, eos=[7]) as model:
        assert (model.info.enabled, model.info.reasons) == (False, ("uncertified-device",))
        certificate = model.certify(np.arange(200) % 8, seed=1)
        assert certificate.kind == "bit-exact"
        model.apply(certificate)
        info = model.info
        assert (info.enabled, info.reasons, info.certificate) == (True, (), certificate)
        assert (info.n_ids, info.context, info.k_max, info.chunk, info.eos) == (8, 64, 2, 16, (7,))
        assert info.backend == "table"


def test_certify_progress_and_cancel() -> None:
    """progress sees a rising count; a true answer cancels; its exception comes through."""
    with Model.table(noise_table(8, 1)) as model:
        seen: list[tuple[int, int]] = []
        model.certify([0, 1, 2], progress=lambda done, total: seen.append((done, total)))
        assert len(seen) > 100
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        with pytest.raises(RuntimeFault, match="cancelled"):
            model.certify([0, 1, 2], progress=lambda done, total: True)
        with pytest.raises(ZeroDivisionError):
            model.certify([0, 1, 2], progress=lambda done, total: 1 // 0)
        with pytest.raises(InputError, match="out of range"):
            model.certify([99])


def test_session_keeps_its_model_alive() -> None:
    """Freeing in any order is safe; closed objects say so."""
    model = Model.table(chain(8))
    session = model.session()
    other = model.session()
    del model
    assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]
    session.close()
    session.close()
    with pytest.raises(InputError, match="closed"):
        session.run([0])
    assert other.run([0], temperature=0, max_new_tokens=1).tokens == [1]
    closed = Model.table(chain(8))
    orphan = closed.session()
    closed.close()
    with pytest.raises(InputError, match="closed"):
        orphan.run([0])
    with pytest.raises(InputError, match="closed"):
        closed.session()


def test_impossible_models() -> None:
    """Each a sentence, nothing leaks: tables of no order, rows that do not fit, a K too large."""
    for table, parts in ((np.zeros((5, 4)), {"order": 2}), (np.zeros(4), {}), (np.zeros((4, 4)), {"k_max": 17}),
                         (np.zeros((4, 4)), {"eos": [9]}), (np.zeros((4, 4)), {"context": 1}),
                         (np.zeros((4, 4)), {"token_bytes": [b"a"]}), (np.zeros((4, 4)), {"widths": (4, 2)})):
        with pytest.raises(SpeccError):
            Model.table(table, **parts)
    with pytest.raises(SpeccError):
        Model.open("/nonexistent")


def test_device_and_library() -> None:
    """Name and fingerprint of the device; the controls library lists its faults, the shipped one has none."""
    name, fingerprint = device()
    assert name
    assert len(fingerprint) == 64
    assert "drop_low_q" in controls().faults()
    with pytest.raises(AttributeError):
        library().faults()
    with pytest.raises(InputError, match="no fault"), controls().fault("typo"):
        pass
