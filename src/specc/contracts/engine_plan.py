"""One engine of a bundle: its layers, the widths of its calls, the capacity of its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from specc.contracts.model_spec import ModelSpec
from specc.contracts.scheme import Scheme

PREFILL_CHUNK = 64
CERTIFIED_WIDTHS = 17
"""Widest call that a certificate of our own operators covers beside the prefill chunk, whatever K is."""
KERNEL_BLOCK = 32


@dataclass(frozen=True)
class EnginePlan:
    """One engine: which layers at which scheme, and the row counts that it must take."""

    name: str
    """"target" or "draft"."""
    spec: ModelSpec
    scheme: Scheme
    layers: int
    """Layers that are built; early-exit drafts use fewer than `spec.layers`."""
    context: int
    capacity: int
    """KV cache slots: context + widest row count, so that padding rows write into scratch."""
    widths: tuple[int, ...]
    """Every row count that the runtime may use, rising; the last is the prefill chunk."""
    chunk: int
    """Rows of a prefill call."""
    dialect: str
    shares: str | None
    """"target" when the weights lie in the target's file (early-exit), else None."""
    hidden: bool = False
    """Whether the graph also outputs its final normalised hidden states: draft heads read them."""
    dtype: str = "fp32"
    """Type of KV caches and of products that no scheme narrows further: "fp32", "fp16" or "bf16"."""
    cache: str = ""
    """Type of KV caches where it differs from `dtype`: "fp8"."""
    opset24: bool = True
    """Dialect onnx24: TensorScatter and Attention; False: older operators, which return new cache rows."""


def plan_engine(
    name: str,
    spec: ModelSpec,
    scheme: Scheme,
    layers: int,
    context: int,
    k: int,
    dialect: str,
    shares: str | None,
) -> EnginePlan:
    """Widths 1..K+1 (the target on our own operators: 1..17) and the prefill chunk; capacity holds the widest
    too.

    On a GPU 2 rows cost what 5 do, and each width is compiled separately: there 1, 2, K+1 and the chunk are
    enough.
    """
    chunk = min(PREFILL_CHUNK, context)
    certified = min(CERTIFIED_WIDTHS, chunk) if (name, dialect) == ("target", "specc-cpu") else 0
    every = {*range(1, max(k + 1, certified) + 1), chunk}
    widths = tuple(sorted({1, 2, k + 1, chunk} if dialect == "onnx24" else every))
    capacity = context + widths[-1]
    return EnginePlan(name, spec, scheme, layers, context, capacity, widths, chunk, dialect, shares)


def has_kernels(scheme: Scheme) -> bool:
    """Whether our own CPU operators have products for a scheme: 4 or 8 bits in blocks of 32."""
    return scheme.layers in ("w4", "w8") and scheme.head in ("w4", "w8") and scheme.block == KERNEL_BLOCK
