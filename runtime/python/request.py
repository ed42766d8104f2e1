"""What a caller may ask of one generation, and its C form (structs specc_options and specc_request)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specc.errors import InputError
from specc.runtime._ffi import Library, ffi

NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
RULES = ("rejection", "coupled")


@dataclass(frozen=True)
class Options:
    """Sampling options, applied in this order: penalties, bias, temperature, top_k, top_p, min_p."""

    temperature: float = 1.0  # exactly 0 is argmax, lowest id on ties
    top_p: float = 1.0  # (0, 1], 1 is off
    top_k: int = 0  # 0 is off
    min_p: float = 0.0  # [0, 1], 0 is off
    repetition_penalty: float = 1.0  # > 0, over prompt and output
    presence_penalty: float = 0.0  # over the output
    frequency_penalty: float = 0.0  # over the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # -inf bans an id


@dataclass(frozen=True)
class Request(Options):
    """One generation: the sampling options and how to draw, when to stop, whether to speculate.

    >>> from dataclasses import asdict
    >>> from specc import Model, Request
    >>> request = Request(temperature=0.7, top_p=0.9, rule="coupled", seed=7, max_new_tokens=8)
    >>> with Model.open("bundle") as model, model.session() as session:
    ...     result = session.run([72, 105], **asdict(request))
    >>> result.seed
    7
    """

    rule: str = "rejection"  # or "coupled"
    speculation: bool = True  # False: off with reason `requested`
    k: int = 0  # 0: the certificate's choice
    seed: int | None = None  # None: a fresh one, reported by Session.seed
    sample: int = 0  # n samples of one seed are independent
    stop: Sequence[str] = ()  # text ends before the first of them
    max_new_tokens: int = 256
    min_new_tokens: int = 0  # end tokens are banned until so many are out
    ignore_eos: bool = False


def request_from(options: Mapping[str, Any]) -> Request:
    """A Request from keyword arguments; InputError names an unknown one."""
    allowed = Request.__dataclass_fields__
    unknown = [name for name in options if name not in allowed]
    if unknown:
        raise InputError(f"there is no sampling option {unknown[0]!r}; allowed are {', '.join(allowed)}")
    return Request(**options)


def fill_options(options: Options, out: Any) -> list[Any]:
    """Writes a specc_options; returns what must stay alive as long as it is used."""
    for name in NUMBERS:
        _put(out, name, getattr(options, name))
    try:
        ids = ffi.new("int32_t[]", list(options.logit_bias.keys()))
        values = ffi.new("double[]", list(options.logit_bias.values()))
    except (TypeError, OverflowError, AttributeError) as error:
        raise InputError(f"logit_bias must map token ids to numbers: {error}") from None
    out.n_bias, out.bias_ids, out.bias_values = len(options.logit_bias), ids, values
    return [ids, values]


def to_struct(library: Library, request: Request) -> tuple[Any, list[Any]]:
    """A specc_request *, and what must stay alive beside it."""
    out = ffi.new("specc_request *")
    library.c.specc_request_default(out)
    keep = fill_options(request, out.options)
    if request.rule not in RULES:
        raise InputError(f"rule is {request.rule!r}; allowed are {' and '.join(RULES)}")
    out.rule = RULES.index(request.rule)
    for name in ("k", "max_new_tokens", "min_new_tokens", "sample"):
        _put(out, name, getattr(request, name))
    out.speculation, out.ignore_eos = int(bool(request.speculation)), int(bool(request.ignore_eos))
    out.seeded = int(request.seed is not None)
    _put(out, "seed", request.seed or 0)
    strings = [ffi.new("char[]", text) for text in _strings(request.stop)]
    out.stop, out.n_stop = (array := ffi.new("char *[]", strings)), len(strings)
    return out, [*keep, *strings, array]


def token_array(ids: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Token ids as contiguous int32; InputError for what is not a list of whole numbers."""
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError, OverflowError):
        raise InputError("token ids must be a flat list of integers") from None
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"token ids must be a flat list of integers, not {array.dtype} of shape {array.shape}"
        )
    outside = array[(array < -(2**31)) | (array >= 2**31)]
    if outside.size:
        raise InputError(f"token id {int(outside[0])} is outside the vocabulary")
    return np.ascontiguousarray(array, np.int32)


def int_pointer(array: npt.NDArray[np.int32]) -> Any:
    """`const int32_t *` into the array, which must outlive its use."""
    return ffi.cast("int32_t *", array.ctypes.data) if array.size else ffi.new("int32_t[1]")


def _put(out: Any, name: str, value: Any) -> None:
    """One field; the C type's own limits are reported as InputError, ranges are the C core's business."""
    try:
        setattr(out, name, value)
    except (TypeError, OverflowError):
        kind = (
            "a number"
            if isinstance(getattr(out, name), float)
            else "a whole number within the range of specc.h"
        )
        raise InputError(f"{name} is {value!r}; it must be {kind}") from None


def _strings(stop: Sequence[str]) -> list[bytes]:
    """The stop strings in UTF-8; one bare string counts as a list of one."""
    strings = [stop] if isinstance(stop, str) else list(stop)
    if any(not isinstance(text, str) or "\0" in text for text in strings):
        raise InputError("stop must be a list of strings without NUL characters")
    for number, text in enumerate(strings, 1):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"stop string {number} is not valid UTF-8; write it in UTF-8")
    return [text.encode() for text in strings]
