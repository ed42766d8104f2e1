"""The target's hidden states: an output of the graph that heads draft from, the same through C as in
transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny import VOCAB, float_graph, plan_of, some_ids, tiny_folder

from specc.errors import SpeccError
from specc.runtime import Io, Model, Ort, Wrapped, engine_library, library

HIDDEN = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama."""
    return tiny_folder(tmp_path_factory.mktemp("hidden") / "tiny")


def hidden_rows(folder: Path, ids: np.ndarray) -> np.ndarray:
    """fp32 [n, hidden] by transformers: what its output head multiplies."""
    import torch

    from specc.exporter.checkpoint.checkpoint import open_checkpoint

    model: Any = open_checkpoint(str(folder)).load()
    with torch.no_grad():
        rows: np.ndarray = (
            model.model(torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0].numpy()
        )
    return rows


class Watch(Wrapped):
    """Keeps the hidden rows of every call by their place in the cache."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, library())
        self.rows: dict[int, np.ndarray] = {}

    def run(self, cache: Any, rows: int, n_logits: int) -> None:
        super().run(cache, rows, n_logits)
        io: Io = cache[2]
        self.rows.update({int(io.past_len[0]) + i: io.hidden[i].copy() for i in range(rows)})


def target(folder: Path, plan: Any, hidden: int = HIDDEN) -> Ort:
    """The saved graph as an engine that says how many columns `hidden` has."""
    shape = VOCAB, plan.layers, 2, 16, plan.capacity, plan.widths
    return Ort(folder / "target.onnx", *shape, 1, engine_library(), hidden)


@pytest.mark.parametrize("dialect", ["ort", "specc-cpu"])
def test_hidden_of_all_rows(folder: Path, tmp_path: Path, dialect: str) -> None:
    """Prefill's rows and decoded rows, in both dialects; the logits stay what they are without the output."""
    from specc.contracts.scheme import Scheme
    from specc.exporter.graph.files import write_graph
    from specc.exporter.lower.cpu import lower_cpu

    plan = plan_of(folder)
    graph = float_graph(folder, hidden=True)
    if dialect == "specc-cpu":
        graph = lower_cpu(graph, Scheme("w8", "w8", 32), None)
    write_graph(graph, tmp_path, "target", None)
    watch, prompt = Watch(target(tmp_path, plan)), some_ids(20)
    with Model.from_parts(watch, n_ids=VOCAB, context=plan.context) as model, model.session() as session:
        text = [
            *prompt,
            *session.run(prompt.tolist(), temperature=0, max_new_tokens=6, ignore_eos=True).tokens,
        ]
    expected = hidden_rows(folder, np.array(text[:-1]))
    got = np.stack([watch.rows[i] for i in range(len(expected))])
    bound = 1e-4 if dialect == "ort" else 0.1
    assert np.abs(got - expected).max() < bound * np.abs(expected).max()


def test_undeclared_hidden_is_refused(folder: Path, tmp_path: Path) -> None:
    """A graph with the output and a manifest without it, and the other way round."""
    from specc.exporter.graph.files import write_graph

    plan = plan_of(folder)
    for has, says in ((True, 0), (False, HIDDEN)):
        write_graph(float_graph(folder, hidden=has), tmp_path, "target", None)
        with pytest.raises(SpeccError, match="hidden"):
            Model.from_parts(target(tmp_path, plan, says), n_ids=VOCAB, context=plan.context)
