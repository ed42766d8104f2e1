"""The gate's report beside its certificate: all numbers as JSON, and a page that an auditor can follow
offline.
"""

from specc.gate.report.files import report_paths, write_report
from specc.gate.report.numbers import GateRequest, compose_report

__all__ = ["GateRequest", "compose_report", "report_paths", "write_report"]
