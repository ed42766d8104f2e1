"""transformers over the dequantized weights of the same file, fp32; its own prompt lookup drafts on
request.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from serve import THREADS
from transformers import DynamicCache


class Engine:
    """SOURCE is a folder of the float checkpoint."""

    drafts = True

    def __init__(self, source: str, context: int) -> None:
        torch.set_num_threads(THREADS)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32
        ).eval()
        self.version = f"transformers {transformers.__version__}"
        self.system = f"torch {torch.__version__}"
        self.cache: Any = None

    @torch.inference_mode()
    def rows(self, rows: int, past: int) -> None:
        extra = self.cache.get_seq_length() - past
        if extra:
            self.cache.crop(-extra)
        self.model(torch.arange(100, 100 + rows)[None], past_key_values=self.cache)

    @torch.inference_mode()
    def fill(self, past: int) -> None:
        self.cache = DynamicCache()
        ids = torch.tensor([[100 + i % 500 for i in range(past)]])
        self.model(ids, past_key_values=self.cache, logits_to_keep=1)

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        clock, prompt = Clock(), torch.tensor([ids])
        options = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 4} if spec else {}
        out = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            do_sample=False,
            streamer=clock,
            **options,
        )[0, len(ids) :].tolist()
        now = time.perf_counter()
        first = clock.times[0]
        beside = clock.counts[0]
        return {
            "first_ms": 1e3 * (first - clock.start),
            "seconds": now - first,
            "tokens": len(out) - beside,
            "ids": out,
        }


class Clock:
    """A streamer that only notes when tokens come; its first call brings the prompt."""

    def __init__(self) -> None:
        self.start, self.seen = time.perf_counter(), False
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, value: Any) -> None:
        if self.seen:
            self.times.append(time.perf_counter())
            self.counts.append(int(value.numel()))
        self.seen = True

    def end(self) -> None:
        """Nothing."""
