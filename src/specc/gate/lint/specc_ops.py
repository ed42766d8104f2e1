"""Operators of domain `specc`: shapes, and on which inputs they keep the rows of a call apart.

MatMul(x, weights, norm?, bias?, residual?) works along the last axis of x, norm and quantization of x
included. Embedding(ids, weights) adds an axis. Attention(qkv [B, R, features], past_k, past_v, past_len,
position, cos, sin, bias?) reads slots 0..past_len + i for row i and no other row's query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specc.gate.lint.findings import MIX_FIX, Finding, make_finding
from specc.gate.lint.shapes import Dim, Facts, Rule, Shape, read_attribute

DOMAIN = "specc"


def infer_product(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if not ins[0] else (*ins[0][:-1], Dim(read_attribute(node, "kept", 1)))]


def infer_embedding(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [None if ins[0] is None else (*ins[0], Dim(read_attribute(node, "inputs", 1)))]


def infer_attention(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Heads of the query only; the caches keep the shape that they came with."""
    qkv, past = ins[0], ins[1]
    if qkv is None or past is None or len(qkv) != 3 or len(past) != 4:
        return [None, past, ins[2]]
    heads = Dim(read_attribute(node, "heads", 1) * past[3].coef, past[3].syms)
    return [(*qkv[:2], heads), past, ins[2]]


def judge_product(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """x is summed along its last axis, the weights are one block for all rows."""
    x, weights = ins[0], ins[1]
    if not x or x[-1].rows or x[-1].context:
        yield make_finding(node, "the product sums over the rows of the call", MIX_FIX)
    if weights is None or any(d.rows for d in weights):
        yield make_finding(
            node, "the weights are computed from the rows of the call", "give them as an initializer"
        )


def judge_attention(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Rows must be the axis that the operator takes for rows, or sequences of their own."""
    qkv = ins[0]
    if qkv is None or len(qkv) != 3 or qkv[2].rows:
        yield make_finding(
            node, "attention reads rows of the call as features", "give qkv as [batch, rows, features]"
        )
    if any(shape is None or any(d.rows for d in shape) for shape in ins[5:7]):
        yield make_finding(
            node, "the rotary table is computed from the rows of the call", "give it as an initializer"
        )


RULES: dict[str, Rule] = {
    f"{DOMAIN}::MatMul": infer_product,
    f"{DOMAIN}::Embedding": infer_embedding,
    f"{DOMAIN}::Attention": infer_attention,
}
JUDGES: dict[str, Any] = {f"{DOMAIN}::MatMul": judge_product, f"{DOMAIN}::Attention": judge_attention}
