"""Marks that shapes do not carry: values picked from some rows, data or positions, masks, attention
weights.
"""

from __future__ import annotations

from typing import Any

from specc.gate.lint.movement import MOVES
from specc.gate.lint.rules import ELEMENTWISE
from specc.gate.lint.shapes import Facts, operator_name

COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Trilu")
VALUELESS = ("Shape", "Size")
PASSIVE = {*ELEMENTWISE, *MOVES, "Transpose", "Unsqueeze", "Squeeze", "Expand", "Softmax"}


def is_spread(node: Any, facts: Facts) -> bool:
    """Whether a value of some rows meets, in one node, values that have a row axis."""
    lost = {name for name in node.input if name in facts.lost}
    return bool(lost) and any(facts.row_syms(name) for name in node.input if name not in lost)


def learn_taints(node: Any, facts: Facts, blamed: bool) -> None:
    """Passes the marks of the inputs on to the outputs; blamed: this node has a finding, so its output is not
    reported again.
    """
    if operator_name(node) in VALUELESS:
        return
    outs = [name for name in node.output if name]
    if any(name in facts.data for name in node.input):
        facts.data.update(outs)
    if any(name in facts.row_selectors for name in node.input) and len(node.input) < 3:
        facts.row_selectors.update(
            outs if node.op_type in ("Cast", "Identity", "Unsqueeze", "Squeeze") else ()
        )
    learn_lost(node, facts, outs, blamed)
    learn_masks(node, facts, outs)


def learn_lost(node: Any, facts: Facts, outs: list[str], blamed: bool) -> None:
    """A value of rows whose output has no axis of rows any more, or one made of such a value."""
    from_rows = any(facts.row_syms(name) for name in node.input)
    inherits = any(name in facts.lost for name in node.input)
    for name in outs:
        shape = facts.shapes.get(name)
        gone = from_rows and shape is not None and not any(d.rows or d.context for d in shape)
        if not blamed and (inherits or gone):
            facts.lost.add(name)


def learn_masks(node: Any, facts: Facts, outs: list[str]) -> None:
    """A comparison of places (not of data) that has an axis of rows, and everything that such a value is put
    into.
    """
    compared = operator_name(node) in COMPARISONS and (
        node.op_type == "Trilu" or not facts.data.intersection(node.input)
    )
    rows = facts.fixed or any(facts.row_syms(name) for name in outs)
    inherits = operator_name(node) in PASSIVE and any(name in facts.masks for name in node.input)
    if (compared and (rows or node.op_type == "Trilu")) or inherits:
        facts.masks.update(outs)
    softmax = node.op_type in ("Softmax",) and node.input[0] in facts.masks
    keeps = operator_name(node) in PASSIVE and any(name in facts.weights for name in node.input)
    if softmax or keeps:
        facts.weights.update(outs)
