"""The walk over a graph and the graphs within it.

Each node is judged by the facts about its inputs; then the facts about its outputs are derived.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault, InputError
from specc.gate.lint import bodies, taints
from specc.gate.lint.engines import judge_engine
from specc.gate.lint.facts import collect_facts, learn
from specc.gate.lint.findings import MIX_FIX, Finding, make_finding
from specc.gate.lint.judges import JUDGES, RANDOM
from specc.gate.lint.rules import RULES
from specc.gate.lint.shapes import Facts, operator_name


def lint_file(path: str | Path, engine: str = "auto") -> list[Finding]:
    """Findings for an ONNX file; weights are not read. InputError where there is no such file or it is no
    ONNX.

    engine: "ort" (ONNX Runtime's CPU), "tensorrt", or "auto" for the one that the operators are made for.
    """
    onnx = _onnx()
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"there is no ONNX file {path}; give the path of one") from None
    except Exception as error:  # the parser has no common exception class
        raise InputError(f"{path} cannot be read as ONNX: {type(error).__name__}; export it again") from None
    if not model.graph.node:
        raise InputError(f"{path} cannot be read as ONNX: it holds no operators; export it again")
    return lint_model(model, engine)


def lint_model(model: Any, engine: str = "auto") -> list[Finding]:
    """Findings for a loaded ModelProto, in the graph's order; local functions are inlined first."""
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 20)
    facts = collect_facts(model.graph, opset)
    findings = [*walk(model.graph, facts), *judge_outputs(model.graph, facts)]
    blamed = {(f.node, f.op) for f in findings}
    findings += [f for f in judge_engine(model, engine) if (f.node, f.op) not in blamed]
    return list(dict.fromkeys(findings))


def walk(graph: Any, facts: Facts) -> Iterator[Finding]:
    """Findings of a graph's nodes and of the graphs within them."""
    for node in graph.node:
        findings = list(judge_node(node, facts))
        if any(read_attribute.HasField("g") for read_attribute in node.attribute):
            findings += bodies.judge_body(node, facts, walk)
        else:
            learn(node, facts)
        taints.learn_taints(node, facts, blamed=bool(findings))
        yield from findings


def judge_node(node: Any, facts: Facts) -> Iterator[Finding]:
    """Findings of one node, before its outputs are known."""
    ins = [facts.shapes.get(name) for name in node.input]
    reading = [
        shape for shape in ins if shape is not None and any(d.rows or d.context or d.batch for d in shape)
    ]
    unknown = any(name and facts.shapes.get(name) is None for name in node.input)
    if not reading and not unknown and node.op_type not in RANDOM:
        return
    if operator_name(node) in JUDGES:
        yield from JUDGES[operator_name(node)](node, ins, facts)
    elif operator_name(node) not in RULES and operator_name(node) not in ("Constant", *bodies.OPS):
        why = f"the operator {operator_name(node)} is not known to keep rows apart"
        yield make_finding(node, why, "express it in known operators")
    if taints.is_spread(node, facts):
        yield make_finding(node, "what was taken from some rows of the call reaches its other rows", MIX_FIX)


def judge_outputs(graph: Any, facts: Facts) -> Iterator[Finding]:
    """Rows of the first output, the logits, must still stand where they came in."""
    first = graph.output[0].name if graph.output else ""
    shape = facts.shapes.get(first) or ()
    if len(shape) < 4 and any(d.context for d in shape):
        producer = next((node for node in graph.node if first in node.output), None)
        if producer is not None:
            yield make_finding(
                producer,
                "rows of the output are not the rows of the call: they were joined or shifted",
                MIX_FIX,
            )


def _onnx() -> Any:
    """The onnx package. Raises EnvironmentFault where it is not installed: only building needs it."""
    try:
        import onnx
    except ImportError:
        raise EnvironmentFault("the lint needs the onnx package; install specc[build]") from None
    return onnx
