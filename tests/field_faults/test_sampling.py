"""Field faults of sampling, seeds and broken logits, each with its switch (support.fault_switches)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.fault_switches import Check, assert_fails_with_fault, assert_passes
from support.table_models import Ahead, Logits, Python, chain, draft, noise_table, self_drafting

from specc.errors import InputError, RuntimeFault
from specc.runtime import Io, Library, Model, Options, distribution

NUMERICS = 7
"""Error code of a row without a valid distribution."""


def check_options_everywhere(loaded: Library) -> None:
    """R05: a banned token, and one below min_p, never appears, in any slot."""
    table = noise_table(8, 1)
    banned = int(table[1].argmax())
    with self_drafting(table, loaded) as model, model.session() as session:
        out = session.trials([0, 1], 3000, k=4, seed=1, logit_bias={banned: -np.inf})[:, 0]
        assert banned not in out[:, 6:]
        unlikely = np.flatnonzero(np.exp(table[1] - table[1].max()) < 0.3)
        out = session.trials([0, 1], 3000, k=4, seed=1, min_p=0.3)[:, 0]
        assert not np.isin(out[:, 6], unlikely).any()


def check_filter_ties(loaded: Library) -> None:
    """R06: top-p stops at the token that reaches it exactly; ties keep the lower id, also in the draft."""
    flat = np.zeros((4, 4), np.float32)
    assert distribution(flat[0], Options(top_p=0.5), loaded=loaded).tolist() == [0.5, 0.5, 0, 0]
    assert distribution([0, 1, 1, 1], Options(top_k=2), loaded=loaded).tolist() == [0, 0.5, 0.5, 0]
    with self_drafting(flat, loaded) as model, model.session() as session:
        out = session.trials([0], 500, k=4, seed=2, top_p=0.5)[:, 0]
        assert out[:, 6:].max() == 1
        assert (out[:, 1] == 4).all()


def check_temperatures(loaded: Library) -> None:
    """R07: temperature 0 is argmax, any above it samples, plain and speculative; others are refused."""
    table = chain(8)
    table[0, 2] = table[0, 1]  # after 0, ids 1 and 2 are tied
    with self_drafting(table, loaded) as model, model.session() as session:
        for temperature in (0.0, 1e-40, 1e-8, 1e-6, 1e-5):
            for on in (True, False):
                options: dict[str, Any] = {"temperature": temperature, "speculation": on, "max_new_tokens": 2}
                first = [session.run([0], seed=i, **options).tokens[0] for i in range(60)]
                assert set(first) == ({1} if temperature == 0 else {1, 2})
        for bad in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="temperature"):
                session.run([0], temperature=bad)


def check_seeds(loaded: Library) -> None:
    """R11: a seed gives one text, whatever else runs; under `coupled` it is the same for each K."""
    target = noise_table(8, 2)
    model = Model.table(target, order=2, drafter=draft(noise_table(8, 2, 9), 2), k_max=5, loaded=loaded)
    with model, model.session() as session, model.session() as other:
        options: dict[str, Any] = {"seed": 42, "temperature": 2.0, "max_new_tokens": 60}
        for k in range(1, 6):
            alone = session.run([0, 1], k=k, **options).tokens
            tokens: list[int] = []
            noise = other.generate([3], seed=7, max_new_tokens=200)
            for event in session.generate([0, 1], k=k, **options):
                tokens += event.tokens
                next(noise)
            assert tokens == alone
        texts = {tuple(session.run([0, 1], k=k, rule="coupled", **options).tokens) for k in range(1, 6)}
        assert len(texts) == 1


def check_fresh_seeds(loaded: Library) -> None:
    """R12: requests without a seed differ; samples of one seed differ from each other and repeat."""
    with self_drafting(noise_table(8, 1), loaded) as model:

        def texts(**options: Any) -> list[tuple[int, ...]]:
            results = []
            for i in range(20):
                with model.session() as session:
                    arguments = {name: value(i) for name, value in options.items()}
                    results.append(tuple(session.run([0], max_new_tokens=40, **arguments).tokens))
            return results

        assert len(set(texts())) == 20
        samples = texts(seed=lambda _: 5, sample=lambda i: i)
        assert len(set(samples)) == 20
        assert samples == texts(seed=lambda _: 5, sample=lambda i: i)


def check_broken_rows(loaded: Library) -> None:
    """R13: logits that are NaN, infinite or all masked raise an error with its own code; no token comes."""
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


CHECKS: list[tuple[Check, str]] = [
    (check_options_everywhere, "options_on_bonus_only"),
    (check_filter_ties, "top_p_extra"),
    (check_temperatures, "greedy_threshold"),
    (check_seeds, "shared_random"),
    (check_fresh_seeds, "constant_seed"),
    (check_broken_rows, "accept_nan"),
]


@pytest.mark.parametrize("check", [check for check, _ in CHECKS])
def test_check_passes(check: Check) -> None:
    assert_passes(check)


@pytest.mark.parametrize(("check", "fault"), CHECKS)
def test_check_fails_with_fault(check: Check, fault: str) -> None:
    assert_fails_with_fault(check, fault)


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
    """R12: unseeded requests of new processes differ; with the fault all give one text."""
    command = [sys.executable, "-c", UNSEEDED, fault]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(6)]
    texts = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    assert len(set(texts)) == different
