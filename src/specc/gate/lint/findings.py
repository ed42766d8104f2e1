"""A finding of the lint: a node, why its rows may not be verified together, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCALE_FIX = "use a static scale, or one scale for each row (reduce over the last axis only)"
MIX_FIX = "reduce over feature axes only, so that a row never reads another row of the call"


@dataclass(frozen=True)
class Finding:
    """One reason why rows may not be verified together."""

    node: str
    op: str
    why: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """For the manifest."""
        return asdict(self)


def make_finding(node: Any, why: str, fix: str) -> Finding:
    """A finding about an ONNX node."""
    return Finding(node.name or (node.output[0] if node.output else ""), node.op_type, why, fix)
