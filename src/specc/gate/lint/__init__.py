"""Lint: does any row of one call of this graph depend on another row of the same call?

A walk over the graph (walk.py) that follows symbolic shapes (shapes.py, rules.py, facts.py) and asks over which axes
each node mixes values (judges.py). It judges axes, not names: the per-tensor scale of DynamicQuantizeLinear and the
same scale spelled as ReduceMax, Div, Round, Clip are one finding. Operators are keyed by domain and name. It needs the
`onnx` package, so it runs where bundles are built and is kept in them.
"""
from specc.gate.lint.findings import Finding
from specc.gate.lint.walk import lint_file, lint_model

__all__ = ["Finding", "lint_file", "lint_model"]
