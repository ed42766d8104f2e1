"""The gate's report beside its certificate: all numbers as JSON, and a page that an auditor can follow offline."""

from specc.gate.report.files import names_beside, write
from specc.gate.report.numbers import Asked, compose

__all__ = ["Asked", "compose", "names_beside", "write"]
