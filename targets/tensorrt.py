"""What each TensorRT version and compute capability can take, and what works instead.

Sources: the ONNX parser's change log and operator table
(https://github.com/onnx/onnx-tensorrt/blob/main/docs/), the support matrices of TensorRT and TensorRT-RTX
(https://docs.nvidia.com/deeplearning/).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]

OPERATORS: Mapping[str, Version] = {
    "Attention": (10, 14),
    "RMSNormalization": (10, 15),
    "RotaryEmbedding": (10, 15),
    "TensorScatter": (10, 15),
}
"""Operators that came after 10.0, with the TensorRT whose parser first takes them."""
NEVER = ("DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "SimplifiedLayerNormalization")
OPSETS: tuple[tuple[Version, int], ...] = ((10, 13), 24), ((10, 9), 22), ((10, 0), 20)
"""Highest opset that a version documents. Int4 blocks need 21 and are read from 10.0 on."""
TYPES: Mapping[str, Version] = {"FLOAT8E4M3FN": (10, 0), "INT4": (10, 0), "BFLOAT16": (10, 0)}
LEAST_SM: Mapping[str, int] = {"fp32": 70, "fp16": 70, "bf16": 80, "w4": 80, "w8": 80, "int8": 75, "fp8": 89}
"""Lowest compute capability of each precision (10 x major + minor)."""
INSTEAD: Mapping[str, tuple[str, ...]] = {
    "fp8": ("w8", "fp16"),
    "int8": ("w8", "fp16"),
    "w8": ("fp16",),
    "w4": ("w8", "fp16"),
    "bf16": ("fp16",),
}
"""What comes nearest to a precision, best first."""
RTX_FIRST: Version = (1, 7)
"""TensorRT-RTX counts its own versions; from this one on it takes all of the above (built and seen here)."""


@dataclass(frozen=True)
class Builder:
    """One TensorRT on one compute capability."""

    version: Version
    sm: int
    is_rtx: bool = False
    gaps: Mapping[str, str] = field(default_factory=dict)
    """Precisions that do not work although version and SM would allow them, and why."""

    def has_operator(self, operator: str) -> bool:
        """Whether the parser takes an operator."""
        if operator in NEVER:
            return False
        return self.is_rtx or self.version >= OPERATORS.get(operator, (10, 0))

    @property
    def opset(self) -> int:
        """Highest opset that is documented."""
        if self.is_rtx:
            return 24
        return next((opset for least, opset in OPSETS if self.version >= least), 17)

    @property
    def takes_opset24(self) -> bool:
        """Whether the `onnx24` dialect can be written with TensorScatter and Attention."""
        return all(map(self.has_operator, OPERATORS))

    def explain_lack(self, precision: str) -> str | None:
        """Why a precision does not work here; None where it does."""
        least = LEAST_SM.get(precision)
        if least is None:
            return f"no engine of TensorRT has the scheme {precision}"
        if self.sm < least:
            return f"{precision} needs SM {least} and this is SM {self.sm}"
        return self.gaps.get(precision)

    def find_nearest(self, precision: str) -> str:
        """The nearest precision that works."""
        return next((near for near in INSTEAD.get(precision, ()) if self.explain_lack(near) is None), "fp16")

    def list_refused(self, operators: Iterable[str]) -> list[str]:
        """The operators that the parser does not take, each with the version that does."""
        return [
            f"{name} ({describe_support(name)})"
            for name in sorted(set(operators))
            if not self.has_operator(name)
        ]


def describe_support(operator: str) -> str:
    """Which TensorRT takes an operator."""
    least = OPERATORS.get(operator)
    return "no TensorRT" if least is None else f"TensorRT {'.'.join(map(str, least))}"


def parse_version(text: str) -> Version:
    """'10.3' -> (10, 3)."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
