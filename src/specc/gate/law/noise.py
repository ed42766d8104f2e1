"""Random numbers and draws in plain numpy, written from the text of specc.h and independent of the C code.

Philox4x32-10 keyed by the seed; the counter is (absolute position, purpose, index, sample).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TARGET, ACCEPT, DRAFT, RACE = range(4)
"""Purposes: each has random numbers of its own."""
LOW = np.uint64(0xFFFFFFFF)
Row = npt.NDArray[np.float64]


def philox(seed: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 (Salmon et al. 2011): counters [n, 4] of 32 bits -> words [n, 4] of 32 bits."""
    c = [counters[:, i] for i in range(4)]
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        c = [high_b ^ c[1] ^ np.uint64(keys[0]), b & LOW, high_a ^ c[3] ^ np.uint64(keys[1]), a & LOW]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, 1)


def uniform(seed: int, position: int, purpose: int, sample: int) -> float:
    """The number in [0, 1), of 53 bits, for a purpose at an absolute position."""
    words = philox(seed, np.array([[position, purpose, 0, sample]], np.uint64))[0]
    return (int(words[0] >> np.uint64(5)) * 2**26 + int(words[1] >> np.uint64(6))) / 2**53


def race_times(p: Row, seed: int, position: int, sample: int) -> Row:
    """Arrival times -log(u) / p [n] of the exponential race; infinite where p is 0. Two ids share a Philox
    block.
    """
    blocks = np.arange((len(p) + 1) // 2, dtype=np.uint64)
    counters = np.zeros((len(blocks), 4), np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2], counters[:, 3] = position, RACE, blocks, sample
    words = philox(seed, counters).reshape(-1, 2)[: len(p)]
    bits = (words[:, 0] << np.uint64(20)) | (words[:, 1] >> np.uint64(12))
    u = (bits.astype(np.float64) + 0.5) * 2.0**-52
    times = np.full(len(p), np.inf)
    times[p > 0] = -np.log(u[p > 0]) / p[p > 0]
    return times


def draw_interval(weight: Row, token: int) -> tuple[float, float]:
    """(low, high): a uniform number in this part of [0, 1) draws `token` from weight [n] by inversion."""
    total = weight.sum()
    below = weight[:token].sum()
    return float(below / total), float((below + weight[token]) / total)
