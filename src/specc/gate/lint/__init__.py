"""Lint: does any row of one call of this graph depend on another row of the same call?

A walk over the graph and the graphs within it (walk.py, bodies.py) that follows symbolic shapes (shapes.py,
rules.py, facts.py), where rows went (movement.py, einsum.py) and what shapes do not say (taints.py), and asks
of each node over which axes it mixes values (judges.py) and whether the engine runs what is written
(engines.py). It judges axes, not names: the per-tensor scale of DynamicQuantizeLinear and the same scale
spelled as ReduceMax, Div, Round, Clip are one finding. Operators are keyed by domain and name; one that is
not known to keep rows apart is a finding. It needs the `onnx` package, so it runs where bundles are built and
is kept in them.
"""

from specc.gate.lint.engines import ENGINES
from specc.gate.lint.findings import Finding
from specc.gate.lint.verdict import lint_report
from specc.gate.lint.walk import lint_file, lint_model

__all__ = ["ENGINES", "Finding", "lint_file", "lint_model", "lint_report"]
