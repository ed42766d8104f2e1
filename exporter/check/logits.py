"""After each stage: logits of the graph, run by ONNX Runtime, against those of the Hugging Face module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.scheme import Scheme
from specc.errors import EnvironmentFault
from specc.exporter.check.memory import release_memory
from specc.exporter.check.sample_text import encode_sample
from specc.exporter.checkpoint.tokenizer import TokenizerJson
from specc.exporter.graph.graph import Graph
from specc.exporter.graph.session import Runner, open_runner

FLOAT_BOUND = 2e-4  # largest logit difference over the largest logit, for float graphs
KL_BOUNDS = {
    "fp32": 1e-6,
    "w8": 0.1,
    "w4": 1.0,
    "dynamic-int8": float("inf"),
    "fp16": 1e-3,
    "bf16": 1e-2,
    "int8": 1.0,
    "fp8": 0.3,
}  # nats per row, against the float model
FULL_SLOTS = 2048  # longer contexts are not filled; their last positions are checked behind a short past
FAR_PAST = 17
PAST_WINDOW = 32  # slots behind the largest window that are filled


class StageError(EnvironmentFault):
    """A stage changed what the model computes: the stage, the call and the size of the error."""

    def __init__(self, stage: str, past: int, rows: int, size: float, bound: float, unit: str) -> None:
        super().__init__(
            f"After the stage {stage!r} the call with past {past} and {rows} rows is off by {size:.3g} {unit}"
            f" (bound {bound:.3g}) and nothing is written: specc cannot build what this checkpoint "
            "computes; take another checkpoint, or another scheme where the stage is 'quantize'."
        )
        self.stage, self.past, self.rows, self.size = stage, past, rows, size


@dataclass(frozen=True)
class Case:
    """One call: `rows` rows at cache slot `past`, positions counted from `offset`."""

    past: int
    rows: int
    offset: int = 0


@dataclass(frozen=True)
class Reference:
    """Results of the float module: ids int64 [n], and for each case logits fp32 [rows, vocab]."""

    ids: np.ndarray
    cases: dict[Case, np.ndarray]


def make_cases(plan: EnginePlan, window: int = 0) -> list[Case]:
    """A first call, later calls, every width of the plan, and calls at the end of the context.

    `window`: the largest window of a layer; the cases reach past it wherever the context does.
    """
    last = min(plan.context, max(FULL_SLOTS, window + PAST_WINDOW))
    wanted = [
        (0, 1),
        (0, 5),
        (1, 2),
        (10, 5),
        (33, 1),
        *((FAR_PAST, width) for width in plan.widths),
        (last - 5, 5),
        (last - 1, 1),
    ]
    near = [Case(past, rows) for past, rows in dict.fromkeys(wanted) if past >= 0 and past + rows <= last]
    offset = plan.context - FAR_PAST - 5
    return [*near, Case(FAR_PAST, 5, offset)] if offset > 0 else near


def compute_reference(model: Any, plan: EnginePlan, tokens: TokenizerJson, window: int = 0) -> Reference:
    """Logits of the float module, without a cache, for every case; the module is unchanged afterwards."""
    cases = make_cases(plan, window)
    ids = encode_sample(tokens, max(c.past + c.rows for c in cases), plan.spec.vocab)
    before, model.config.num_hidden_layers = model.config.num_hidden_layers, plan.layers
    try:
        near = [c for c in cases if not c.offset]
        near_rows = sorted({r for c in near for r in range(c.past, c.past + c.rows)})
        logits = group_by_case(near, compute_rows(model, ids, near_rows))
        for case in (c for c in cases if c.offset):
            rows = list(range(case.past, case.past + case.rows))
            far = compute_rows(model, ids[: case.past + case.rows], rows, case.offset)
            logits.update(group_by_case([case], far))
    finally:
        model.config.num_hidden_layers = before
    return Reference(ids, logits)


def compute_rows(model: Any, ids: np.ndarray, rows: list[int], offset: int = 0) -> dict[int, np.ndarray]:
    """Row -> logits fp32 [vocab] of the module over the whole text; positions start at `offset`."""
    with torch.no_grad():
        position = torch.arange(offset, offset + len(ids))[None]
        keep = torch.tensor(rows)
        out = model(
            input_ids=torch.from_numpy(ids)[None], position_ids=position, use_cache=False, logits_to_keep=keep
        )
    return dict(zip(rows, out.logits[0].float().numpy(), strict=True))


def compute_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Logits fp32 [n, vocab] of the module for every position of ids [n]."""
    rows = list(range(len(ids)))
    logits = compute_rows(model, ids, rows)
    return np.stack([logits[row] for row in rows])


def group_by_case(cases: list[Case], logits: dict[int, np.ndarray]) -> dict[Case, np.ndarray]:
    """The rows of each case, [rows, vocab]."""
    return {c: np.stack([logits[r] for r in range(c.past, c.past + c.rows)]) for c in cases}


def check_stage(
    graph: Graph, expected: Reference, plan: EnginePlan, stage: str, scheme: Scheme | None = None
) -> float:
    """Error of a stage. Raises StageError, which names the worst call, when it is above the bound or NaN.

    Float stages (no scheme): the largest logit difference over the largest logit, of each call. Quantized
    stages: the Kullback-Leibler divergence, mean over the rows of all calls; a single row (such as the first
    of a text) may be far off in any quantized model.
    """
    kinds = () if scheme is None else (scheme.layers, scheme.head, *([plan.cache] if plan.cache else []))
    bound = max((KL_BOUNDS[kind] for kind in kinds), default=FLOAT_BOUND)
    measure, unit = (
        (relative_error, "of the largest logit") if scheme is None else (mean_divergence, "nats a row")
    )
    sizes = {
        case: measure(logits, expected.cases[case])
        for case, logits in run_cases(open_runner(graph), expected, plan)
    }
    release_memory()
    worst = max(sizes, key=lambda case: sizes[case] if sizes[case] == sizes[case] else float("inf"))
    rows = sum(case.rows for case in sizes)
    size = sizes[worst] if scheme is None else sum(sizes[case] * case.rows for case in sizes) / rows
    if not size <= bound or size != size:
        raise StageError(stage, worst.past, worst.rows, size, bound, unit)
    return size


def run_cases(run: Runner, expected: Reference, plan: EnginePlan) -> Iterator[tuple[Case, np.ndarray]]:
    """(case, logits) for every case; the cache is filled once, and each case rolls back to its own past."""
    run.prefill(expected.ids, chunk=plan.chunk)
    for case in sorted(expected.cases, key=lambda c: c.offset):
        if case.offset:
            run.prefill(
                expected.ids[: case.past], position=case.offset + np.arange(case.past), chunk=plan.chunk
            )
        ids = expected.ids[case.past : case.past + case.rows]
        position = case.offset + case.past + np.arange(case.rows)
        yield case, run.call(ids, case.past, position)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest absolute difference over the largest absolute value of `wanted`; NaN when `got` holds a NaN."""
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def mean_divergence(got: np.ndarray, wanted: np.ndarray) -> float:
    """Mean over rows of KL(wanted || got), in nats, from logits [rows, vocab]."""
    p, q = log_softmax(wanted), log_softmax(got)
    return float(np.maximum((np.exp(p) * (p - q)).sum(-1), 0).mean())


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax of each row, in double."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    shifted: np.ndarray = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return shifted
