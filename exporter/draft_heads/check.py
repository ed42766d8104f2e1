"""A draft head's graph after each stage, run by ONNX Runtime, compared with its module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.scheme import Scheme
from specc.exporter.check.logits import FLOAT_BOUND, KL_BOUNDS, StageError, mean_divergence, relative_error
from specc.exporter.draft_heads.modules import FeatureHead, MedusaHead, compute_feature_logits
from specc.exporter.graph.graph import Graph
from specc.exporter.graph.session import open_runner

ROWS, PAST = 9, 4


@dataclass(frozen=True)
class DraftReference:
    """Inputs and the float module's logits; of a feature head the rows from PAST on are compared."""

    hidden: np.ndarray
    ids: np.ndarray | None
    logits: np.ndarray


def compute_draft_reference(head: FeatureHead | MedusaHead, plan: EnginePlan) -> DraftReference:
    """Logits of the module on random features, drawn from a separate generator."""
    draws = torch.Generator().manual_seed(5)
    width = head.width if isinstance(head, MedusaHead) else head.enter.fc.out_features
    hidden = torch.randn(1 if isinstance(head, MedusaHead) else ROWS, width, generator=draws)
    with torch.no_grad():
        if isinstance(head, MedusaHead):
            return DraftReference(hidden.numpy(), None, head(hidden)[0].numpy())
        ids = torch.randint(0, head.model.config.vocab_size, (1, ROWS), generator=draws)
        logits = compute_feature_logits(head, ids, hidden[None])
    return DraftReference(hidden.numpy(), ids[0].numpy(), logits[0].numpy())


def check_draft_head(
    graph: Graph, expected: DraftReference, stage: str, scheme: Scheme | None = None
) -> float:
    """Error of a stage as in check_stage: relative for float stages, nats per row with quantized weights.

    Raises StageError above the bound.
    """
    got = run_draft_head(graph, expected)
    past = 0 if expected.ids is None else PAST
    wanted = expected.logits[past:]
    size = relative_error(got, wanted) if scheme is None else mean_divergence(got, wanted)
    bound = FLOAT_BOUND if scheme is None else max(KL_BOUNDS[scheme.layers], KL_BOUNDS[scheme.head])
    if not size <= bound:
        unit = "of the largest logit" if scheme is None else "nats a row"
        raise StageError(stage, past, len(wanted), size, bound, unit)
    return size


def run_draft_head(graph: Graph, expected: DraftReference) -> np.ndarray:
    """Logits of the graph; of a feature head those of the second of two calls over one KV cache."""
    run = open_runner(graph)
    if expected.ids is None:
        logits: np.ndarray = run.session.run(["logits"], {"hidden": expected.hidden})[0]
        return logits
    run_feature_call(run, expected, slice(0, PAST), 0)
    return run_feature_call(run, expected, slice(PAST, ROWS), PAST)


def run_feature_call(run: Any, expected: DraftReference, rows: slice, past: int) -> np.ndarray:
    """Call a feature head once, its KV cache updated in place; logits fp32 [R, Vd]."""
    assert expected.ids is not None
    ids = expected.ids[rows].astype(np.int64)[None]
    feeds = {
        "input_ids": ids,
        "hidden": np.ascontiguousarray(expected.hidden[rows]),
        "past_len": np.array([past], np.int32),
        "position": np.arange(past, past + ids.size, dtype=np.int64)[None],
        "logit_rows": np.arange(ids.size, dtype=np.int64),
    }
    binding = run.session.io_binding()
    for name, array in (*feeds.items(), *run.caches.items()):
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    logits = np.empty((ids.size, run.vocab), np.float32)
    hidden = np.empty_like(feeds["hidden"])
    binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
    binding.bind_output(find_hidden_output(run), "cpu", 0, np.float32, hidden.shape, hidden.ctypes.data)
    for name, array in run.caches.items():
        binding.bind_output(
            name.replace("past", "present"), "cpu", 0, np.float32, array.shape, array.ctypes.data
        )
    run.session.run_with_iobinding(binding)
    return logits


def find_hidden_output(run: Any) -> str:
    """The name of the output with the next features."""
    return next(str(v.name) for v in run.session.get_outputs() if v.name.startswith("hidden"))
