"""Which precisions a hardware target has, and the types and operators that its engines use."""

from __future__ import annotations

from dataclasses import replace

from specc.contracts.engine_plan import EnginePlan, has_kernels
from specc.contracts.recipe import Recipe
from specc.contracts.scheme import Scheme
from specc.targets import Hardware

CPU_SCHEMES = ("fp32", "w8", "w4", "dynamic-int8")
CUDA_SCHEMES = ("fp16", "w8", "w4")


def choose_dialect(recipe: Recipe, hardware: Hardware) -> str:
    """The target's dialect. Raises RecipeError where the recipe names one that lacks its scheme or its
    hardware.
    """
    scheme, is_cpu = recipe.scheme, hardware.gpu is None
    if recipe.dialect == "specc-cpu" and not has_kernels(scheme):
        parts = f"layers {scheme.layers}, head {scheme.head}, block {scheme.block}"
        allowed = "specc-cpu has w4 and w8 in blocks of 32; use dialect ort or auto"
        raise recipe.make_error("dialect", f"dialect is specc-cpu and the scheme {parts}", allowed)
    if recipe.dialect in ("specc-cpu", "onnx24") and (recipe.dialect == "onnx24") is is_cpu:
        allowed = f"{hardware.name} has {'specc-cpu' if is_cpu else 'onnx24'} and ort; use dialect auto"
        found = f"dialect is {recipe.dialect} and the target {hardware.name}"
        raise recipe.make_error("dialect", found, allowed)
    if recipe.dialect == "auto":
        return hardware.dialect if not is_cpu or has_kernels(scheme) else "ort"
    return recipe.dialect


def check_scheme(
    recipe: Recipe, hardware: Hardware, dialect: str, scheme: Scheme, key: str = "scheme"
) -> None:
    """Raise RecipeError where the target lacks a precision: what, why, and the nearest that works."""
    parts = {"layers": scheme.layers, "head": scheme.head}
    lacks = {part: explain_lack(hardware, dialect, precision) for part, precision in parts.items()}
    wrong = {part: why for part, why in lacks.items() if why is not None}
    if not wrong:
        return
    found = "; ".join(
        f"{key}.{part} is {parts[part]} on {hardware.name}: {why}" for part, why in wrong.items()
    )
    instead = ", ".join(f"{part} {find_nearest(hardware, dialect, parts[part])}" for part in wrong)
    every = ", ".join(list_schemes(hardware, dialect))
    raise recipe.make_error(key, found, f"nearest that works: {instead}; {hardware.name} has {every}")


def list_schemes(hardware: Hardware, dialect: str) -> tuple[str, ...]:
    """All schemes of a dialect on a target."""
    if hardware.gpu is None:
        return CPU_SCHEMES
    return hardware.gpu.precisions if dialect == "onnx24" else CUDA_SCHEMES


def explain_lack(hardware: Hardware, dialect: str, scheme: str) -> str | None:
    """Why a scheme does not work, None where it does."""
    if scheme in list_schemes(hardware, dialect):
        return None
    if hardware.gpu is None:
        return f"{scheme} is for GPU targets"
    if dialect == "onnx24":
        return hardware.gpu.builder.explain_lack(scheme)
    return f"dialect {dialect} has no {scheme} on a GPU"


def find_nearest(hardware: Hardware, dialect: str, scheme: str) -> str:
    """The nearest scheme that works."""
    if hardware.gpu is None:
        return "fp32" if scheme in ("fp16", "bf16") else "w8"
    if dialect == "onnx24":
        return hardware.gpu.builder.find_nearest(scheme)
    return "w8" if scheme in ("int8", "fp8") else "fp16"


def set_types(engine: EnginePlan, hardware: Hardware) -> EnginePlan:
    """The engine with the types and the operators that its target takes."""
    if hardware.gpu is None:
        return engine
    dtype = choose_float_type(engine.scheme) if engine.dialect == "onnx24" else "fp16"
    return replace(engine, dtype=dtype, opset24=hardware.gpu.builder.takes_opset24 and dtype != "fp32")


def check_cache_type(recipe: Recipe, hardware: Hardware, engine: EnginePlan) -> None:
    """Raise RecipeError where the KV cache cannot be in the type that the recipe asks for."""
    if recipe.cache == "auto":
        return
    why: str | None = "a CPU's attention reads fp32"
    if hardware.gpu is not None:
        why = explain_lack(hardware, engine.dialect, recipe.cache)
    if why is None and engine.dtype != "fp16":
        why = f"it is written from products in fp16, and these are in {engine.dtype}"
    if why is not None:
        found = f"cache is {recipe.cache} on {hardware.name}: {why}"
        raise recipe.make_error("cache", found, f"nearest that works: {engine.dtype}, which is cache: auto")


def set_cache_type(engine: EnginePlan, cache: str) -> EnginePlan:
    """The engine with KV caches of that type; no TensorRT writes float8 in place, so the engine returns its
    rows.
    """
    return engine if cache == "auto" else replace(engine, cache=cache, opset24=False)


def choose_float_type(scheme: Scheme) -> str:
    """Type of KV caches and unquantized products: the scheme's own, half precision beside quantized
    weights.
    """
    kinds = {scheme.layers, scheme.head}
    if "bf16" in kinds:
        return "bf16"
    return "fp32" if kinds == {"fp32"} else "fp16"


def find_further_dialects(recipe: Recipe, hardware: Hardware) -> tuple[str, ...]:
    """Dialects that a target wants beside its own, where the recipe leaves the choice and they have its
    schemes.
    """
    schemes = [scheme for scheme in (recipe.scheme, recipe.draft.scheme) if scheme is not None]
    precisions = [part for scheme in schemes for part in (scheme.layers, scheme.head)]
    if recipe.dialect != "auto" or recipe.cache != "auto":
        return ()
    return tuple(
        dialect
        for dialect in hardware.also
        if not any(explain_lack(hardware, dialect, precision) for precision in precisions)
    )
