"""onnxruntime-genai over a folder that its own model builder wrote (int4, accuracy level 4, block 32)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime_genai as og
from serve import timed


class Engine:
    """It has no drafting without a draft model of its own format. Its verification call returns one row of
    logits.
    """

    drafts, system = False, ""

    def __init__(self, source: str, context: int) -> None:
        self.model, self.context = og.Model(source), context
        self.version = f"onnxruntime-genai {og.__version__}"
        end = json.loads((Path(source) / "genai_config.json").read_text())["model"]["eos_token_id"]
        self.end = end[0] if isinstance(end, list) else end
        self.generator: Any = None

    def rows(self, rows: int, past: int) -> None:
        self.generator.rewind_to(past)
        self.generator.append_tokens(list(range(100, 100 + rows)))

    def fill(self, past: int) -> None:
        self.generator = self.start(past + 64)
        self.generator.append_tokens([100 + i % 500 for i in range(past)])

    def start(self, length: int) -> Any:
        params = og.GeneratorParams(self.model)
        params.set_search_options(max_length=min(length, self.context), do_sample=False)
        return og.Generator(self.model, params)

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        return timed(self.tokens(ids, new), new, self.end)

    def tokens(self, ids: list[int], new: int) -> Iterator[int]:
        generator = self.start(len(ids) + new + 1)
        generator.append_tokens(ids)
        while not generator.is_done():
            generator.generate_next_token()
            yield int(generator.get_next_tokens()[0])
