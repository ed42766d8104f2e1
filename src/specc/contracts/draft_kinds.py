"""The kinds of drafters: one record each, and the drafter that a recipe asks for.

A new kind is a record in KINDS and one row of the drafter table of the C runtime; a new recipe key is also a
field of `Draft` and a row of READERS. Code of higher layers that a kind needs is named by its dotted name and
imported when it is called, so that this module imports neither torch nor those layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from specc.contracts.scheme import DEFAULT_SCHEME, Scheme, read_scheme
from specc.yaml_table import Table

MOST_STAGES = 8
DRAFT_TABLE, DRAFT_IDS = "draft_table.bin", "draft_ids.bin"
"""Files of a bundle: the static n-gram table, the target id of each column of a draft head."""
EVERY_DIALECT = ("specc-cpu", "ort", "onnx24")


@dataclass(frozen=True)
class Draft:
    """A recipe's drafter; fields that are keys of other kinds keep their defaults."""

    kind: str = "ngram"
    checkpoint: str | None = None
    revision: str | None = None
    layers: int | None = None
    norm: str | None = None
    """File of the norm that was trained for an early exit; None: the target's own norm."""
    min_match: int = 2
    max_match: int = 4
    scheme: Scheme | None = None
    file: str | None = None
    """File of the static n-gram table."""
    min_count: int = 2
    """Least occurrences of a continuation in the n-gram table."""
    head: str | None = None
    """File of a trained draft head."""
    stop: float = 0.0
    """A draft head proposes no token where its largest probability is smaller."""
    stages: tuple[Draft, ...] = ()
    """Of a chain, in the order in which they are asked."""
    small: Draft | None = None
    """What drafts for a draft model, which is then the middle model of a hierarchy; recipe key `draft`."""

    @property
    def parts(self) -> tuple[Draft, ...]:
        """The stages, or the draft alone and what drafts for it."""
        return (*(self.stages or (self,)), *(() if self.small is None else self.small.parts))

    @property
    def engine_part(self) -> Draft | None:
        """The part that has an engine of its own."""
        return next((part for part in self.parts if KINDS[part.kind].weights), None)

    @property
    def table_part(self) -> Draft | None:
        """The part that reads a static n-gram table."""
        return next((part for part in self.parts if KINDS[part.kind].reads_table), None)


@dataclass(frozen=True)
class Training:
    """How `specc distill` makes a drafter of a kind."""

    name: str
    """Value of its option --kind."""
    options: tuple[str, ...] = ()
    """Its options that not every kind has a use for."""
    head: str = ""
    """Dotted name of `start(target, spec, ids, settings)`: a fresh draft head in training."""


@dataclass(frozen=True)
class DraftKind:
    """Everything that one kind of drafter is, for recipe, plan, manifest, build and distillation."""

    name: str
    keys: tuple[str, ...] = ()
    """Recipe keys beside `kind`."""
    is_drafter: bool = True
    """False for kinds that propose nothing themselves: no draft, a chain of drafters, a choice to be made."""
    weights: Literal["", "checkpoint", "target", "head"] = ""
    """Where the weights of its engine are from: a checkpoint of its own, the target's first layers, a head
    file; "" for a drafter without an engine."""
    reads_table: bool = False
    """Whether it reads a static n-gram table."""
    is_parallel: bool = False
    """Whether one call of its engine gives a row for every proposed token, without a KV cache."""
    head_numbers: tuple[str, ...] = ()
    """Integers that the metadata of its head file hold; all but `k` are fields of ModelSpec."""
    dialects: tuple[str, ...] = EVERY_DIALECT
    """Dialects of the target that it drafts for."""
    manifest_keys: tuple[str, ...] = ()
    """Fields of Draft that the manifest repeats."""
    manifest_constants: Mapping[str, str] = field(default_factory=dict)
    """What the manifest says of every drafter of the kind."""
    offline: str = ""
    """Dotted name of `open(planned, part, most)`: sample -> what it proposes along the target's answer, as
    floats.
    """
    build_head: str = ""
    """Dotted name of `build(file, tensors, target)`: the module of its head file beside the float target."""
    trace_head: str = ""
    """Dotted name of `trace(module, plan)`: the graph of that module."""
    training: Training | None = None
    """None: `specc distill` does not make it."""


KINDS: Mapping[str, DraftKind] = {
    kind.name: kind
    for kind in (
        DraftKind(
            "ngram",
            keys=("min_match", "max_match"),
            manifest_keys=("min_match", "max_match"),
            offline="specc.pipeline.tuning.open_lookup",
        ),
        DraftKind(
            "model",
            keys=("checkpoint", "revision", "scheme", "draft"),
            weights="checkpoint",
            offline="specc.pipeline.tuning.open_model",
            training=Training("small", ("layers", "epochs")),
        ),
        DraftKind(
            "early-exit",
            keys=("layers", "norm"),
            weights="target",
            head_numbers=("layers",),
            offline="specc.pipeline.tuning.open_early_exit",
            training=Training("early-exit", ("layers", "epochs")),
        ),
        DraftKind("none", is_drafter=False),
        DraftKind(
            "table",
            keys=("file", "min_count"),
            reads_table=True,
            manifest_keys=("min_count",),
            manifest_constants={"file": DRAFT_TABLE},
            offline="specc.pipeline.tuning.open_table",
            training=Training("table"),
        ),
        DraftKind(
            "feature",
            keys=("head", "stop", "scheme"),
            weights="head",
            head_numbers=("layers", "heads", "kv_heads", "head_dim", "intermediate"),
            dialects=("specc-cpu", "ort"),
            manifest_keys=("stop",),
            manifest_constants={"engine": "draft"},
            offline="specc.pipeline.tuning.open_feature",
            build_head="specc.exporter.draft_heads.build.build_feature",
            trace_head="specc.exporter.draft_heads.trace.trace_feature",
            training=Training("feature", ("ids", "epochs"), "specc.distill.heads.feature_training"),
        ),
        DraftKind(
            "medusa",
            keys=("head", "stop", "scheme"),
            weights="head",
            is_parallel=True,
            head_numbers=("k",),
            dialects=("specc-cpu", "ort"),
            manifest_keys=("stop",),
            manifest_constants={"engine": "draft"},
            offline="specc.pipeline.tuning.open_medusa",
            build_head="specc.exporter.draft_heads.build.build_medusa",
            trace_head="specc.exporter.draft_heads.trace.trace_medusa",
            training=Training("medusa", ("ids", "epochs"), "specc.distill.heads.medusa_training"),
        ),
        DraftKind("staged", keys=("stages",), is_drafter=False),
        DraftKind("auto", keys=("stages",), is_drafter=False),
    )
}
TRAINED_WEIGHTS = ("head", "checkpoint", "target", "")
TRAININGS: Mapping[str, Training] = {
    kind.training.name: kind.training
    for kind in sorted(KINDS.values(), key=lambda kind: TRAINED_WEIGHTS.index(kind.weights))
    if kind.training is not None
}
"""Value of `specc distill --kind` -> how it is made; draft heads first."""
AUTO_DRAFT = Draft("auto", stages=(Draft("ngram"),))
"""`draft: auto` without stages to choose from."""


def import_function(name: str) -> Callable[..., Any]:
    """The function with that dotted name."""
    module, _, function = name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def list_modules(*fields: str) -> tuple[str, ...]:
    """Modules of the functions that all records name in these fields: code that a cache key must cover."""
    names = [getattr(kind, field) for kind in KINDS.values() for field in fields]
    return tuple(sorted({name.rpartition(".")[0] for name in names if name}))


def read_draft(table: Table) -> Draft:
    """A recipe's drafter. Raises RecipeError for a key that belongs to another kind."""
    table.check_keys("kind", *{key for kind in KINDS.values() for key in kind.keys})
    kind = KINDS[table.get_choice("kind", tuple(KINDS), "ngram")]
    table.check_keys("kind", *kind.keys, owner=f"a draft of kind {kind.name}")
    if kind.name == AUTO_DRAFT.kind and "stages" not in table:
        return AUTO_DRAFT
    values = {key: READERS[key](table) for key in kind.keys}
    if "draft" in values:
        values["small"] = values.pop("draft")
    return Draft(kind.name, **values)


def read_max_match(table: Table) -> int:
    """The longest match of a lookup: at least its shortest."""
    low: int = READERS["min_match"](table)
    return table.get_integer("max_match", max(4, low), low, 16, low_is="min_match")


def read_small(table: Table) -> Draft | None:
    """What drafts for a draft model: without an engine, since a bundle has one draft engine."""
    if "draft" not in table:
        return None
    small = read_draft(table.get_table("draft"))
    kinds = [KINDS[part.kind] for part in small.parts]
    is_choice = small.kind == AUTO_DRAFT.kind
    if is_choice or any(kind.weights or not kind.is_drafter for kind in kinds):
        found = f"the draft model's own draft is {', '.join(kind.name for kind in kinds)}"
        raise table.make_error("draft", found, "allowed are ngram, table and staged of both")
    return small


def read_stages(table: Table) -> tuple[Draft, ...]:
    """A chain of drafters; one engine and one table at most, and no chain within."""
    stages = tuple(map(read_draft, table.get_tables("stages")))
    kinds = [KINDS[stage.kind] for stage in stages]
    found = f"stages are {', '.join(kind.name for kind in kinds)}"
    if any(stage.small for stage in stages):
        advice = "such a draft model stands alone, not in a chain"
        raise table.make_error("stages", "a stage has a draft of its own", advice)
    if len(stages) > MOST_STAGES or not all(kind.is_drafter for kind in kinds):
        others = ", ".join(
            sorted((kind.name for kind in KINDS.values() if not kind.is_drafter), reverse=True)
        )
        raise table.make_error(
            "stages", found, f"allowed are 1 to {MOST_STAGES} drafters, none of them {others}"
        )
    for owners, what in (
        ([k.weights for k in kinds], "an engine"),
        ([k.reads_table for k in kinds], "a table"),
    ):
        if sum(map(bool, owners)) > 1:
            raise table.make_error("stages", found, f"one of them may have {what}")
    return stages


READERS: Mapping[str, Callable[[Table], Any]] = {
    "checkpoint": lambda table: table.get_text("checkpoint", None),
    "revision": lambda table: table.get_optional_text("revision"),
    "layers": lambda table: table.get_integer("layers", None, 1, 1000) if "layers" in table else None,
    "norm": lambda table: table.get_optional_text("norm"),
    "min_match": lambda table: table.get_integer("min_match", Draft.min_match, 1, 16),
    "max_match": read_max_match,
    "scheme": lambda table: read_scheme(table, DEFAULT_SCHEME) if "scheme" in table else None,
    "file": lambda table: table.get_text("file", None),
    "min_count": lambda table: table.get_integer("min_count", Draft.min_count, 1, 65535),
    "head": lambda table: table.get_text("head", None),
    "stop": lambda table: table.get_number("stop", Draft.stop, 0.0, 0.99),
    "stages": read_stages,
    "draft": read_small,
}
"""Recipe key -> its type, range and default."""
