"""openvino-genai, which reads the GGUF file; its own prompt lookup drafts where speculation is asked for.

Rows go through the same model's OpenVINO graph, saved by openvino-genai beside the file.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as og
from serve import THREADS

OPTIONS = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}


class Engine:
    """SOURCE is the GGUF file, in a folder that may be written to."""

    drafts = True

    def __init__(self, source: str, context: int) -> None:
        self.source = Path(source)
        graph = self.source.parent / "openvino_model.xml"
        loaded = {} if graph.exists() else {"enable_save_ov_model": True}
        self.pipeline = og.LLMPipeline(
            str(graph.parent if graph.exists() else source), "CPU", **OPTIONS, **loaded
        )
        self.graph = graph
        self.version = f"openvino-genai {og.__version__}"
        self.system = f"openvino {ov.__version__}"

    @cached_property
    def lookup(self) -> Any:
        """A pipeline with prompt lookup."""
        return og.LLMPipeline(str(self.graph.parent), "CPU", prompt_lookup=True, **OPTIONS)

    @cached_property
    def request(self) -> Any:
        """The graph with its state."""
        core = ov.Core()
        return core.compile_model(core.read_model(self.graph), "CPU", OPTIONS).create_infer_request()

    def rows(self, rows: int, past: int) -> None:
        at = int(self.request.query_state()[0].state.shape[2])
        self.call(list(range(100, 100 + rows)), at)

    def fill(self, past: int) -> None:
        self.request.reset_state()
        self.call([100 + i % 500 for i in range(past)], 0)

    def rewind(self, past: int) -> None:
        """Its state has no length that could be set: each tensor is cut."""
        for one in self.request.query_state():
            if one.state.shape[2] > past:
                one.state = ov.Tensor(np.ascontiguousarray(one.state.data[:, :, :past]))

    def call(self, ids: list[int], past: int) -> None:
        n = len(ids)
        self.request.infer(
            {
                "input_ids": np.array([ids], np.int64),
                "attention_mask": np.ones((1, past + n), np.int64),
                "position_ids": np.arange(past, past + n, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        config = og.GenerationConfig(max_new_tokens=new, do_sample=False, apply_chat_template=False)
        if spec:
            config.num_assistant_tokens, config.max_ngram_size = 4, 4
        times: list[float] = []
        start = time.perf_counter()

        def seen(_: Any) -> Any:
            times.append(time.perf_counter())
            return og.StreamingStatus.RUNNING

        tokens = og.TokenizedInputs(
            ov.Tensor(np.array([ids], np.int64)), ov.Tensor(np.ones((1, len(ids)), np.int64))
        )
        out = (self.lookup if spec else self.pipeline).generate(tokens, config, seen).tokens[0]
        now = time.perf_counter()
        first = times[0] if times else now
        return {
            "first_ms": 1e3 * (first - start),
            "seconds": now - first,
            "tokens": len(out) - 1,
            "ids": list(out),
        }
