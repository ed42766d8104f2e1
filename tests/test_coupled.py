"""The coupled rule against its definition, written again in numpy: an exponential race with Philox noise."""

from __future__ import annotations

import numpy as np
import pytest

from specc.gate.reference import distribution
from specc.runtime import Model, Options, Table

N, RACE = 300, 3


def philox(seed: int, counter: np.ndarray) -> np.ndarray:
    """Philox4x32-10 (Salmon et al. 2011): uint32 [n, 4] counters -> uint32 [n, 4]."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    keys, low = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        c = [high_b ^ c[1] ^ np.uint64(keys[0]), b & low, high_a ^ c[3] ^ np.uint64(keys[1]), a & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


def winner(p: np.ndarray, seed: int, position: int, sample: int) -> int:
    """argmin of -log(u) / p, u of 52 bits and a half, two ids to a block."""
    blocks = np.arange((len(p) + 1) // 2)
    same = np.ones_like(blocks)
    counters = np.stack([position * same, RACE * same, blocks, sample * same], 1)
    words = philox(seed, counters).reshape(-1, 2)[: len(p)]
    bits = (words[:, 0] << np.uint64(20)) | (words[:, 1] >> np.uint64(12))
    u = (bits.astype(np.float64) + 0.5) * 2.0**-52
    with np.errstate(divide="ignore"):
        return int(np.argmin(np.where(p > 0, -np.log(u) / p, np.inf)))


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
                assert token == winner(p, seed, i + 1, sample), (seed, i)
                before = token
