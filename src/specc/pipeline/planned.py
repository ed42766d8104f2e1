"""What every stage of a build works from: the plan, and the checkpoints that it was made from."""

from __future__ import annotations

from dataclasses import dataclass

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.plan import Plan
from specc.pipeline.checkpoint import CheckpointRecord
from specc.pipeline.identity import Identity


@dataclass(frozen=True)
class Planned:
    """A plan and the checkpoints behind it."""

    plan: Plan
    target: CheckpointRecord
    draft: CheckpointRecord | None
    """Of a draft model; None where another kind drafts."""

    @property
    def identities(self) -> list[Identity]:
        """Those of the checkpoints, the target's first."""
        return [record.identity for record in (self.target, self.draft) if record is not None]

    def checkpoint_of(self, engine: EnginePlan) -> CheckpointRecord:
        """The checkpoint that an engine is exported from: an early exit is a part of the target."""
        return self.draft if engine.name == "draft" and self.draft is not None else self.target
