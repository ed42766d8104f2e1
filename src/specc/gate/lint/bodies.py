"""Graphs within a node: branches of If, bodies of Loop and Scan. Values of the outer graph are seen
inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from specc.gate.lint.facts import add_weights
from specc.gate.lint.findings import MIX_FIX, Finding, make_finding
from specc.gate.lint.shapes import Dim, Facts, Shape, read_attribute

Walk = Callable[[Any, Facts], Iterable[Finding]]
OPS = ("If", "Loop", "Scan")


def judge_body(node: Any, facts: Facts, walk: Walk) -> list[Finding]:
    """Findings inside; learns the node's outputs."""
    if node.op_type not in OPS:
        return [
            make_finding(node, f"{node.op_type} runs a graph that is not known to keep rows apart", MIX_FIX)
        ]
    for a in node.attribute:
        if a.HasField("g"):
            add_weights(a.g, facts)
    return {"If": judge_branches, "Loop": judge_loop, "Scan": judge_scan}[node.op_type](node, facts, walk)


def judge_branches(node: Any, facts: Facts, walk: Walk) -> list[Finding]:
    """Both branches; a condition that comes from rows chooses for all of them."""
    graphs = [read_attribute(node, name, None) for name in ("then_branch", "else_branch")]
    findings = [f for graph in graphs if graph is not None for f in walk(graph, facts)]
    if facts.row_syms(node.input[0]) or node.input[0] in facts.lost:
        findings.append(make_finding(node, "which branch runs depends on rows of the call", MIX_FIX))
    results = [[value.name for value in graph.output] for graph in graphs if graph is not None]
    for name, *inner in zip(node.output, *results, strict=False):
        shapes = {facts.shapes.get(value) for value in inner}
        facts.shapes[name] = shapes.pop() if len(shapes) == 1 else None
        inherit(name, inner, facts)
    return findings


def judge_loop(node: Any, facts: Facts, walk: Walk) -> list[Finding]:
    """The body twice, so that what an iteration leaves behind is seen by the next."""
    body = read_attribute(node, "body", None)
    inside = [value.name for value in body.input]
    shapes: list[Shape | None] = [(), (), *(facts.shapes.get(name) for name in node.input[2:])]
    facts.shapes |= dict(zip(inside, shapes, strict=False))
    for outer, name in zip(node.input[2:], inside[2:], strict=False):
        inherit(name, [outer], facts)
    findings: list[Finding] = []
    carried, results = inside[2:], [value.name for value in body.output][1:]
    for _ in range(2):
        findings += walk(body, facts)
        for name, after in zip(carried, results, strict=False):
            facts.shapes[name] = (
                facts.shapes.get(name) if facts.shapes.get(name) == facts.shapes.get(after) else None
            )
            inherit(name, [after], facts)
    learn_loop(node, results, len(carried), facts)
    return findings


def learn_loop(node: Any, results: list[str], carried: int, facts: Facts) -> None:
    """Carried values as the body leaves them; collected ones with an axis of iterations."""
    for n, (name, inner) in enumerate(zip(node.output, results, strict=False)):
        shape = facts.shapes.get(inner)
        facts.shapes[name] = shape if n < carried or shape is None else (Dim(1, ("iterations",)), *shape)
        inherit(name, [inner], facts)


def judge_scan(node: Any, facts: Facts, walk: Walk) -> list[Finding]:
    """Over rows only without a state: a state carries one row to the next."""
    body, count = read_attribute(node, "body", None), read_attribute(node, "num_scan_inputs", 1)
    states = len(node.input) - count
    axes = read_attribute(node, "scan_input_axes", [0] * count)
    inside = [value.name for value in body.input]
    steps: set[Dim] = set()
    for n, (outer, name) in enumerate(zip(node.input, inside, strict=False)):
        shape = facts.shapes.get(outer)
        if n >= states and shape:
            axis = axes[n - states] % len(shape)
            steps.add(shape[axis])
            shape = (*shape[:axis], *shape[axis + 1 :])
        facts.shapes[name] = shape
        inherit(name, [outer], facts)
    findings = list(walk(body, facts))
    if states and any(d.rows or d.context for d in steps):
        findings.append(
            make_finding(
                node, "a scan over the rows of the call carries a state from one to the next", MIX_FIX
            )
        )
    step = max(steps, key=lambda d: d.rows, default=Dim(1, ("iterations",)))
    for n, (name, value) in enumerate(zip(node.output, body.output, strict=False)):
        shape = facts.shapes.get(value.name)
        facts.shapes[name] = shape if n < states or shape is None else (step, *shape)
        inherit(name, [value.name], facts)
    return findings


def inherit(name: str, sources: Iterable[str], facts: Facts) -> None:
    """All marks of the sources."""
    for marks in (facts.lost, facts.data, facts.masks, facts.weights):
        if any(source in marks for source in sources):
            marks.add(name)
