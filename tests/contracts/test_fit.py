"""Plans for GPUs: precisions that a target lacks, memory, and what would fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specc import targets
from specc.contracts.fit import describe_fit
from specc.contracts.model_spec import ModelSpec
from specc.contracts.plan import make_plan
from specc.contracts.recipe import load_recipe
from specc.errors import RecipeError

Write = Callable[..., Path]
SEVEN_B = ModelSpec(
    "llama",
    128256,
    128256,
    32,
    4096,
    32,
    8,
    128,
    14336,
    131072,
    False,
    (1,),
    0,
    8 * 10**9,
    "i",
    "w",
    None,
    None,
)


def planned(write_recipe: Write, hardware: str, spec: ModelSpec = SEVEN_B, **keys: Any) -> Any:
    """A plan of an 8B model."""
    recipe = load_recipe(write_recipe(**{"context": 8192, "scheme": "fp16", **keys}))
    return make_plan(recipe, targets.load(hardware), spec)


@pytest.mark.parametrize(
    ("hardware", "keys", "said"),
    [
        (
            "rtx-ampere",
            {"scheme": "fp8"},
            r"scheme.layers is fp8 on rtx-ampere: fp8 needs SM 89 .* layers w8",
        ),
        ("jetson-orin-nano-8gb", {"scheme": "int8"}, r"SM 8.7, https.*nearest that works: layers w8"),
        ("rtx-ada", {"scheme": "dynamic-int8"}, "no engine of TensorRT has the scheme dynamic-int8"),
        (
            "cpu-x86",
            {"scheme": "fp16"},
            "fp16 is for GPU targets; nearest that works|fp16 is for GPU targets",
        ),
        ("h100", {"scheme": "bf16", "dialect": "ort"}, "dialect ort has no bf16 on a GPU"),
        (
            "rtx-ampere",
            {"cache": "fp8"},
            r"cache is fp8 on rtx-ampere: fp8 needs SM 89 .* SM 86; nearest .* fp16",
        ),
        ("jetson-orin-nano-8gb", {"cache": "fp8", "scheme": "w4"}, "fp8 needs SM 89 and this is SM 87"),
        (
            "rtx-ada",
            {"cache": "fp8", "scheme": "bf16"},
            "written from products in fp16, and these are in bf16",
        ),
        ("h100", {"cache": "fp8", "dialect": "ort"}, "dialect ort has no fp8 on a GPU"),
        ("cpu-x86", {"cache": "fp8", "scheme": "w4"}, "a CPU's attention reads fp32"),
        ("rtx-ada", {"batch": 4}, r"batch is 4; allowed is 1 \(a graph takes one sequence"),
        ("rtx-ada", {"dialect": "specc-cpu", "scheme": "w4"}, "dialect is specc-cpu and the target rtx-ada"),
        ("cpu-x86", {"dialect": "onnx24", "scheme": "w4"}, "dialect is onnx24 and the target cpu-x86"),
    ],
)
def test_precisions_that_a_target_lacks(
    hardware: str, keys: dict[str, Any], said: str, write_recipe: Write
) -> None:
    """R47, R53: what, why, and the nearest that works, before any weight is read."""
    with pytest.raises(RecipeError, match=said):
        planned(write_recipe, hardware, **keys)


def test_types_follow_target_and_scheme(write_recipe: Write) -> None:
    """Half precision beside quantized weights; the older spelling where opset 24 is missing."""
    for hardware, scheme, found in (
        ("rtx-ada", "w4", ("onnx24", "fp16", True)),
        ("rtx-ada", "bf16", ("onnx24", "bf16", True)),
        ("rtx-ada", "fp32", ("onnx24", "fp32", False)),
        ("jetson-orin-nano-8gb", "w4", ("onnx24", "fp16", False)),
        ("jetson-orin-nano-8gb@7.2", "w4", ("onnx24", "fp16", True)),
    ):
        engine = planned(write_recipe, hardware, scheme=scheme, context=512).target
        assert (engine.dialect, engine.dtype, engine.opset24) == found
    assert planned(write_recipe, "h100", dialect="ort").target.dtype == "fp16"


@pytest.mark.parametrize("hardware", ["h100", "h200", "rtx-ada", "rtx-blackwell"])
def test_float8_halves_it_again_where_the_sm_has_it(hardware: str, write_recipe: Write) -> None:
    """The engine gives its rows, since no TensorRT writes float8 in place; the dialect ort is left out."""
    from specc.contracts.precision import find_further_dialects

    path = write_recipe(context=8192, scheme="fp16", cache="fp8")
    made = make_plan(load_recipe(path), targets.load(hardware), SEVEN_B)
    assert 2 * made.memory.target_cache == planned(write_recipe, hardware).memory.target_cache
    assert (made.target.cache, made.target.dtype, made.target.opset24) == ("fp8", "fp16", False)
    assert (
        find_further_dialects(load_recipe(write_recipe(scheme="fp16", cache="fp8")), targets.load(hardware))
        == ()
    )


def test_half_precision_halves_the_cache(write_recipe: Write) -> None:
    """Bytes of keys and values follow the engine's type."""
    full, half = (
        planned(write_recipe, "h100", scheme=scheme).memory.target_cache for scheme in ("fp32", "fp16")
    )
    assert full == 2 * half == 32 * 2 * 4 * 8 * (8192 + 64) * 128


def test_what_would_fit_instead(write_recipe: Write) -> None:
    """8 B weights are too much for 8 GB but for 4 bits and a short context; a long one is cured by a shorter
    one.
    """
    tight = planned(write_recipe, "jetson-orin-nano-8gb")
    assert (
        not tight.fits
        and describe_fit(tight, None) == "does not fit 6084 MB, would fit with context 1024 and w4"
    )
    small = replace(SEVEN_B, layers=16, hidden=2048, heads=32, head_dim=64, intermediate=8192, tied=True)
    long = planned(write_recipe, "jetson-orin-nano-8gb", small, context=131072)
    assert describe_fit(long, None).startswith("does not fit 6084 MB, would fit with context ")
    assert describe_fit(planned(write_recipe, "h200"), None) == "fits 142747 MB"


def test_when_nothing_fits(write_recipe: Write) -> None:
    """No false hope."""
    huge = replace(SEVEN_B, layers=126, hidden=16384, intermediate=53248, heads=128)
    assert "neither a shorter context nor w4 helps" in describe_fit(
        planned(write_recipe, "rtx-ada", huge), None
    )


def test_speed_is_bounded_by_bandwidth(write_recipe: Write) -> None:
    """Twice the bandwidth, half the time; fewer bits, faster."""
    orin, agx = (
        planned(write_recipe, n, scheme="w4").timing for n in ("jetson-orin-nano-8gb", "jetson-agx-orin-64gb")
    )
    assert orin.target_call_ms / agx.target_call_ms == pytest.approx(204.8 / 102.0)
    assert (
        agx.plain_tokens_per_second
        > 2 * planned(write_recipe, "jetson-agx-orin-64gb").timing.plain_tokens_per_second
    )
