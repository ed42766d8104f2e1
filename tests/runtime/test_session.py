"""Sessions through the Python binding: requests, prompts, threads, lifetimes of a generation."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support.table_models import Python, chain, draft, noise_table, self_drafting

from specc.errors import InputError, RuntimeFault
from specc.runtime import Model

BUSY = 9


@pytest.mark.parametrize(
    "option",
    [
        {"top_p": 0.0},
        {"top_p": 2.0},
        {"top_k": -1},
        {"min_p": 1.5},
        {"k": 17},
        {"k": -1},
        {"k": "four"},
        {"k": 2**40},
        {"rule": "lossy"},
        {"repetition_penalty": 0.0},
        {"max_new_tokens": -1},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
        {"logit_bias": {99: 1.0}},
        {"logit_bias": {0: float("nan")}},
        {"logit_bias": {0: float("inf")}},
        {"logit_bias": 3},
        {"stop": [""]},
        {"stop": ["x" * 300]},
        {"stop": ["a"] * 17},
        {"stop": [3]},
        {"beams": 2},
        {"temperature": None},
    ],
)
def test_bad_options(option: dict[str, Any]) -> None:
    """One sentence that names the option; the session goes on."""
    with self_drafting(chain(8), None, token_bytes=[b"a"] * 8) as model, model.session() as session:
        with pytest.raises(InputError, match=next(iter(option)).replace("_", ".")):
            session.run([0], **option)
        assert session.run([0], temperature=0, max_new_tokens=2).tokens == [1, 2]


def test_a_stop_string_that_is_no_text() -> None:
    """Which one is told, counted from 1."""
    with (
        self_drafting(chain(8), None, token_bytes=[b"a"] * 8) as model,
        model.session() as session,
        pytest.raises(InputError, match="stop string 2 is not valid UTF-8"),
    ):
        session.run([0], stop=["a", "b\udcff"])


@pytest.mark.parametrize("prompt", [[], [-1], [8], [2**40], [0.5], "text", [[0]], None])
def test_bad_prompts(prompt: Any) -> None:
    """An error for that call only; another session in mid-text goes on."""
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
        worker = threading.Thread(
            target=lambda: results.append(session.run([0], text=False, temperature=0, max_new_tokens=60))
        )
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
