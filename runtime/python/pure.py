"""The pure parts of the C core as functions of numbers: for tests, and for token loops of your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specc.runtime._ffi import Library, ffi, library
from specc.runtime.request import RULES, Options, fill_options, int_pointer, token_array


def distribution(
    logits: npt.ArrayLike,
    options: Options,
    *,
    history: Sequence[int] = (),
    n_prompt: int = 0,
    n_ids: int | None = None,
    loaded: Library | None = None,
) -> npt.NDArray[np.float64]:
    """p [n_ids] of one row of logits under the options; history: ids of prompt (first n_prompt) and output.

    RuntimeFault for NaN, +infinity, or a row with nothing left; InputError for options out of range.
    """
    loaded = loaded or library()
    row, past = np.ascontiguousarray(logits, np.float32), token_array(history)
    p = np.empty(row.size if n_ids is None else n_ids, np.float64)
    c = ffi.new("specc_options *")
    keep = fill_options(options, c)
    loaded.check(
        loaded.c.specc_distribution(
            c,
            ffi.cast("float *", row.ctypes.data),
            row.size,
            p.size,
            int_pointer(past),
            past.size,
            n_prompt,
            ffi.cast("double *", p.ctypes.data),
        )
    )
    del keep
    return p


@dataclass(frozen=True, eq=False)
class Judged:
    """Rows of one round, judged."""

    p: npt.NDArray[np.float64]  # [rows, n_ids] the distributions
    accepted: npt.NDArray[np.int32]  # [rows] 1 where the proposed token is accepted; 0 in the last row
    token: npt.NDArray[np.int32]  # [rows] what each row's slot holds


def judge_rows(
    logits: npt.ArrayLike,
    proposed: Sequence[int],
    options: Options,
    *,
    rule: str = "rejection",
    seed: int = 0,
    sample: int = 0,
    position: int = 0,
    history: Sequence[int] = (),
    n_prompt: int = 0,
    loaded: Library | None = None,
) -> Judged:
    """The CUDA kernels' code on the CPU: logits [rows, n_ids] of a round with one-hot proposals [rows - 1].

    RuntimeFault for rows without a law, InputError for numbers that do not fit together.
    """
    loaded, rows = loaded or library(), np.ascontiguousarray(logits, np.float32)
    past, tokens, c = token_array(history), token_array(proposed), ffi.new("specc_options *")
    keep = fill_options(options, c)
    n_rows, n_ids = rows.shape
    out = Judged(np.empty(rows.shape, np.float64), np.empty(n_rows, np.int32), np.empty(n_rows, np.int32))
    numbers = {"seed": seed, "sample": sample, "position": position, "rule": RULES.index(rule)}
    counts = {"n_history": past.size, "n_prompt": n_prompt, "n_proposed": tokens.size}
    ids = {"history": int_pointer(past), "proposed": int_pointer(tokens)}
    judged = {"options": c, "rows": n_rows, "n_ids": n_ids, **numbers, **counts, **ids}
    status = loaded.c.specc_judge_rows(
        ffi.new("specc_round *", judged),
        ffi.cast("float *", rows.ctypes.data),
        n_ids,
        ffi.cast("double *", out.p.ctypes.data),
        int_pointer(out.accepted),
        int_pointer(out.token),
    )
    loaded.check(status)
    del keep
    return out


def philox(seed: int, counter: Sequence[int], loaded: Library | None = None) -> list[int]:
    """Philox4x32-10 of a 64-bit key and four 32-bit counters."""
    out = ffi.new("uint32_t[4]")
    (loaded or library()).c.specc_philox(seed, ffi.new("uint32_t[4]", list(counter)), out)
    return list(out)


def exp(x: float, loaded: Library | None = None) -> float:
    """The stated polynomial for e ** x that every platform shares."""
    return float((loaded or library()).c.specc_exp(x))


def log(x: float, loaded: Library | None = None) -> float:
    """The stated polynomial for the natural logarithm that every platform shares."""
    return float((loaded or library()).c.specc_log(x))
