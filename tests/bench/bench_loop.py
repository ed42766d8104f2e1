"""What a bundle costs besides its engine: time to open, and the loop's share of a round.

    python tests/bench/bench_loop.py BUNDLE

Overhead is everything of a round but the target's and the draft's engine calls: sampling, acceptance, commit,
text. Bounds: a bundle opens in under 1 s; overhead under 5 % of a round at a vocabulary of 49,152.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from support.prompts import PROMPTS

from specc.contracts.bundle.manifest import read_bundle
from specc.generate.run import GenerateRequest, encode_prompt
from specc.runtime import Model, Session

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "rejection T=0.8": {"temperature": 0.8},
    "rejection T=0.8 top_p=0.95": {"temperature": 0.8, "top_p": 0.95},
    "rejection T=0.8 top_k=50": {"temperature": 0.8, "top_k": 50},
    "coupled T=0.8": {"temperature": 0.8, "rule": "coupled"},
}


def overhead(session: Session, prompts: list[list[int]], options: dict[str, Any], speculation: bool) -> float:
    """Median share of decoding time that is not engine time."""
    shares = []
    for i, prompt in enumerate(prompts):
        run = session.run(prompt, text=False, seed=i, max_new_tokens=64, speculation=speculation, **options)
        engine = run.stats["target_seconds"] + (
            run.stats["draft_seconds"] if run.stats["draft_calls"] else 0.0
        )
        shares.append(1 - engine / run.stats["seconds"])
    return statistics.median(shares)


def main() -> None:
    """Measure one bundle and print JSON."""
    folder = Path(sys.argv[1])
    opened = []
    for _ in range(5):
        start = time.perf_counter()
        Model.open(folder).close()
        opened.append(time.perf_counter() - start)
    prompts = [encode_prompt(read_bundle(folder), GenerateRequest(text)) for text in PROMPTS[::2]]
    with Model.open(folder) as model, model.session() as session:
        shares = {
            f"{name}, {'spec' if on else 'plain'}": round(overhead(session, prompts, options, on), 4)
            for name, options in MODES.items()
            for on in (False, True)
        }
    found = {"command": " ".join(["python", *sys.argv]), "open_s": round(statistics.median(opened), 3)}
    print(json.dumps({**found, "overhead_share_of_a_round": shares}, indent=1))


if __name__ == "__main__":
    main()
