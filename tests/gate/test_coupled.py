"""The coupled rule against its definition, written again in numpy: an exponential race with Philox noise."""

from __future__ import annotations

import numpy as np
import pytest

from specc.gate.law.noise import race_times
from specc.gate.law.reference import distribution
from specc.runtime import Model, Options, Table

N = 300


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_every_token_is_the_winner_of_its_race(options: dict[str, float]) -> None:
    table = np.random.default_rng(5).normal(0, 3, (N, N)).astype(np.float32)
    engine = Table(table, 1, 140, (1, 2))
    parts = {"n_ids": N, "context": 130, "k_max": 1, "assume_exact": True}
    with Model.from_parts(engine, **parts) as model, model.session() as session:
        for seed, sample in ((1, 0), (2**63 + 12345, 4)):
            request = {"rule": "coupled", "seed": seed, "sample": sample, "max_new_tokens": 100, **options}
            before = 3
            for i, token in enumerate(session.run([before], text=False, **request).tokens):
                p = distribution(Options(**options), table[before])
                assert token == int(np.argmin(race_times(p, seed, i + 1, sample))), (seed, i)
                before = token
