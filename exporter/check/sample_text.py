"""Token ids of ordinary text, by the checkpoint's own tokenizer, for the checks after each stage."""

from __future__ import annotations

import numpy as np

from specc.exporter.checkpoint.tokenizer import TokenizerJson

TEXT = """The old lighthouse stood at the edge of the cliff, its white paint peeling after years of \
salt and wind. Every
evening the keeper climbed the stairs to light the lamp, and every morning he climbed them again to \
put it out. His
father had done the same before him. Ships passed far out at sea, and their captains were glad of \
the steady beam.
def area(width, height): return width * height  # in square metres, e.g. area(3, 4) == 12
Water rises from the oceans, forms clouds and falls back as rain or snow. Some of it flows into \
rivers and lakes, some
sinks into the ground. 1. Preheat the oven to 180 degrees. 2. Mix 250 g of flour with two eggs. 3. \
Bake for 25 minutes.
"What is the capital of France?" she asked. "Paris," he said, "and that of Italy is Rome."
"""


def encode_sample(tokens: TokenizerJson, count: int, vocab: int) -> np.ndarray:
    """int64 [count] ids below `vocab`; the text is repeated as often as necessary."""
    from tokenizers import Tokenizer

    ids = [
        i for i in Tokenizer.from_str(tokens.text).encode(TEXT, add_special_tokens=False).ids if i < vocab
    ] or [0]
    return np.resize(np.array(ids, np.int64), count)
