"""The main job: a recipe becomes a bundle. Every stage is one file; what did not change comes from the cache.

    recipe -> plan -> choice -> tokenizer -> ranges -> export -> quality -> lint -> engines -> pack -> bundle

Each stage takes the plan and what the stages before have written, and returns one frozen result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from specc import targets
from specc.atomic import io_errors
from specc.contracts.bundle.contents import NO_END
from specc.contracts.bundle.manifest import Bundle
from specc.contracts.bundle.writer import check_destination
from specc.contracts.plan import Plan
from specc.contracts.precision import find_further_dialects
from specc.contracts.recipe import Recipe, load_recipe
from specc.pipeline import cache
from specc.pipeline.choice import choose_draft
from specc.pipeline.clock import Clock, Reporter, StageTime
from specc.pipeline.engines import finish_engines
from specc.pipeline.export import export_graphs
from specc.pipeline.lint import lint_target
from specc.pipeline.pack import Contents, pack_bundle, reasons_of
from specc.pipeline.plan import plan_build
from specc.pipeline.quality import judge_quality
from specc.pipeline.ranges import measure_ranges
from specc.pipeline.tokenizer import write_tokenizer


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    bundle: Bundle
    plan: Plan
    written: bool
    """False: a bundle of the same digest was there and stays as it is."""
    times: tuple[StageTime, ...]
    lint: tuple[dict[str, str], ...]
    quality: Mapping[str, dict[str, Any]]
    reasons: tuple[str, ...]
    """Why speculation is off on any device; empty where a certificate decides."""
    also: tuple[Bundle, ...] = ()
    """The same recipe in further dialects."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know although the build went well."""
        return () if self.bundle.manifest["tokenizer"]["eos"] else (NO_END,)

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `specc build`."""
        return {
            "bundle": str(self.bundle.folder),
            "digest": self.bundle.digest,
            "written": self.written,
            "also": [str(bundle.folder) for bundle in self.also],
            "stages": [asdict(time) for time in self.times],
            "files": [asdict(file) for file in self.bundle.files],
            "bytes": sum(file.bytes for file in self.bundle.files),
            "plan": self.bundle.manifest["plan"],
            "speculation": {"enabled": None if not self.reasons else False, "reasons": list(self.reasons)},
            "lint": list(self.lint),
            "notes": list(self.notes),
            "cache": str(cache.root()),
        }


def build(
    recipe: str | Path,
    hardware: str | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    sensitivity: bool = False,
) -> Built:
    """Build the bundle of a recipe file into the folder `out` (default: one of the recipe's name, here).

    hardware: a hardware target in place of the recipe's; sensitivity: measure also what quantizing each group
    of layers alone costs, and keep it with the quality. A target may ask for the same recipe in another
    dialect too: that bundle stands beside the first, as `OUT-ort`. Raises InputError, RecipeError, JudgeError
    (the quality misses a limit), EnvironmentFault; nothing but the cache is left behind then.

    >>> from specc import build
    >>> built = build("recipe.yaml", out="bundle")
    >>> built.bundle.folder.name, built.reasons
    ('bundle', ('uncertified-device',))
    """
    loaded = load_recipe(Path(recipe))
    place = Path(out) if out else Path(loaded.name)
    dialects = find_further_dialects(loaded, targets.load(hardware or loaded.hardware))
    further = {dialect: place.with_name(f"{place.name}-{dialect}") for dialect in dialects}
    for folder in (place, *further.values()):
        check_destination(folder)
    clock = Clock(reporter)
    built = build_bundle(loaded, hardware, place, clock, sensitivity)
    also = [
        build_bundle(replace(loaded, dialect=dialect), hardware, folder, clock).bundle
        for dialect, folder in further.items()
    ]
    return replace(built, times=tuple(clock.times), also=tuple(also))


def build_bundle(
    recipe: Recipe, hardware: str | None, place: Path, clock: Clock, sensitivity: bool = False
) -> Built:
    """One bundle in one dialect: the stages in their order."""
    with io_errors(f"building {recipe.name}"):
        planned = plan_build(recipe, hardware, clock)
        planned = choose_draft(planned, clock)
        tokenizer = write_tokenizer(planned, clock)
        ranges = measure_ranges(planned, tokenizer, clock)
        graphs = export_graphs(planned, ranges, clock)
        quality = judge_quality(planned, graphs, sensitivity, clock)
        lint = lint_target(planned, graphs["target"], clock)
        engines = finish_engines(planned, graphs, clock)
        packed = pack_bundle(planned, Contents(tokenizer, engines, quality, lint), place, clock)
    reasons = reasons_of(packed.bundle, lint)
    return Built(packed.bundle, planned.plan, packed.written, tuple(clock.times), lint, quality, reasons)
