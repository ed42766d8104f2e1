"""Text that no other stage of the build reads, to measure the loss from quantizing: prose, dialogue, code."""

from __future__ import annotations

import numpy as np

from specc.exporter.checkpoint.tokenizer import TokenizerJson

TEXT = """When the train finally left the station it was almost dark. Marta found a seat by the \
window, put her bag on
her knees and watched the last houses of the town slide past. She had lived there for eleven years, \
and yet she could
not remember ever having seen the river from this side. The water was high, brown and fast, and branches
floated on it.

"Is this seat taken?" asked an old man with a violin case.

"No, please sit down," she said. "Are you going far?"

"Only as far as the coast. My daughter runs a small hotel there, and every autumn, when the guests \
have gone, she lets
me play in the empty dining room. The walls are made of wood, and it sounds better than most of the \
halls in which I was
paid to play."

A battery stores energy in chemical form. When it is connected to a circuit, electrons flow from \
the negative terminal
through the circuit to the positive terminal, while ions move through the electrolyte to balance \
the charge. Most
batteries in phones use lithium, because it is the lightest metal and gives up its outer electron \
easily. Over several
hundred cycles of charging, side reactions use up some of the lithium, and the capacity slowly falls.

To repair a flat tyre, first remove the wheel. Use two levers to lift one side of the tyre over the \
rim, then pull out
the inner tube. Pump it up a little and hold it under water: bubbles show where the hole is. Dry \
the tube, roughen the
place with sandpaper, spread a thin layer of glue and wait five minutes. Press the patch on firmly, \
and check the inside
of the tyre for thorns or pieces of glass before you put everything back together.

def count_words(path):
    counts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            for word in line.lower().split():
                counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: item[1], reverse=True)

The library opens at nine o'clock from Monday to Friday and at ten on Saturdays. Members may borrow \
up to eight books
for three weeks. A book can be renewed twice, either at the desk or online, unless another reader \
has asked for it. If
a book is lost, the member pays the price of a new copy.
"""
COUNT = 448  # tokens; the rest of a longer tokenization is not used


def encode_held_out(tokens: TokenizerJson, context: int, vocab: int, bos: int | None = None) -> np.ndarray:
    """int64 [n], n <= min(COUNT, context): the text's ids below `vocab`, after `bos` where there is one."""
    from tokenizers import Tokenizer

    ids = [i for i in Tokenizer.from_str(tokens.text).encode(TEXT, add_special_tokens=False).ids if i < vocab]
    first = [bos] if bos is not None and 0 <= bos < vocab else []
    return np.array([*first, *ids][: min(COUNT, context)], np.int64)
