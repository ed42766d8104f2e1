"""Refuse a weight scheme that no operator of ONNX Runtime or of specc can carry."""

from __future__ import annotations

from specc.contracts.scheme import Scheme
from specc.errors import InputError


def check_scheme(scheme: Scheme) -> None:
    """Refuse a scheme that no operator here can carry."""
    known = ("fp32", "w8", "w4", "dynamic-int8")
    for part, value in (("layers", scheme.layers), ("head", scheme.head)):
        if value not in known:
            raise InputError(f"The scheme of the {part} is {value!r}; use one of {', '.join(known)}.")
    if scheme.block < 16 or scheme.block & (scheme.block - 1):
        raise InputError(f"The block size is {scheme.block}; use a power of two from 16 on, such as 32.")
