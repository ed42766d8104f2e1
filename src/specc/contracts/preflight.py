"""Before weights are read: which precisions a target has, and in which types and operators they are spelled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specc.contracts.recipe import Recipe, Scheme
from specc.errors import RecipeError
from specc.targets import Hardware

if TYPE_CHECKING:
    from specc.contracts.plan import EnginePlan

CPU_SCHEMES = ("fp32", "w8", "w4", "dynamic-int8")
CUDA_SCHEMES = ("fp16", "w8", "w4")


def check_scheme(
    recipe: Recipe, hardware: Hardware, dialect: str, scheme: Scheme, key: str = "scheme"
) -> None:
    """Raise RecipeError where the target lacks a precision: what, why, and the nearest that works."""
    parts = {"layers": scheme.layers, "head": scheme.head}
    wrong = {part: why for part, one in parts.items() if (why := lacks(hardware, dialect, one)) is not None}
    if not wrong:
        return
    found = "; ".join(
        f"{key}.{part} is {parts[part]} on {hardware.name}: {why}" for part, why in wrong.items()
    )
    instead = ", ".join(f"{part} {nearest(hardware, dialect, parts[part])}" for part in wrong)
    allowed = f"nearest that works: {instead}; {hardware.name} has {', '.join(available(hardware, dialect))}"
    raise RecipeError(recipe.file, recipe.line(key), found, allowed)


def available(hardware: Hardware, dialect: str) -> tuple[str, ...]:
    """All schemes of a dialect on a target."""
    if hardware.gpu is None:
        return CPU_SCHEMES
    return hardware.gpu.precisions if dialect == "onnx24" else CUDA_SCHEMES


def lacks(hardware: Hardware, dialect: str, scheme: str) -> str | None:
    """Why a scheme does not work, None where it does."""
    if scheme in available(hardware, dialect):
        return None
    if hardware.gpu is None:
        return f"{scheme} is for GPU targets"
    if dialect == "onnx24":
        return hardware.gpu.builder.lacks(scheme)
    return f"dialect {dialect} has no {scheme} on a GPU"


def nearest(hardware: Hardware, dialect: str, scheme: str) -> str:
    """The nearest scheme that works."""
    if hardware.gpu is None:
        return "fp32" if scheme in ("fp16", "bf16") else "w8"
    if dialect == "onnx24":
        return hardware.gpu.builder.nearest(scheme)
    return "w8" if scheme in ("int8", "fp8") else "fp16"


def spelled(engine: EnginePlan, hardware: Hardware) -> EnginePlan:
    """The engine with the types and the operators that its target takes."""
    if hardware.gpu is None:
        return engine
    dtype = half_of(engine.scheme) if engine.dialect == "onnx24" else "fp16"
    return replace(engine, dtype=dtype, opset24=hardware.gpu.builder.takes_opset24 and dtype != "fp32")


def check_cache(recipe: Recipe, hardware: Hardware, engine: EnginePlan) -> None:
    """Raise RecipeError where keys and values cannot be in the type that the recipe asks for."""
    if recipe.cache == "auto":
        return
    why = lacks(hardware, engine.dialect, recipe.cache) if hardware.gpu else "a CPU's attention reads fp32"
    if why is None and engine.dtype != "fp16":
        why = f"it is written from products in fp16, and these are in {engine.dtype}"
    if why is not None:
        found, near = f"cache is {recipe.cache} on {hardware.name}: {why}", engine.dtype
        raise RecipeError(
            recipe.file, recipe.line("cache"), found, f"nearest that works: {near}, which is cache: auto"
        )


def cached(engine: EnginePlan, cache: str) -> EnginePlan:
    """The engine with caches of that type; no TensorRT writes float8 in place, so the engine gives its rows."""
    return engine if cache == "auto" else replace(engine, cache=cache, opset24=False)


def half_of(scheme: Scheme) -> str:
    """Type of caches and plain products: that of the scheme, half precision beside quantized weights."""
    kinds = {scheme.layers, scheme.head}
    if "bf16" in kinds:
        return "bf16"
    return "fp32" if kinds == {"fp32"} else "fp16"


def further_dialects(recipe: Recipe, device: Hardware) -> tuple[str, ...]:
    """Dialects that a target wants beside its own, where the recipe leaves the choice and they have its schemes."""
    schemes = [scheme for scheme in (recipe.scheme, recipe.draft.scheme) if scheme is not None]
    parts = [part for scheme in schemes for part in (scheme.layers, scheme.head)]
    if recipe.dialect != "auto" or recipe.cache != "auto":
        return ()
    return tuple(
        dialect for dialect in device.also if not any(lacks(device, dialect, part) for part in parts)
    )
