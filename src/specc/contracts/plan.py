"""Every number of a build, before any weight is read: widths, capacity, memory, time, digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from specc.contracts.heads import Head
from specc.contracts.preflight import cached, check_cache, check_scheme, spelled
from specc.contracts.recipe import DRAFT_KINDS, Draft, Recipe
from specc.contracts.recipe import Scheme as Scheme
from specc.errors import InputError, RecipeError
from specc.targets import Hardware

CHUNK = 64
CERTIFIED = 17
"""Widest call that a certificate of our own operators shows beside the prefill chunk, whatever K is."""
KERNEL_BLOCK = 32
PER_WEIGHT = {"fp32": 4, "fp16": 2, "bf16": 2, "dynamic-int8": 1, "int8": 1, "fp8": 1}
"""Bytes of a weight where blocks do not matter; the scales of whole columns are left out."""
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
AUTO_K = dict.fromkeys(DRAFT_KINDS, 4)
NORM_BYTES = 4
ENGINE_OVERHEAD = 48 << 20
"""Bytes that the engine library and the process take beside the buffers listed (ONNX Runtime on CPU, rounded up)."""


@dataclass(frozen=True)
class ModelSpec:
    """What a checkpoint says about itself, without weights."""

    architecture: str
    vocab: int
    """Columns of the logits (rows of the output head); may be more than `token_ids`."""
    token_ids: int
    """Ids that the tokenizer knows."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_context: int
    tied: bool
    eos: tuple[int, ...]
    bos: int | None
    parameters: int
    id_map_sha256: str
    weights_sha256: str
    revision: str | None
    licence: str | None


@dataclass(frozen=True)
class EnginePlan:
    """One engine: which layers at which scheme, and the row counts that it must take."""

    name: str
    """"target" or "draft"."""
    spec: ModelSpec
    scheme: Scheme
    layers: int
    """Layers that are built; early-exit drafts use fewer than `spec.layers`."""
    context: int
    capacity: int
    """Cache slots: context + widest row count, so that padding rows write into scratch."""
    widths: tuple[int, ...]
    """Every row count that the runtime may use, rising; the last is the prefill chunk."""
    chunk: int
    dialect: str
    shares: str | None
    """"target" when the weights lie in the target's file (early-exit), else None."""
    hidden: bool = False
    """Whether the graph gives its final normalised hidden states too: heads draft from them."""
    dtype: str = "fp32"
    """Type of caches and of products that no scheme narrows further: "fp32", "fp16" or "bf16"."""
    cache: str = ""
    """Type of caches where it is another: "fp8"."""
    opset24: bool = True
    """Dialect onnx24: TensorScatter and Attention; False: the older spelling, which gives new rows to its caller."""


@dataclass(frozen=True)
class Memory:
    """Bytes on the device, predicted."""

    weights: int
    target_cache: int
    draft_cache: int
    workspace: int

    @property
    def total(self) -> int:
        """Everything, the engine library included."""
        return self.weights + self.target_cache + self.draft_cache + self.workspace + ENGINE_OVERHEAD


@dataclass(frozen=True)
class Timing:
    """Lower bounds from memory bandwidth alone, milliseconds with a half-full cache."""

    target_call_ms: float
    draft_call_ms: float
    """One call of the draft's engine; 0 for a drafter without one."""
    plain_tokens_per_second: float
    best_tokens_per_second: float
    """Were every proposal accepted: (K+1) tokens for one target call and K draft calls."""


@dataclass(frozen=True)
class Plan:
    """All numbers of one build on one kind of hardware."""

    recipe: Recipe
    hardware: Hardware
    k: int
    context: int
    chunk: int
    threads: int
    target: EnginePlan
    draft: EnginePlan | None
    memory: Memory
    timing: Timing
    digest: str
    head: Head | None = None
    """The trained head that drafts, if one does."""
    choice: dict[str, Any] | None = None
    """What `k: auto` and `draft: auto` measured and chose."""

    @property
    def rows(self) -> int:
        """Rows of the verification graph."""
        return self.k + 1

    @property
    def fits(self) -> bool:
        """Whether the device's memory, less what is left to its system, holds everything."""
        return self.memory.total <= self.hardware.budget_mb << 20

    @property
    def engines(self) -> tuple[EnginePlan, ...]:
        """Target first, then the draft where it has a graph."""
        return (self.target,) if self.draft is None else (self.target, self.draft)


def make_plan(
    recipe: Recipe,
    hardware: Hardware,
    target: ModelSpec,
    draft: ModelSpec | None = None,
    head: Head | None = None,
) -> Plan:
    """Join recipe, hardware and model specs. `draft` is needed for a draft of kind model, `head` for trained heads.

    Raises RecipeError where the recipe asks for more than the models have.
    """
    k = recipe.k or AUTO_K[recipe.draft.kind]
    check_context(recipe, k, target)
    dialect = plan_dialect(recipe, hardware)
    check_scheme(recipe, hardware, dialect, recipe.scheme)
    engine = plan_engine("target", target, recipe.scheme, target.layers, recipe.context, k, dialect, None)
    if head is not None:
        check_heads_run(recipe, dialect)
        engine = replace(engine, hidden=True)
    drafter = plan_draft(
        recipe, k, hardware, dialect, target, draft if head is None else head_spec(head, target)
    )
    if drafter is not None and head is not None:
        drafter = plan_head(drafter, head, engine, k)
    engine, drafter = spelled(engine, hardware), None if drafter is None else spelled(drafter, hardware)
    check_cache(recipe, hardware, engine)
    engine, drafter = cached(engine, recipe.cache), None if drafter is None else cached(drafter, recipe.cache)
    memory = plan_memory(engine, drafter)
    timing = plan_time(engine, drafter, k, hardware.bandwidth_gb_s)
    threads = recipe.threads or hardware.threads
    digest = plan_digest(recipe, hardware, k, threads, engine, drafter, head)
    numbers = k, recipe.context, engine.chunk, threads
    return Plan(recipe, hardware, *numbers, engine, drafter, memory, timing, digest, head)


def has_kernels(scheme: Scheme) -> bool:
    """Whether our own CPU operators have products for a scheme: 4 or 8 bits in blocks of 32."""
    return scheme.layers in ("w4", "w8") and scheme.head in ("w4", "w8") and scheme.block == KERNEL_BLOCK


def plan_dialect(recipe: Recipe, hardware: Hardware) -> str:
    """The target's operators; raises RecipeError where the recipe names ones that lack its scheme."""
    if recipe.dialect == "specc-cpu" and not has_kernels(recipe.scheme):
        scheme = f"layers {recipe.scheme.layers}, head {recipe.scheme.head}, block {recipe.scheme.block}"
        allowed = "specc-cpu has w4 and w8 in blocks of 32; use dialect ort or auto"
        raise RecipeError(
            recipe.file, recipe.line("dialect"), f"dialect is specc-cpu and the scheme {scheme}", allowed
        )
    if (recipe.dialect in ("specc-cpu", "onnx24")) and (recipe.dialect == "onnx24") is (hardware.gpu is None):
        allowed = f"{hardware.name} has {'specc-cpu' if hardware.gpu is None else 'onnx24'} and ort; use dialect auto"
        found = f"dialect is {recipe.dialect} and the target {hardware.name}"
        raise RecipeError(recipe.file, recipe.line("dialect"), found, allowed)
    if recipe.dialect == "auto":
        return hardware.dialect if hardware.gpu is not None or has_kernels(recipe.scheme) else "ort"
    return recipe.dialect


def check_context(recipe: Recipe, k: int, spec: ModelSpec) -> None:
    """The context must hold one prompt token and a whole round, and no more than the model was made for."""
    allowed = f"allowed are {k + 2} (K + 2) to {spec.max_context} (the model's maximum)"
    if not k + 2 <= recipe.context <= spec.max_context:
        raise RecipeError(recipe.file, recipe.line("context"), f"context is {recipe.context}", allowed)


def plan_draft(
    recipe: Recipe, k: int, hardware: Hardware, dialect: str, target: ModelSpec, draft: ModelSpec | None
) -> EnginePlan | None:
    """The draft's engine, None for drafters without a graph; early exit shares the target's weights and dialect."""
    part = recipe.draft.graph
    if part is None:
        return None
    if part.kind == "early-exit":
        layers = early_exit_layers(recipe, part, target)
        return plan_engine("draft", target, recipe.scheme, layers, recipe.context, k, dialect, "target")
    if draft is None:
        raise InputError(f"{recipe.file}: a plan with a draft model needs the draft's checkpoint")
    check_draft_context(recipe, draft)
    scheme = part.scheme or recipe.scheme
    on_cpu = hardware.gpu is None
    own = "specc-cpu" if has_kernels(scheme) and recipe.dialect != "ort" else "ort"
    own = own if on_cpu else dialect
    check_scheme(recipe, hardware, own, scheme, "draft.scheme")
    return plan_engine("draft", draft, scheme, draft.layers, recipe.context, k, own, None)


def early_exit_layers(recipe: Recipe, part: Draft, target: ModelSpec) -> int:
    """Layers of an early-exit draft: at least one fewer than the target has."""
    layers = part.layers or max(1, target.layers // 4)
    if layers >= target.layers:
        allowed = f"allowed are 1 to {target.layers - 1} (the target has {target.layers})"
        raise RecipeError(recipe.file, recipe.line("draft.layers"), f"draft.layers is {layers}", allowed)
    return layers


def head_spec(head: Head, target: ModelSpec) -> ModelSpec:
    """A head as a model: its one layer's shape, and a column for each id that it knows."""
    n = head.numbers
    if head.kind == "medusa":
        return replace(target, vocab=head.columns, layers=0, tied=False)
    names = ("layers", "heads", "kv_heads", "head_dim", "intermediate")
    shape: dict[str, Any] = {name: n[name] for name in names}
    return replace(target, vocab=head.columns, tied=False, **shape)


def check_heads_run(recipe: Recipe, dialect: str) -> None:
    """TensorRT engines neither give nor read hidden states yet."""
    if dialect == "onnx24":
        allowed = "there lookup, a table, early-exit or a draft model may draft, or use dialect ort"
        raise RecipeError(recipe.file, recipe.line("draft"), "a trained head drafts on TensorRT", allowed)


def plan_head(engine: EnginePlan, head: Head, target: EnginePlan, most: int) -> EnginePlan:
    """A feature head is called like its target and reads its embedding where both are stored alike.

    Parallel heads have no cache and one width, a row for each head up to K.
    """
    if head.kind == "feature":
        alike = (engine.dialect, engine.scheme.head) == (target.dialect, target.scheme.head)
        return replace(engine, hidden=True, shares="target" if alike else None)
    k = min(head.numbers["k"], most)
    return replace(engine, widths=(k,), chunk=k, capacity=k)


def check_draft_context(recipe: Recipe, draft: ModelSpec) -> None:
    """A draft model sees the same positions as the target."""
    if recipe.context > draft.max_context:
        allowed = f"the draft model takes at most {draft.max_context}"
        raise RecipeError(recipe.file, recipe.line("context"), f"context is {recipe.context}", allowed)


def plan_engine(
    name: str,
    spec: ModelSpec,
    scheme: Scheme,
    layers: int,
    context: int,
    k: int,
    dialect: str,
    shares: str | None,
) -> EnginePlan:
    """Widths 1..K+1 (the target on our own operators: 1..17) and the prefill chunk; capacity holds the widest too.

    On a GPU 2 rows cost what 5 do, and each width is compiled by itself: there 1, 2, K+1 and the chunk are enough.
    """
    chunk = min(CHUNK, context)
    shown = min(CERTIFIED, chunk) if (name, dialect) == ("target", "specc-cpu") else 0
    every = {*range(1, max(k + 1, shown) + 1), chunk}
    widths = tuple(sorted({1, 2, k + 1, chunk} if dialect == "onnx24" else every))
    capacity = context + widths[-1]
    return EnginePlan(name, spec, scheme, layers, context, capacity, widths, chunk, dialect, shares)


def matrix_bytes(rows: int, columns: int, scheme: str, block: int) -> int:
    """Bytes of one weight [rows, columns]: fp32, or codes with an f32 scale (and, at 4 bits, a zero point) a block."""
    count = rows * columns
    if scheme in PER_WEIGHT:
        return PER_WEIGHT[scheme] * count
    blocks = rows * -(-columns // block)
    return count + 4 * blocks if scheme == "w8" else count // 2 + 4 * blocks + blocks // 2


def layer_bytes(spec: ModelSpec, scheme: Scheme) -> int:
    """Weights of one decoder layer."""
    query, cache = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes = [(query, spec.hidden), (cache, spec.hidden), (cache, spec.hidden), (spec.hidden, query)]
    shapes += [
        (spec.intermediate, spec.hidden),
        (spec.intermediate, spec.hidden),
        (spec.hidden, spec.intermediate),
    ]
    products = sum(matrix_bytes(r, c, scheme.layers, scheme.block) for r, c in shapes)
    return products + 2 * spec.hidden * NORM_BYTES


def head_bytes(spec: ModelSpec, scheme: Scheme) -> int:
    """The output head, read in every call."""
    return matrix_bytes(spec.vocab, spec.hidden, scheme.head, scheme.block) + spec.hidden * NORM_BYTES


def read_bytes(engine: EnginePlan) -> int:
    """Weights that one call reads: layers and head; the embedding is looked up row by row."""
    return engine.layers * layer_bytes(engine.spec, engine.scheme) + head_bytes(engine.spec, engine.scheme)


def stored_bytes(engine: EnginePlan) -> int:
    """Weights that the engine keeps: the embedding counts unless it is tied; nothing when they are the target's.

    Engines of TensorRT share nothing, and keep the embedding beside a quantized head.
    """
    spec, alone = engine.spec, engine.dialect == "onnx24"
    if engine.shares and not alone:
        return 0
    tied = spec.tied and not (alone and engine.scheme.head != engine.dtype)
    return read_bytes(engine) + (0 if tied else BYTES[engine.dtype] * spec.vocab * spec.hidden)


def cache_bytes(engine: EnginePlan) -> int:
    """Keys and values: layers x 2 x [1, kv_heads, capacity, head_dim] in the engine's type."""
    slots = engine.layers * 2 * engine.spec.kv_heads * engine.capacity
    return slots * engine.spec.head_dim * BYTES[engine.cache or engine.dtype]


def workspace_bytes(engine: EnginePlan) -> int:
    """Activations of the widest call and one row of logits for every verified row."""
    spec, widest = engine.spec, engine.widths[-1]
    activations = widest * 4 * (4 * spec.hidden + 3 * spec.intermediate)
    return activations + widest * 4 * spec.vocab


def plan_memory(target: EnginePlan, draft: EnginePlan | None) -> Memory:
    """Bytes of both engines together."""
    engines = (target,) if draft is None else (target, draft)
    return Memory(
        weights=sum(map(stored_bytes, engines)),
        target_cache=cache_bytes(target),
        draft_cache=0 if draft is None else cache_bytes(draft),
        workspace=sum(map(workspace_bytes, engines)),
    )


def call_ms(engine: EnginePlan, bandwidth_gb_s: float) -> float:
    """Milliseconds to read weights and half the cache once."""
    return (read_bytes(engine) + cache_bytes(engine) // 2) / (bandwidth_gb_s * 1e6)


def plan_time(target: EnginePlan, draft: EnginePlan | None, k: int, bandwidth_gb_s: float) -> Timing:
    """Lower bounds on time, so upper bounds on speed: nothing but memory traffic is counted."""
    target_ms = call_ms(target, bandwidth_gb_s)
    draft_ms = 0.0 if draft is None else call_ms(draft, bandwidth_gb_s)
    best = 1000 * (k + 1) / (target_ms + k * draft_ms)
    return Timing(target_ms, draft_ms, 1000 / target_ms, best)


def plan_digest(
    recipe: Recipe,
    hardware: Hardware,
    k: int,
    threads: int,
    target: EnginePlan,
    draft: EnginePlan | None,
    head: Head | None,
) -> str:
    """SHA-256 over everything that decides what is built; names of files and prose do not count."""
    engines = [asdict(engine) for engine in (target, draft) if engine is not None]
    parts = {
        "engines": engines,
        "hardware": hardware.name,
        "k": k,
        "threads": threads,
        "draft": asdict(recipe.draft),
    }
    text = json.dumps(parts | ({"head": head.sha256} if head else {}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as `specc plan --json` prints it."""
    return {
        "recipe": plan.recipe.name,
        "hardware": plan.hardware.name,
        "k": plan.k,
        "rows": plan.rows,
        "context": plan.context,
        "chunk": plan.chunk,
        "threads": plan.threads,
        "draft": plan.recipe.draft.kind,
        **({"choice": plan.choice} if plan.choice else {}),
        **({"head": plan.head.note} if plan.head is not None and plan.head.note else {}),
        "engines": {engine.name: asdict(engine) for engine in plan.engines},
        "memory": {**asdict(plan.memory), "engine_library": ENGINE_OVERHEAD, "total": plan.memory.total},
        "fits": plan.fits,
        "timing": asdict(plan.timing),
        "digest": plan.digest,
    }
