"""The pure parts of the C core as functions of numbers: for tests, and for token loops of your own."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specc.runtime._ffi import Library, ffi, library
from specc.runtime.request import Options, fill_options, int_pointer, token_array


def distribution(logits: npt.ArrayLike, options: Options, *, history: Sequence[int] = (), n_prompt: int = 0,
                 n_ids: int | None = None, loaded: Library | None = None) -> npt.NDArray[np.float64]:
    """p [n_ids] of one row of logits under the options; history: ids of prompt (the first n_prompt) and output.

    RuntimeFault for NaN, +infinity, or a row with nothing left; InputError for options out of range.
    """
    loaded = loaded or library()
    row, past = np.ascontiguousarray(logits, np.float32), token_array(history)
    p = np.empty(row.size if n_ids is None else n_ids, np.float64)
    c = ffi.new("specc_options *")
    keep = fill_options(options, c)
    loaded.check(loaded.c.specc_distribution(
        c, ffi.cast("float *", row.ctypes.data), row.size, p.size, int_pointer(past), past.size, n_prompt,
        ffi.cast("double *", p.ctypes.data)))
    del keep
    return p


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
