"""A drafter of one's own: proposes what follows the last tokens in a text that the answer may quote.

python examples/custom_drafter.py bundles/smollm2-135m-cpu README.md "Quote the first paragraph."

The answer does not depend on the drafter: the target verifies every token. Speculation is off without a
certificate for this device; run `specc gate BUNDLE` first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specc import DraftContext, Drafter, Model, Prompter, read_bundle
from specc.runtime import Ort, engine_library


class QuoteDrafter(Drafter):
    """Looks the last two tokens up in a source text. Deterministic: its proposals need no distribution q."""

    name = "quote"

    def __init__(self, source: Sequence[int]) -> None:
        self.source = list(source)
        self.places = {pair: i + 2 for i, pair in enumerate(zip(source, source[1:], strict=False))}

    def propose(self, state: Any, context: DraftContext) -> Sequence[int]:
        """At most context.k tokens; none where the source does not hold the last two."""
        place = self.places.get(tuple(context.tokens[-2:].tolist()))
        return [] if place is None else self.source[place : place + context.k]


def open_engine(folder: Path, manifest: dict[str, Any]) -> Ort:
    """The target engine of a CPU bundle."""
    part, threads = manifest["engines"]["target"], manifest["plan"]["threads"]
    shape = (part["vocab"], part["layers"], part["kv_heads"], part["head_dim"], part["capacity"])
    hidden = part.get("hidden", 0)
    return Ort(folder / part["file"], *shape, tuple(part["widths"]), threads, engine_library(), hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("source", type=Path, help="a text file")
    parser.add_argument("prompt")
    arguments = parser.parse_args()

    bundle = read_bundle(arguments.bundle)
    manifest, prompter = bundle.manifest, Prompter.from_bundle(bundle)
    plan, part = manifest["plan"], manifest["tokenizer"]
    drafter = QuoteDrafter(prompter.encode_raw(arguments.source.read_text(encoding="utf-8")))
    with Model.open(arguments.bundle) as shipped:
        certificate = shipped.info.certificate

    parts = {"n_ids": part["ids"], "context": plan["context"], "k_max": plan["k"], "eos": part["eos"]}
    with Model.from_parts(open_engine(arguments.bundle, manifest), drafter, **parts) as model:
        model.apply(certificate)
        with model.session() as session:
            ids = prompter.encode_user(arguments.prompt)
            result = session.run(ids, temperature=0, max_new_tokens=96, text=False)
    print(Tokenizer.from_file(str(arguments.bundle / part["file"])).decode(result.tokens))
    print(f"{result.stats['accepted']} of {result.stats['proposed']} proposed tokens accepted")


if __name__ == "__main__":
    main()
