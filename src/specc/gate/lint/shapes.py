"""Symbolic shapes of an ONNX graph, just enough to know which axes of a value hold the rows of the call.

A dimension is a product of a number and symbols: "R" stands for rows, "B" for sequences of the call, "C" for
a context that rows were written into. Rows that stand elsewhere than they came, picked, cut or shifted, are
"R:" and the name of what moved them, so that they are told apart from rows in their place. A value whose
shape cannot be told is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS, BATCH, CONTEXT = "R", "B", "C"
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Dim:
    """coef * product of syms; -1 alone stands for "the rest" in a Reshape target."""

    coef: int = 1
    syms: tuple[str, ...] = ()
    inside: int = field(default=1, compare=False)
    """Elements of this axis between two neighbouring rows."""

    @property
    def rows(self) -> bool:
        return any(is_row(sym) for sym in self.syms)

    @property
    def batch(self) -> bool:
        return BATCH in self.syms

    @property
    def context(self) -> bool:
        return CONTEXT in self.syms


def is_row(sym: str) -> bool:
    """Whether a symbol counts rows, in their place or moved."""
    return sym == ROWS or sym.startswith(f"{ROWS}:")


def name_moved_rows(node: Any) -> str:
    """The symbol of rows that this node moved."""
    return f"{ROWS}:{node.name or (node.output[0] if node.output else node.op_type)}"


Shape = tuple[Dim, ...]
Shapes = dict[str, "Shape | None"]
Ints = dict[str, "Shape"]
"""Small integer tensors whose values are known, flattened."""
Rule = Callable[[Any, list["Shape | None"], "Facts"], "list[Shape | None]"]


@dataclass
class Facts:
    """What is known of a graph's values, filled node by node."""

    shapes: Shapes
    ints: Ints
    declared: Shapes
    """Of `value_info` and of the outputs, for operators without a rule."""
    opset: int = 20
    fixed: bool = False
    """The rows of a call are a number in the file, not a symbol."""
    lost: set[str] = field(default_factory=set)
    """Values of some rows that no axis tells apart any more."""
    data: set[str] = field(default_factory=set)
    """Values that come from ids, embeddings or caches."""
    masks: set[str] = field(default_factory=set)
    """Values that went through a comparison of positions."""
    weights: set[str] = field(default_factory=set)
    """Attention weights: a softmax over masked scores."""
    row_selectors: set[str] = field(default_factory=set)
    """Indices of the rows whose logits are wanted."""

    def row_syms(self, name: str) -> set[str]:
        """Row symbols of a value."""
        return {sym for dim in self.shapes.get(name) or () for sym in dim.syms if is_row(sym)}


def product(dims: Sequence[Dim]) -> Dim:
    return Dim(math.prod(d.coef for d in dims), tuple(sorted(s for d in dims for s in d.syms)))


def quotient(whole: Dim, part: Dim) -> Dim | None:
    """whole / part, None where it does not come out even."""
    left, right = Counter(whole.syms), Counter(part.syms)
    if part.coef == 0 or whole.coef % part.coef or right - left:
        return None
    return Dim(whole.coef // part.coef, tuple(sorted((left - right).elements())))


def total(dims: Sequence[Dim]) -> Dim:
    """Size of a concatenation; rows beside anything else make a context."""
    if len(dims) == 1:
        return dims[0]
    if all(not d.syms for d in dims):
        return Dim(sum(d.coef for d in dims))
    if any(d.context or d.rows for d in dims):
        return Dim(sum(d.coef for d in dims), (CONTEXT,))
    return Dim(1, ("+".join(str(d) for d in dims),))


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Numpy broadcasting; of two different sizes the one that is not 1 wins, rows before others."""
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in known), default=0)
    padded = [(Dim(),) * (rank - len(shape)) + shape for shape in known]
    return tuple(max(column, key=_weight) for column in zip(*padded, strict=True))


def _weight(d: Dim) -> tuple[bool, bool, bool, int]:
    return d.rows, d.context, bool(d.syms), d.coef


def read_attribute(node: Any, name: str, default: Any) -> Any:
    """Value of an attribute of a node."""
    from onnx import helper

    found = [a for a in node.attribute if a.name == name]
    return helper.get_attribute_value(found[0]) if found else default


def operator_name(node: Any) -> str:
    """Name of a node's operator with its domain, since names collide: "MatMul",
    "com.microsoft::Attention".
    """
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def read_axes(node: Any, facts: Facts, rank: int) -> list[int] | None:
    """Axes of a reduction, from attribute or input 1, [] if it reduces nothing; None where they are
    computed.
    """
    axes = read_attribute(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1]:
        if node.input[1] not in facts.ints:
            return None
        axes = [d.coef for d in facts.ints[node.input[1]]]
    if not axes:
        return [] if read_attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes] if rank else []


def inner(shape: Shape, axis: int) -> Dim:
    """Elements between two neighbours along an axis."""
    return product(shape[axis + 1 :])
