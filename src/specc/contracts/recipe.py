"""A recipe: what to build, from which checkpoint, how to draft, what must hold. Frozen, checked, with line numbers."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from specc.contracts.yaml_table import Table, read_table

K_LIMIT = 16
LAYER_SCHEMES = ("fp32", "w8", "w4", "dynamic-int8", "fp16", "bf16", "int8", "fp8")
HEAD_SCHEMES = LAYER_SCHEMES
RANGES = ("percentile", "max", "mse", "entropy")
BLOCKS = (16, 32, 64, 128, 256)
DRAFT_KINDS = ("ngram", "model", "early-exit", "none", "table", "feature", "medusa", "staged", "auto")
HEAD_KINDS = ("feature", "medusa")
MOST_STAGES = 8
TEMPLATES = ("chat", "none")
DIALECTS = ("auto", "specc-cpu", "ort", "onnx24")
CACHES = ("auto", "fp8")
OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
LARGEST_CONTEXT = 1 << 20


@dataclass(frozen=True)
class Scheme:
    """How weights are stored: the decoder layers' and the output head's scheme, and the block that shares a scale."""

    layers: str
    head: str
    block: int = 32


@dataclass(frozen=True)
class Source:
    """A checkpoint: `package:NAME/FILE`, a local folder or GGUF file, or a hub id; revision for the hub only."""

    checkpoint: str
    revision: str | None = None


@dataclass(frozen=True)
class Draft:
    """The drafter and its parts; fields of other kinds keep their defaults."""

    kind: str = "ngram"
    checkpoint: str | None = None
    revision: str | None = None
    layers: int | None = None
    norm: str | None = None
    """The norm that was trained for an early exit; None: the target's own."""
    min_match: int = 2
    max_match: int = 4
    scheme: Scheme | None = None
    file: str | None = None
    """The n-gram table of a draft of kind table."""
    min_count: int = 2
    """How often the table must have seen a continuation."""
    head: str | None = None
    """The trained weights of a feature or medusa head."""
    stop: float = 0.0
    """A head proposes no token where its largest probability is smaller."""
    stages: tuple[Draft, ...] = ()
    """Of a draft of kind staged, in the order in which they are asked."""
    small: Draft | None = None
    """What drafts for a draft model: then that is the middle one of a hierarchy."""

    @property
    def parts(self) -> tuple[Draft, ...]:
        """The stages, or the draft alone and what drafts for it."""
        return (*(self.stages or (self,)), *(() if self.small is None else self.small.parts))

    @property
    def graph(self) -> Draft | None:
        """The part that has an engine of its own."""
        return next((part for part in self.parts if part.kind in ENGINE_KINDS), None)

    @property
    def table(self) -> Draft | None:
        """The part that reads an n-gram table."""
        return next((part for part in self.parts if part.kind == "table"), None)


ENGINE_KINDS = ("model", "early-exit", *HEAD_KINDS)
AUTO_DRAFT = Draft("auto", stages=(Draft("ngram"),))
"""`draft: auto` without stages to choose from."""


@dataclass(frozen=True)
class Sampling:
    """Defaults of `run`, named and ranged as in specc.h."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Ranges:
    """How static activation scales are found, for schemes that need them (int8, fp8)."""

    method: str = "percentile"
    migrate: float | None = None
    """Share of an input channel's size that moves into the weights (0 to 1); None: nothing moves."""


@dataclass(frozen=True)
class GateLimits:
    """What the judges hold the build to; None means: measured and reported, not limited."""

    kl_max: float | None = None
    top1_min: float | None = None
    perplexity_max: float | None = None
    allow_bounded: float | None = None


@dataclass(frozen=True)
class Recipe:
    """One recipe file, checked; `k` is None for auto, `threads` 0 for the hardware's own."""

    file: str
    text: str
    name: str
    target: Source
    draft: Draft
    k: int | None
    context: int
    scheme: Scheme
    calibration_text: str | None
    sampling: Sampling
    certify: tuple[str, ...]
    gate: GateLimits
    hardware: str
    dialect: str
    """Operators of the graphs; "auto": the hardware's own where they have the scheme."""
    threads: int
    prompt_template: str
    ranges: Ranges
    cache: str
    """Type of keys and values; "auto": that of the products beside them."""
    lines: dict[str, int] = field(compare=False, repr=False)
    measured_k: bool = False
    """`k: auto` is written: a build measures acceptance and chooses. Left out, K is 4."""

    @property
    def sha256(self) -> str:
        """Of the recipe's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def folder(self) -> Path:
        """Where relative paths of the recipe start."""
        return Path(self.file).resolve().parent

    def line(self, key: str) -> int:
        """Line of a dotted key; of its nearest table above where the key is left out."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, 1)


def load_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe. Raises InputError (no such file) or RecipeError (file:line: found; allowed)."""
    root = read_table(Path(path))
    root.only(
        "name",
        "target",
        "draft",
        "k",
        "context",
        "scheme",
        "calibration",
        "sampling",
        "certify",
        "gate",
        "hardware",
        "dialect",
        "threads",
        "prompt_template",
        "cache",
        "batch",
    )
    k = read_k(root)
    check_batch(root)
    return Recipe(
        file=root.file,
        text=root.source,
        name=read_name(root),
        target=read_source(root.table("target", required=True)),
        draft=AUTO_DRAFT if root.get("draft") == "auto" else read_draft(root.table("draft")),
        k=k,
        context=root.integer("context", None, (k or 1) + 2, LARGEST_CONTEXT, low_is="K + 2"),
        scheme=read_scheme(root, Scheme("w4", "w8")),
        calibration_text=read_calibration(root),
        sampling=read_sampling(root.table("sampling")),
        certify=root.choices("certify", OPTIONS, ("temperature", "top_p", "top_k", "min_p")),
        gate=read_gate(root.table("gate")),
        hardware=root.text("hardware", "cpu-x86"),
        dialect=root.choice("dialect", DIALECTS, "auto"),
        threads=root.integer("threads", 0, 0, 1024),
        prompt_template=root.choice("prompt_template", TEMPLATES, "chat"),
        ranges=read_ranges(root.table("calibration")),
        cache=root.choice("cache", CACHES, "auto"),
        lines=root.all_lines(),
        measured_k=root.get("k") == "auto",
    )


def check_batch(root: Table) -> None:
    """A call holds the rows of one sequence; several sequences are several sessions of one model."""
    batch = root.integer("batch", 1, 1, 1 << 16)
    if batch != 1:
        raise root.error(
            "batch", f"batch is {batch}", "allowed is 1 (a graph takes one sequence; open a session each)"
        )


def read_name(root: Table) -> str:
    """The bundle's name, which is also the default folder: letters, digits, dot, dash and underscore."""
    name = root.text("name", Path(root.file).stem)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise root.error(
            "name", f"name is {name!r}", "allowed are 1 to 100 letters, digits, '.', '-' and '_'"
        )
    return name


def read_k(root: Table) -> int | None:
    """K, or None for auto."""
    if root.get("k", "auto") == "auto":
        return None
    return root.integer("k", None, 1, K_LIMIT, otherwise="or 'auto'")


def read_source(table: Table) -> Source:
    """The target's checkpoint; a scheme's spelling is checked where it is opened."""
    table.only("checkpoint", "revision")
    return Source(table.text("checkpoint", None), table.optional_text("revision"))


DRAFT_KEYS = {
    "ngram": ("min_match", "max_match"),
    "model": ("checkpoint", "revision", "scheme", "draft"),
    "early-exit": ("layers", "norm"),
    "none": (),
    "table": ("file", "min_count"),
    "feature": ("head", "stop", "scheme"),
    "medusa": ("head", "stop", "scheme"),
    "staged": ("stages",),
    "auto": ("stages",),
}


def read_draft(table: Table) -> Draft:
    """The drafter. Keys that belong to another kind are refused, not ignored."""
    table.only("kind", *{key for keys in DRAFT_KEYS.values() for key in keys})
    kind = table.choice("kind", DRAFT_KINDS, "ngram")
    table.only("kind", *DRAFT_KEYS[kind], owner=f"a draft of kind {kind}")
    if kind == "staged" or (kind == "auto" and "stages" in table):
        return Draft(kind, stages=read_stages(table))
    if kind == "auto":
        return AUTO_DRAFT
    low = table.integer("min_match", 2, 1, 16)
    return Draft(
        kind=kind,
        checkpoint=table.text("checkpoint", None) if kind == "model" else None,
        revision=table.optional_text("revision"),
        layers=table.integer("layers", None, 1, 1000) if "layers" in table else None,
        norm=table.optional_text("norm"),
        min_match=low,
        max_match=table.integer("max_match", max(4, low), low, 16, low_is="min_match"),
        scheme=read_scheme(table, Scheme("w4", "w8")) if "scheme" in table else None,
        file=table.text("file", None) if kind == "table" else None,
        min_count=table.integer("min_count", 2, 1, 65535),
        head=table.text("head", None) if kind in HEAD_KINDS else None,
        stop=table.number("stop", 0.0, 0.0, 0.99),
        small=read_small(table) if "draft" in table else None,
    )


def read_small(table: Table) -> Draft:
    """What drafts for a draft model: without an engine, since a bundle has one draft engine."""
    small = read_draft(table.table("draft"))
    kinds = [part.kind for part in small.parts]
    if {"none", "auto", *ENGINE_KINDS} & {small.kind, *kinds}:
        found = f"the draft model's own draft is {', '.join(kinds)}"
        raise table.error("draft", found, "allowed are ngram, table and staged of both")
    return small


def read_stages(table: Table) -> tuple[Draft, ...]:
    """A chain of drafters; one engine and one table at most, and no chain within."""
    stages = tuple(map(read_draft, table.tables("stages")))
    kinds = [stage.kind for stage in stages]
    if any(stage.small for stage in stages):
        raise table.error(
            "stages", "a stage has a draft of its own", "such a draft model stands alone, not in a chain"
        )
    if len(stages) > MOST_STAGES or {"staged", "none", "auto"} & set(kinds):
        found = f"stages are {', '.join(kinds)}"
        raise table.error(
            "stages", found, f"allowed are 1 to {MOST_STAGES} drafters, none of them staged, auto, none"
        )
    for group, what in ((ENGINE_KINDS, "an engine"), (("table",), "a table")):
        if sum(kind in group for kind in kinds) > 1:
            raise table.error("stages", f"stages are {', '.join(kinds)}", f"one of them may have {what}")
    return stages


def read_scheme(parent: Table, default: Scheme) -> Scheme:
    """`scheme: w4` in short (head at 8 bits where the layers have fewer), or a table {layers, head, block}."""
    if "scheme" not in parent:
        return default
    if isinstance(parent.get("scheme"), str):
        layers = parent.choice("scheme", LAYER_SCHEMES, "w4")
        return Scheme(layers, head_for(layers))
    table = parent.table("scheme")
    table.only("layers", "head", "block")
    layers = table.choice("layers", LAYER_SCHEMES, default.layers)
    head = table.choice("head", HEAD_SCHEMES, head_for(layers))
    if ("dynamic-int8" in (layers, head)) and layers != head:
        raise table.error(
            "head", f"layers are {layers} and the head is {head}", "dynamic-int8 is for both or none"
        )
    return Scheme(layers, head, table.one_of("block", BLOCKS, 32))


def head_for(layers: str) -> str:
    """The head is the most sensitive weight: 8 bits where the layers have 4, and no 8-bit activations."""
    return {"w4": "w8", "int8": "w8", "fp8": "fp16"}.get(layers, layers)


def read_calibration(root: Table) -> str | None:
    """The calibration text's path as written, relative to the recipe; None for the text that comes along."""
    table = root.table("calibration")
    table.only("text", "ranges", "migrate")
    return table.optional_text("text")


def read_ranges(table: Table) -> Ranges:
    """How activation scales are found."""
    return Ranges(table.choice("ranges", RANGES, "percentile"), table.optional_number("migrate", 0.0, 1.0))


def read_sampling(table: Table) -> Sampling:
    """Sampling defaults within the ranges of specc.h."""
    table.only(*(option for option in OPTIONS if option != "logit_bias"))
    return Sampling(
        temperature=table.number("temperature", 1.0, 0.0, 1e6),
        top_p=table.number("top_p", 1.0, 0.0, 1.0, above=True),
        top_k=table.integer("top_k", 0, 0, 1 << 30),
        min_p=table.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=table.number("repetition_penalty", 1.0, 0.0, 1e6, above=True),
        presence_penalty=table.number("presence_penalty", 0.0, -1e6, 1e6),
        frequency_penalty=table.number("frequency_penalty", 0.0, -1e6, 1e6),
    )


def read_gate(table: Table) -> GateLimits:
    """Limits of the quality judge, and the total variation up to which a bounded certificate may speculate."""
    table.only("kl_max", "top1_min", "perplexity_max", "allow_bounded")
    return GateLimits(
        kl_max=table.optional_number("kl_max", 0.0, 1e6),
        top1_min=table.optional_number("top1_min", 0.0, 1.0),
        perplexity_max=table.optional_number("perplexity_max", 1.0, 1e9),
        allow_bounded=table.optional_number("allow_bounded", 0.0, 1.0),
    )
