"""The gate: lint, certificate, law, equality, speed. It judges the shipped runtime on this device and never repairs."""

from specc.gate.checks import Check
from specc.gate.run import GateResult, run_gate

__all__ = ["Check", "GateResult", "run_gate"]
