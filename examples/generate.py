"""Open a bundle, stream an answer, print what speculation saved.

python examples/generate.py bundles/smollm2-135m-cpu "Name three rivers." --temperature 0
"""

from __future__ import annotations

import argparse
from pathlib import Path

from specc import Model, Prompter, read_bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    arguments = parser.parse_args()

    ids = Prompter.from_bundle(read_bundle(arguments.bundle)).encode_user(arguments.prompt)
    options = {"temperature": arguments.temperature, "max_new_tokens": arguments.max_new_tokens}
    with Model.open(arguments.bundle) as model, model.session() as session:
        for event in session.generate(ids, **options):
            print(event.text, end="", flush=True)
        print()
        stats = session.stats

    speed = stats["emitted"] / max(stats["seconds"], 1e-9)
    per_call = stats["emitted"] / max(stats["target_calls"], 1)
    print(f"{stats['emitted']} tokens, {speed:.0f} tokens/s, {per_call:.2f} tokens a target call")
    if stats["enabled"]:
        print(f"speculation on: {stats['accepted']} of {stats['proposed']} proposed tokens accepted")
    else:
        print(f"speculation off: {', '.join(stats['reasons'])}")


if __name__ == "__main__":
    main()
