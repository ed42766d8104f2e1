"""The walk over a graph: each node is judged by the shapes known so far, then its outputs are learnt."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specc.errors import EnvironmentFault, InputError
from specc.gate.lint.facts import facts_of, learn
from specc.gate.lint.findings import Finding, finding
from specc.gate.lint.judges import JUDGES, RANDOM
from specc.gate.lint.rules import RULES
from specc.gate.lint.shapes import Facts, attribute, key


def lint_file(path: str | Path) -> list[Finding]:
    """Findings for an ONNX file; weights are not read. InputError where there is no such file or it is no ONNX."""
    onnx = _onnx()
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise InputError(f"there is no ONNX file {path}; give the path of one") from None
    except Exception as error:  # the parser has no common exception class
        raise InputError(f"{path} cannot be read as ONNX: {type(error).__name__}; export it again") from None
    return lint_model(model)


def lint_model(model: Any) -> list[Finding]:
    """Findings for a loaded ModelProto; local functions are inlined first."""
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    graph = model.graph
    facts = facts_of(graph)
    findings: list[Finding] = []
    for node in graph.node:
        findings += judge(node, facts)
        learn(node, facts)
    return findings + list(_half_types(graph))


def judge(node: Any, facts: Facts) -> Iterator[Finding]:
    """Findings of one node, before its outputs are known."""
    ins = [facts.shapes.get(name) for name in node.input]
    reading = [shape for shape in ins if shape is not None and any(d.rows or d.context for d in shape)]
    unknown = any(name and facts.shapes.get(name) is None for name in node.input)
    if not reading and not unknown and node.op_type not in RANDOM:
        return
    if key(node) in JUDGES:
        yield from JUDGES[key(node)](node, ins, facts)
    elif key(node) not in RULES and key(node) != "Constant":
        why = f"the operator {key(node)} is not known to keep rows apart"
        yield finding(node, why, "express it in known operators")


def _half_types(graph: Any) -> Iterator[Finding]:
    """bfloat16 values, which the CPU engine has no kernels for: they would fail or be run in another type."""
    from onnx import TensorProto

    half = {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.BFLOAT16}
    half |= {value.name for value in graph.input if value.type.tensor_type.elem_type == TensorProto.BFLOAT16}
    for node in graph.node:
        cast = node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.BFLOAT16
        if cast or half.intersection(node.input):
            yield finding(node, "bfloat16 has no kernel on this CPU engine", "export this part in float32")


def _onnx() -> Any:
    """The onnx package, which only building needs."""
    try:
        import onnx
    except ImportError:
        raise EnvironmentFault("the lint needs the onnx package; install specc[build]") from None
    return onnx
