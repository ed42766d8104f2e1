"""Operators that move values about: shapes that remember where rows went, and what they mix.

Rows keep their symbol while row i stays at place i of its axis: a prefix does, a shift, a pick or a scramble
does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specc.gate.lint.findings import MIX_FIX, Finding, make_finding
from specc.gate.lint.shapes import (
    BATCH,
    CONTEXT,
    Dim,
    Facts,
    Rule,
    Shape,
    broadcast,
    inner,
    is_row,
    name_moved_rows,
    product,
    quotient,
    read_attribute,
    total,
)


def infer_reshape(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """The target's shape; rows that do not stay one block of one axis count as scrambled."""
    shape, target = ins[0], facts.ints.get(node.input[1])
    if shape is None or target is None:
        return [None]
    source, shape = shape, tuple(Dim(d.coef) for d in shape) if facts.fixed else shape
    dims = [
        shape[i] if d == Dim(0) and i < len(shape) and not read_attribute(node, "allowzero", 0) else d
        for i, d in enumerate(target)
    ]
    if Dim(-1) in dims:
        rest = quotient(product(shape), product([d for d in dims if d != Dim(-1)]))
        if rest is None:
            return [None]
        dims[dims.index(Dim(-1))] = rest
    if facts.fixed:
        out = label_axes(source, tuple(Dim(d.coef) for d in dims))
        return [out if keeps_rows(source, out) else scramble(node, out)]
    placed = find_strides(source, tuple(dims))
    return [scramble(node, tuple(dims)) if placed is None else placed]


def find_strides(source: Shape, target: Shape) -> Shape | None:
    """The target with the stride of the rows in the axis that holds them; None where rows do not keep their
    stride.
    """
    dims = list(target)
    for i, d in enumerate(source):
        if not d.rows:
            continue
        stride = product([inner(source, i), Dim(d.inside)])
        rows = product([stride, Dim(1, tuple(sym for sym in d.syms if is_row(sym)))])
        for j, t in enumerate(target):
            start = inner(target, j)
            step = quotient(stride, start)
            if step is not None and not step.syms and quotient(product([start, t]), rows) is not None:
                dims[j] = Dim(t.coef, t.syms, step.coef)
                break
        else:
            return None
    return tuple(dims)


def label_axes(source: Shape, target: Shape) -> Shape:
    """Symbols of axes with numbers for sizes go to the axes of the target that hold a part of them; sequences
    are outermost, so that theirs goes to the first of these.
    """
    dims = list(target)
    for i, d in enumerate(source):
        low = inner(source, i).coef
        places = [
            j
            for j, t in enumerate(target)
            if max(low, inner(target, j).coef) < min(low * d.coef, inner(target, j).coef * t.coef)
        ]
        for sym in set(d.syms):
            for j in places[:1] if sym == BATCH else places:
                dims[j] = Dim(dims[j].coef, tuple(sorted((*dims[j].syms, sym))))
    return tuple(dims)


def keeps_rows(source: Shape, target: Shape) -> bool:
    """Whether each axis of rows lies as one block within one axis of the target."""
    return all(
        any(holds_axis(source, i, target, j) for j in range(len(target)))
        for i, d in enumerate(source)
        if d.rows
    )


def holds_axis(source: Shape, i: int, target: Shape, j: int) -> bool:
    """Whether axis i of the source, with its stride, lies within axis j of the target."""
    low, start = inner(source, i), inner(target, j)
    end = product([start, target[j]])
    return quotient(low, start) is not None and quotient(end, product([low, source[i]])) is not None


def scramble(node: Any, shape: Shape) -> Shape:
    """Every axis may hold any row."""
    return tuple(d if d == Dim() else Dim(d.coef, (*d.syms, name_moved_rows(node))) for d in shape)


def infer_gather(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    data, indices = ins[0], ins[1]
    if data is None or indices is None:
        return [None]
    axis = read_attribute(node, "axis", read_attribute(node, "gather_axis", 0)) % max(len(data), 1)
    return [data[:axis] + indices + data[axis + 1 :]]


def infer_gather_elements(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    return [ins[1]]


def infer_gather_nd(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """indices[:-1] and what is left of the data behind them."""
    data, indices = ins[0], ins[1]
    if data is None or indices is None or not indices or indices[-1].syms:
        return [None]
    return [indices[:-1] + data[read_attribute(node, "batch_dims", 0) + indices[-1].coef :]]


def judge_taken(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Rows taken by an index that is not the caller's choice of rows, nor a constant (that is a pick)."""
    data = ins[0]
    if data is None:
        yield make_finding(node, "values are taken from a place that cannot be traced", MIX_FIX)
        return
    axis = read_attribute(node, "axis", read_attribute(node, "gather_axis", 0)) % max(len(data), 1)
    axes = data if node.op_type == "GatherND" else data[axis : axis + 1]
    index = node.input[1]
    constant = index not in facts.data and not facts.row_syms(index)
    if any(d.rows for d in axes) and index not in facts.row_selectors and not constant:
        yield make_finding(node, "which row of the call is taken is computed", MIX_FIX)


def infer_concat(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    if any(shape is None for shape in ins):
        return [None]
    known = [shape for shape in ins if shape is not None]
    axis = read_attribute(node, "axis", 0) % max(len(known[0]), 1)
    column = broadcast([(*shape[:axis], Dim(), *shape[axis + 1 :]) for shape in known])
    assert column is not None
    return [(*column[:axis], total([shape[axis] for shape in known]), *column[axis + 1 :])]


def infer_slice(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """A prefix of the rows keeps them in place; anything else moves them."""
    shape = ins[0]
    if shape is None:
        return [None]
    starts, ends, axes, steps = read_slice(node, facts)
    dims = list(shape)
    if starts is None or ends is None:
        return [tuple(Dim(d.coef, (name_moved_rows(node),)) if d.rows else d for d in dims)]
    for n, (start, end) in enumerate(zip(starts, ends, strict=False)):
        axis = (axes[n].coef if axes else n) % len(shape)
        forward = not steps or steps[n] == Dim()
        dims[axis] = slice_axis(node, dims[axis], start, end, forward, facts.fixed)
    return [tuple(dims)]


def read_slice(node: Any, facts: Facts) -> list[Shape | None]:
    """Starts, ends, axes and steps, from inputs or (old files) attributes."""
    old = [read_attribute(node, name, None) for name in ("starts", "ends", "axes")]
    if old[0] is not None:
        return [*(None if values is None else tuple(Dim(v) for v in values) for values in old), None]
    names = [*node.input[1:5], "", "", "", ""][:4]
    return [facts.ints.get(name) for name in names]


def slice_axis(node: Any, dim: Dim, start: Dim, end: Dim, forward: bool, fixed: bool) -> Dim:
    """Size of one sliced axis; a symbolic one keeps its symbol, rows only where they stay in place."""
    size = max(0, len(range(*slice(start.coef, end.coef).indices(dim.coef))))
    if dim.rows:
        syms = dim.syms if start == Dim(0) and forward else (name_moved_rows(node),)
        return Dim(size, syms) if fixed else Dim(dim.coef, syms)
    if dim.syms or start.syms or end.syms or not forward:
        return dim
    return Dim(size)


def infer_split(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape = ins[0]
    if shape is None:
        return [None] * len(node.output)
    axis, parts = read_attribute(node, "axis", 0) % len(shape), len(node.output)
    given = read_attribute(node, "split", None)
    sizes = (
        tuple(Dim(v) for v in given)
        if given
        else facts.ints.get(node.input[1])
        if len(node.input) > 1
        else None
    )
    even = Dim(shape[axis].coef // parts, shape[axis].syms)
    whole = [sizes[i] if sizes and i < len(sizes) else even for i in range(parts)]
    if shape[axis].rows:
        whole = [Dim(size.coef, (f"{name_moved_rows(node)}:{i}",)) for i, size in enumerate(whole)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in whole]


def infer_tile(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    shape, counts = ins[0], facts.ints.get(node.input[1])
    if shape is None or counts is None:
        return [None]
    return [
        tuple(
            d if n == Dim() else Dim(d.coef * n.coef, (name_moved_rows(node),)) if d.rows else product([d, n])
            for d, n in zip(shape, counts, strict=False)
        )
    ]


def infer_pad(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Rows behind padding have moved."""
    shape, pads = ins[0], facts.ints.get(node.input[1]) if len(node.input) > 1 else None
    if shape is None or pads is None or len(pads) != 2 * len(shape):
        return [None if shape is None else scramble(node, shape) if any(d.rows for d in shape) else None]
    before, after = pads[: len(shape)], pads[len(shape) :]
    return [tuple(pad_axis(node, d, a, b) for d, a, b in zip(shape, before, after, strict=True))]


def pad_axis(node: Any, dim: Dim, before: Dim, after: Dim) -> Dim:
    """Size of one padded axis."""
    if dim.rows:
        return dim if before == Dim(0) else Dim(dim.coef, (name_moved_rows(node),))
    return dim if before == after == Dim(0) else total([dim, before, after])


def infer_scatter(node: Any, ins: list[Shape | None], facts: Facts) -> list[Shape | None]:
    """Like the data; the axis that rows are written along becomes a context."""
    data, updates = ins[0], ins[2] if len(ins) > 2 else None
    if data is None:
        return [None]
    if updates is None or not any(d.rows for d in updates):
        return [data]
    axis = read_attribute(node, "axis", 0) % max(len(data), 1)
    if node.op_type == "ScatterND":
        indices = ins[1]
        axis = max(0, (indices[-1].coef if indices and not indices[-1].syms else 1) - 1)
    return [(*data[:axis], Dim(1, (CONTEXT,)), *data[axis + 1 :])]


def judge_written(node: Any, ins: list[Shape | None], facts: Facts) -> Iterator[Finding]:
    """Values written among the rows of the call where an index says."""
    if ins[0] is None or any(d.rows for d in ins[0]):
        yield make_finding(node, "values are written among the rows of the call by an index", MIX_FIX)


def is_one_place(shapes: Sequence[Shape | None]) -> bool:
    """Whether all values hold their rows at the same place: no axis has rows of two kinds, or rows and a
    context.
    """
    known = [shape for shape in shapes if shape is not None]
    rank = max((len(shape) for shape in known), default=0)
    for back in range(1, rank + 1):
        kinds = [
            {s for s in shape[-back].syms if is_row(s) or s == CONTEXT}
            for shape in known
            if len(shape) >= back
        ]
        if len({frozenset(kind) for kind in kinds if kind}) > 1:
            return False
    return True


MOVES: dict[str, Rule] = {
    "Reshape": infer_reshape,
    "Gather": infer_gather,
    "GatherElements": infer_gather_elements,
    "GatherND": infer_gather_nd,
    "Concat": infer_concat,
    "Slice": infer_slice,
    "Split": infer_split,
    "Tile": infer_tile,
    "Pad": infer_pad,
    "ScatterElements": infer_scatter,
    "ScatterND": infer_scatter,
}
JUDGES: dict[str, Any] = {
    **dict.fromkeys(["Gather", "GatherElements", "GatherND"], judge_taken),
    **dict.fromkeys(["ScatterElements", "ScatterND"], judge_written),
}
