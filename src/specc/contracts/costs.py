"""Bytes that engines take on the device, and the time that memory bandwidth alone sets for their calls."""

from __future__ import annotations

from dataclasses import dataclass

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.model_spec import ModelSpec
from specc.contracts.scheme import Scheme

WEIGHT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "dynamic-int8": 1, "int8": 1, "fp8": 1}
"""Bytes of a weight in schemes without blocks; the scales of whole columns are left out."""
TYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
NORM_BYTES = 4
ENGINE_OVERHEAD = 48 << 20
"""Bytes that the engine library and the process take beside the buffers (ONNX Runtime on CPU, rounded up)."""


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
    """Lower bounds from memory bandwidth alone, milliseconds with a half-full KV cache."""

    target_call_ms: float
    draft_call_ms: float
    """One call of the draft's engine; 0 for a drafter without one."""
    plain_tokens_per_second: float
    best_tokens_per_second: float
    """If every proposal is accepted: K+1 tokens for one target call and K draft calls."""


def count_matrix_bytes(rows: int, columns: int, scheme: str, block: int) -> int:
    """Bytes of one weight [rows, columns].

    w8: a byte each and an f32 scale a block; w4: half a byte each, an f32 scale and half a byte of zero point
    a block.
    """
    count = rows * columns
    if scheme in WEIGHT_BYTES:
        return WEIGHT_BYTES[scheme] * count
    blocks = rows * -(-columns // block)
    return count + 4 * blocks if scheme == "w8" else count // 2 + 4 * blocks + blocks // 2


def count_layer_bytes(spec: ModelSpec, scheme: Scheme) -> int:
    """Weights of one decoder layer: four products of attention, three of the MLP, two norms."""
    query, cache = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    hidden, inner = spec.hidden, spec.intermediate
    attention = [(query, hidden), (cache, hidden), (cache, hidden), (hidden, query)]
    shapes = [*attention, (inner, hidden), (inner, hidden), (hidden, inner)]
    products = sum(count_matrix_bytes(r, c, scheme.layers, scheme.block) for r, c in shapes)
    return products + 2 * hidden * NORM_BYTES


def count_lm_head_bytes(spec: ModelSpec, scheme: Scheme) -> int:
    """The LM head and the norm before it, read in every call."""
    return count_matrix_bytes(spec.vocab, spec.hidden, scheme.head, scheme.block) + spec.hidden * NORM_BYTES


def count_read_bytes(engine: EnginePlan) -> int:
    """Weights that one call reads: layers and LM head; the embedding is looked up row by row."""
    spec, scheme = engine.spec, engine.scheme
    return engine.layers * count_layer_bytes(spec, scheme) + count_lm_head_bytes(spec, scheme)


def count_stored_bytes(engine: EnginePlan) -> int:
    """Weights that the engine keeps: the embedding counts unless it is tied; nothing when they are the
    target's.

    TensorRT engines share nothing, and keep the embedding beside a quantized LM head.
    """
    spec, is_alone = engine.spec, engine.dialect == "onnx24"
    if engine.shares and not is_alone:
        return 0
    is_tied = spec.tied and not (is_alone and engine.scheme.head != engine.dtype)
    embedding = 0 if is_tied else TYPE_BYTES[engine.dtype] * spec.vocab * spec.hidden
    return count_read_bytes(engine) + embedding


def count_cache_bytes(engine: EnginePlan) -> int:
    """Keys and values: layers x 2 x [1, kv_heads, capacity, head_dim] in the engine's cache type."""
    slots = engine.layers * 2 * engine.spec.kv_heads * engine.capacity
    return slots * engine.spec.head_dim * TYPE_BYTES[engine.cache or engine.dtype]


def count_workspace_bytes(engine: EnginePlan) -> int:
    """Activations of the widest call and one row of logits for each of its rows, in fp32."""
    spec, widest = engine.spec, engine.widths[-1]
    activations = widest * 4 * (4 * spec.hidden + 3 * spec.intermediate)
    return activations + widest * 4 * spec.vocab


def estimate_memory(target: EnginePlan, draft: EnginePlan | None) -> Memory:
    """Bytes of both engines together."""
    engines = (target,) if draft is None else (target, draft)
    return Memory(
        weights=sum(map(count_stored_bytes, engines)),
        target_cache=count_cache_bytes(target),
        draft_cache=0 if draft is None else count_cache_bytes(draft),
        workspace=sum(map(count_workspace_bytes, engines)),
    )


def estimate_call_ms(engine: EnginePlan, bandwidth_gb_s: float) -> float:
    """Milliseconds to read the weights and half the KV cache once."""
    return (count_read_bytes(engine) + count_cache_bytes(engine) // 2) / (bandwidth_gb_s * 1e6)


def estimate_timing(target: EnginePlan, draft: EnginePlan | None, k: int, bandwidth_gb_s: float) -> Timing:
    """Lower bounds on time, so upper bounds on speed: only memory traffic is counted."""
    target_ms = estimate_call_ms(target, bandwidth_gb_s)
    draft_ms = 0.0 if draft is None else estimate_call_ms(draft, bandwidth_gb_s)
    best = 1000 * (k + 1) / (target_ms + k * draft_ms)
    return Timing(target_ms, draft_ms, 1000 / target_ms, best)
