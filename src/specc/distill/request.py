"""What a user asks `specc distill` for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specc.calib.shards import DataSettings
from specc.contracts.draft_kinds import TRAININGS
from specc.errors import InputError


@dataclass(frozen=True)
class DistillRequest:
    """One distillation; the defaults are those of the command line."""

    recipe: Path
    kind: str = "feature"
    out: Path | None = None
    """Folder to write; None for one named after the recipe."""
    data: Path | None = None
    """Folder of the target's answers; None for one in the cache."""
    prompts: Path | None = None
    """File of the user's own prompts; None for the built-in ones."""
    tokens: int = DataSettings.tokens
    """Answer tokens to train on."""
    epochs: int = 5
    leave_out: str | None = None
    """A prompt class that nothing is trained on, to see what a draft does for what it never saw."""
    ids: int = 2048
    """Size of a head's draft vocabulary."""
    seed: int = 2026
    table: bool = True
    """Whether an n-gram table is written too."""
    min_count: int = 2
    """Least occurrences of a table's entry."""
    min_share: float = 0.5
    """Least share of a context's occurrences that its entry followed."""
    table_bytes: int = 6_000_000
    """Largest table file."""
    layers: int = 0
    """Of a small model (0: 2) or before an early exit (0: half of the target's)."""

    def check(self) -> None:
        """Raise InputError for an unknown kind."""
        if self.kind not in TRAININGS:
            raise InputError(f"the kind is {self.kind!r}; allowed are {', '.join(TRAININGS)}")
