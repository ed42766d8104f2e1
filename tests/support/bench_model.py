"""What the tests of `specc bench` share: a table model for the fake bundle, and the keys of a row."""

from __future__ import annotations

from typing import Any

from support.table_models import Ahead, chain

from specc.runtime import Model, library

ROW_KEYS = {
    "class",
    "mode",
    "temperature",
    "rule",
    "tokens_per_second",
    "acceptance_rate",
    "tokens_per_target_call",
    "ttft_ms",
    "itl_ms_p50",
    "itl_ms_p99",
    "peak_mb",
}


def table_model(drafter: Any = None, **parts: Any) -> Model:
    """Greedy text is b + 1 after b, over the ids of the fake bundle's tokenizer."""
    return Model.table(chain(258, 14.0), drafter=drafter or Ahead(), context=128, loaded=library(), **parts)
