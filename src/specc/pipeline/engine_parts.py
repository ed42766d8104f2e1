"""What the manifest says of an engine beside its files: cache types, what runs it, what built it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specc.contracts.engine_plan import EnginePlan
from specc.targets import Hardware

TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
CUDA_OPTIONS = {
    "use_tf32": "0",
    "arena_extend_strategy": "kSameAsRequested",
    "cudnn_conv_use_max_workspace": "0",
}
"""Options of ONNX Runtime's CUDA provider: plain fp32 sums, no memory beyond what is asked for."""


def provider_part(hardware: Hardware) -> dict[str, Any]:
    """A graph for ONNX Runtime; on a GPU with the provider that runs it, whose options are passed on
    unchanged.
    """
    if hardware.gpu is None:
        return {}
    cuda = {"name": "CUDAExecutionProvider", "options": dict(CUDA_OPTIONS)}
    return {"backend": "ort", "cache_dtype": "float16", "provider": cuda}


def graph_part(engine: EnginePlan) -> dict[str, Any]:
    """A graph that `specc finalize` builds an engine from on the device."""
    return {**cache_part(engine), "file": f"{engine.name}.onnx", "finalize": True}


def engine_part(engine: EnginePlan, graph: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A TensorRT engine: what built it, for which device, and the hash of its plan (a rebuild is another
    engine).
    """
    kept = {key: facts[key] for key in ("tensorrt", "sm", "platform", "stripped", "plan_sha256", "types")}
    return {
        **cache_part(engine),
        "file": f"{engine.name}.plan",
        "backend": facts["library"],
        "graph_sha256": graph,
        **kept,
    }


def cache_part(engine: EnginePlan) -> dict[str, Any]:
    """Element type of the KV caches, and who writes them."""
    update = "in-place" if engine.opset24 else "rows"
    return {"cache_dtype": TYPES[engine.cache or engine.dtype], "cache_update": update}
