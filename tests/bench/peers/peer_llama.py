"""llama-cpp-python; its own prompt lookup drafts where speculation is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from serve import THREADS, timed


class Engine:
    """One context for plain decoding; others, for all logits and for drafting, only once they are
    asked for.
    """

    drafts = True

    def __init__(self, source: str, context: int) -> None:
        self.source, self.context = source, context
        self.llama = self.made()
        self.system = llama_cpp.llama_print_system_info().decode().strip()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def made(self, **options: Any) -> Any:
        """A context over the same file, which is mapped once."""
        threads = {"n_threads": THREADS, "n_threads_batch": THREADS}
        return llama_cpp.Llama(
            self.source, n_ctx=self.context, n_batch=512, verbose=False, **threads, **options
        )

    @cached_property
    def verify(self) -> Any:
        """With the logits of every row."""
        return self.made(logits_all=True)

    @cached_property
    def drafted(self) -> Any:
        """With prompt lookup."""
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=4, max_ngram_size=4)
        return self.made(logits_all=True, draft_model=lookup)

    def rows(self, rows: int, past: int) -> None:
        one = self.llama if rows == 1 else self.verify
        if one.n_tokens < past:
            self.put(one, past)
        one.n_tokens = past
        one.eval(list(range(100, 100 + rows)))

    def put(self, one: Any, past: int) -> None:
        one.reset()
        one.eval([100 + i % 500 for i in range(past)])

    def fill(self, past: int) -> None:
        self.put(self.llama, past)
        self.verify.reset()

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        one = self.drafted if spec else self.llama
        one.reset()
        tokens = one.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True)
        found = timed(tokens, new, one.token_eos())
        tokens.close()
        return found
