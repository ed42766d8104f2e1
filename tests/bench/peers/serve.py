"""One engine under measurement, in a process of its own: reads a JSON command a line, answers a JSON line.

    python serve.py NAME SOURCE CONTEXT

Commands: {"rows": R, "past": P} -> {"ms": one call of R rows at P cached tokens, in a burst};
          {"prompt": ids, "new": N, "spec": bool} -> {"first_ms", "seconds", "tokens", "ids"}: greedy,
          to the end token;
          {"info": true} -> {"name", "version", "system", "peak_mb", "start_s", "drafts"}.
Started by bench_peers.py; the first line is {"ready": NAME}, or {"missing": why} with exit status 3.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

THREADS = 2
BURST = 5

PEERS = {
    "specc": "peer_specc",
    "llama.cpp": "peer_llama",
    "onnxruntime-genai": "peer_genai",
    "openvino-genai": "peer_openvino",
    "transformers": "peer_transformers",
}


class Peer(Protocol):
    """What each peer_*.py makes."""

    version: str
    system: str
    drafts: bool
    """Whether it can be asked to speculate."""

    def fill(self, past: int) -> None:
        """Put `past` tokens into the cache."""

    def rows(self, rows: int, past: int) -> None:
        """One call of so many rows behind `past` cached tokens, all logits asked for where the engine can."""

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        """Greedy, from an empty cache, at most `new` tokens, until the end token."""


def timed(tokens: Any, new: int, end: int) -> dict[str, Any]:
    """Takes tokens from an iterator: time to the first, and of the others."""
    start, first, out = time.perf_counter(), 0.0, []
    for token in tokens:
        first = first or time.perf_counter()
        out.append(int(token))
        if len(out) == new or out[-1] == end:
            break
    now = time.perf_counter()
    return {"first_ms": 1e3 * (first - start), "seconds": now - first, "tokens": len(out) - 1, "ids": out}


def burst(peer: Peer, rows: int, past: int) -> float:
    """Seconds of one call as decoding makes them: the first wakes the threads, the median of the others
    counts.
    """
    if hasattr(peer, "rewind"):
        peer.rewind(past)
    times = []
    for _ in range(BURST):
        begin = time.perf_counter()
        peer.rows(rows, past)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def answer(peer: Peer, command: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """One command."""
    if "rows" in command:
        if state["filled"] != command["past"]:
            peer.fill(command["past"])
            state["filled"] = command["past"]
        return {"ms": 1e3 * burst(peer, command["rows"], command["past"])}
    if "prompt" in command:
        return peer.generate(command["prompt"], command["new"], command["spec"])
    return {
        "version": peer.version,
        "system": peer.system,
        "drafts": peer.drafts,
        "peak_mb": peak_mb(),
        "start_s": state["started"],
    }


def peak_mb() -> float:
    """Peak memory of this process alone (getrusage also remembers the program that started it)."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Serve one peer until the input ends."""
    name, source, context = sys.argv[1:4]
    os.environ["OMP_NUM_THREADS"] = str(THREADS)
    answers = os.fdopen(os.dup(1), "w")  # what a peer itself prints goes to standard error
    os.dup2(2, 1)
    start = time.perf_counter()
    try:
        peer: Peer = import_module(PEERS[name]).Engine(source, int(context))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(
            json.dumps({"missing": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}),
            file=answers,
        )
        raise SystemExit(3) from None
    print(json.dumps({"ready": name}), file=answers, flush=True)
    state = {"started": time.perf_counter() - start, "filled": -1}
    for line in sys.stdin:
        print(json.dumps(answer(peer, json.loads(line), state)), file=answers, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.modules["serve"] = sys.modules["__main__"]
    main()
