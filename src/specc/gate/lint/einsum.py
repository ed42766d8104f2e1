"""Einsum: shapes of its output and the axes that it sums over, from the equation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specc.gate.lint.findings import MIX_FIX, Finding, make_finding
from specc.gate.lint.movement import is_one_place
from specc.gate.lint.shapes import Dim, Facts, Shape, read_attribute


def read_equation(node: Any, ins: list[Shape | None]) -> tuple[list[str], str] | None:
    """Labels of each input and of the output, without "..."; None where it is spelled otherwise."""
    text = read_attribute(node, "equation", b"").decode().replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted({c for c in left if c.isalpha()})
        right = "".join(c for c in letters if left.count(c) == 1)
    whole = (
        "." not in text
        and len(terms) == len(ins)
        and all(shape is not None and len(term) == len(shape) for term, shape in zip(terms, ins, strict=True))
    )
    return (terms, right) if whole else None


def collect_dims(terms: list[str], ins: list[Shape | None]) -> dict[str, list[Dim]]:
    """All dimensions that each label stands for."""
    dims_by_label: dict[str, list[Dim]] = {}
    for term, shape in zip(terms, ins, strict=True):
        for label, dim in zip(term, shape or (), strict=True):
            dims_by_label.setdefault(label, []).append(dim)
    return dims_by_label


def infer_einsum(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    read = read_equation(node, ins)
    if read is None:
        return [None]
    dims_by_label = collect_dims(read[0], ins)
    return [
        tuple(max(dims_by_label[c], key=lambda d: (d.rows, d.context, bool(d.syms), d.coef)) for c in read[1])
    ]


def judge_einsum(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """No label of rows may be summed away, none may stand for rows of two kinds."""
    read = read_equation(node, ins)
    if read is None:
        yield make_finding(
            node, "the equation cannot be traced", "write it with one letter an axis, or as MatMul"
        )
        return
    terms, right = read
    dims_by_label = collect_dims(terms, ins)
    weighted = any(name in facts.weights for name in node.input)
    for label, dims in dims_by_label.items():
        summed = label not in right
        rows, context = any(d.rows or d.batch for d in dims), any(d.context for d in dims)
        if summed and (rows or context) and not weighted:
            yield make_finding(node, f"index {label} sums over the rows of the call", MIX_FIX)
        if not is_one_place([(d,) for d in dims]) or any(term.count(label) > 1 and rows for term in terms):
            yield make_finding(node, f"index {label} joins different rows of the call", MIX_FIX)
