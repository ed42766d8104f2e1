"""Plans: widths, capacity, memory and digest from specs alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specc import targets
from specc.contracts.costs import count_cache_bytes, count_matrix_bytes, count_read_bytes
from specc.contracts.model_spec import ModelSpec
from specc.contracts.plan import as_dict, make_plan
from specc.contracts.recipe import load_recipe
from specc.errors import InputError, RecipeError

Write = Callable[..., Path]
SPEC = ModelSpec(
    "llama",
    49152,
    49152,
    30,
    576,
    9,
    3,
    64,
    1536,
    2048,
    True,
    (2,),
    1,
    134515008,
    "i" * 64,
    "w" * 64,
    None,
    None,
)
X86 = targets.load("cpu-x86")


def test_widths_and_capacity(write_recipe: Write) -> None:
    plan = make_plan(load_recipe(write_recipe(context=1024, scheme="w4")), X86, SPEC)
    assert plan.target.widths == (*range(1, 18), 64) and plan.chunk == 64 and plan.rows == 5
    assert plan.target.capacity == 1024 + 64 and plan.draft is None and plan.engines == (plan.target,)


@pytest.mark.parametrize(
    ("k", "context", "widths"), [(4, 6, (1, 2, 3, 4, 5, 6)), (1, 40, (*range(1, 18), 40))]
)
def test_the_chunk_is_clipped_to_the_context(
    write_recipe: Write, k: int, context: int, widths: tuple[int]
) -> None:
    plan = make_plan(load_recipe(write_recipe(k=k, context=context, scheme="w4")), X86, SPEC)
    assert plan.target.widths == widths and plan.chunk == context


def test_other_operators_list_what_rounds_use(write_recipe: Write) -> None:
    """Every width costs time in a certificate; only our own operators agree over all of them."""
    plan = make_plan(load_recipe(write_recipe(dialect="ort")), X86, SPEC)
    assert plan.target.widths == (1, 2, 3, 4, 5, 64)
    early = make_plan(
        load_recipe(write_recipe(draft={"kind": "early-exit", "layers": 4}, scheme="w4")), X86, SPEC
    )
    assert early.draft is not None and early.draft.widths == (1, 2, 3, 4, 5, 64)


def test_sixteen_tokens_fit_the_runtime(write_recipe: Write) -> None:
    plan = make_plan(load_recipe(write_recipe(k=16)), X86, SPEC)
    assert plan.target.widths == (*range(1, 18), 64) and len(plan.target.widths) <= 24


def test_context_over_the_models_maximum(write_recipe: Write) -> None:
    path = write_recipe(context=4096)
    with pytest.raises(
        RecipeError, match=r"recipe.yaml:\d+: context is 4096; allowed are 6 \(K \+ 2\) to 2048"
    ):
        make_plan(load_recipe(path), X86, SPEC)


def test_auto_k_counts_for_the_context(write_recipe: Write) -> None:
    with pytest.raises(RecipeError, match="context is 5; allowed are 6"):
        make_plan(load_recipe(write_recipe(k="auto", context=5)), X86, SPEC)


def test_early_exit_shares_the_targets_weights(write_recipe: Write) -> None:
    recipe = load_recipe(write_recipe(draft={"kind": "early-exit", "layers": 4}))
    plan = make_plan(recipe, X86, SPEC)
    assert plan.draft is not None and plan.draft.layers == 4 and plan.draft.shares == "target"
    alone = make_plan(load_recipe(write_recipe()), X86, SPEC)
    assert plan.memory.weights == alone.memory.weights and plan.memory.draft_cache > 0


def test_early_exit_has_fewer_layers_than_the_target(write_recipe: Write) -> None:
    recipe = load_recipe(write_recipe(draft={"kind": "early-exit", "layers": 30}))
    with pytest.raises(RecipeError, match="draft.layers is 30; allowed are 1 to 29"):
        make_plan(recipe, X86, SPEC)


def test_draft_model_needs_its_spec_and_its_context(write_recipe: Write) -> None:
    recipe = load_recipe(write_recipe(context=512, draft={"kind": "model", "checkpoint": "d"}))
    with pytest.raises(InputError, match="needs the draft's checkpoint"):
        make_plan(recipe, X86, SPEC)
    with pytest.raises(RecipeError, match="context is 512; the draft model takes at most 256"):
        make_plan(recipe, X86, SPEC, dataclasses.replace(SPEC, max_context=256))
    plan = make_plan(recipe, X86, SPEC, dataclasses.replace(SPEC, layers=2, vocab=49280))
    assert plan.draft is not None and plan.draft.spec.vocab == 49280 and plan.target.spec.vocab == 49152


def test_bytes_of_a_matrix() -> None:
    assert count_matrix_bytes(3, 64, "fp32", 32) == 3 * 64 * 4
    assert count_matrix_bytes(3, 64, "w8", 32) == 3 * 64 + 3 * 2 * 4
    assert count_matrix_bytes(3, 64, "w4", 32) == 3 * 32 + 3 * 2 * 4 + 3
    assert count_matrix_bytes(3, 70, "w8", 32) == 3 * 70 + 3 * 3 * 4


def test_memory_counts_what_is_bound(write_recipe: Write) -> None:
    plan = make_plan(load_recipe(write_recipe(context=1024, scheme="w4")), X86, SPEC)
    assert count_cache_bytes(plan.target) == 30 * 2 * 3 * 1088 * 64 * 4 == plan.memory.target_cache
    assert 90e6 < count_read_bytes(plan.target) < 120e6 and plan.memory.total > plan.memory.weights
    assert as_dict(plan)["fits"] is True


def test_the_digest_follows_what_is_built(write_recipe: Write) -> None:
    def digest(**keys: object) -> str:
        return make_plan(load_recipe(write_recipe(**keys)), X86, SPEC).digest

    base = digest()
    assert digest(name="other", gate={"kl_max": 1}) == base
    assert (
        len({base, digest(k=3), digest(context=64), digest(scheme="w4"), digest(draft={"kind": "none"})}) == 5
    )


def test_a_plan_needs_neither_torch_nor_weights() -> None:
    code = (
        "import sys, specc.contracts.plan, specc.pipeline.build, specc.cli; "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
