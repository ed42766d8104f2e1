"""One engine under measurement, in a process of its own: reads a JSON command a line, answers a JSON line.

Commands: {"rows": R, "past": P} -> {"ms": one call of R rows at P cached tokens, in a burst of six};
          {"prompt": ids, "new": N, "spec": bool} -> {"first_ms", "seconds", "tokens", "ids"};
          {"info": true} -> {"name", "version", "system", "peak_mb", "start_s"}.
Run by bench_peers.py; a peer that is not installed exits with status 3 and its reason.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

THREADS, CONTEXT = 2, 4096


class Specc:
    """The bundle's own engine through the C backend, and whole generations through the C loop."""

    def __init__(self, source: str) -> None:
        from specc.gate.equality import engine_of
        from specc.runtime import Model, device, engine_library, library
        from specc.runtime._ffi import ffi

        manifest = json.loads((Path(source) / "manifest.json").read_text())
        self.ffi, self.manifest = ffi, manifest
        part = engine_of(Path(source), manifest, THREADS, engine_library())
        assert part is not None
        self.backend, self.keep = part.native(library())
        cache, self.io = ffi.new("void **"), ffi.new("specc_io *")
        library().check(self.backend.open(self.backend.self, cache, self.io))
        self.cache = cache[0]
        self.model = Model.open(source, threads=THREADS)
        self.session = self.model.session()
        self.system = f"kernels {ffi.string(library().c.specc_kernels()).decode()}, {device()[0]}"
        self.version = "specc"

    def rows(self, rows: int, past: int) -> None:
        for i in range(rows):
            self.io.input_ids[i], self.io.position[i], self.io.logit_rows[i] = 100 + i, past + i, i
        self.io.past_len[0] = past
        assert self.backend.run(self.cache, rows, rows) == 0

    def fill(self, past: int) -> None:
        chunk = max(self.manifest["engines"]["target"]["widths"])
        for at in range(0, past, chunk):
            for i in range(chunk):
                self.io.input_ids[i], self.io.position[i] = 100 + (at + i) % 500, at + i
            self.io.logit_rows[0], self.io.past_len[0] = 0, at
            assert self.backend.run(self.cache, chunk, 1) == 0

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        options = {"temperature": 0.0, "max_new_tokens": new, "ignore_eos": True}
        result = self.session.run(ids, text=False, speculation=spec, **options)
        stats = result.stats
        return {
            "first_ms": 1e3 * stats["prefill_seconds"], "seconds": stats["seconds"], "tokens": stats["emitted"],
            "ids": result.tokens, "tokens_per_call": stats["emitted"] / max(stats["target_calls"], 1),
        }  # fmt: skip


class LlamaCpp:
    """llama-cpp-python; its prompt lookup drafts where speculation is asked for."""

    def __init__(self, source: str) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        common = {"n_ctx": CONTEXT, "n_threads": THREADS, "n_threads_batch": THREADS, "verbose": False, "n_batch": 512}
        self.llama = llama_cpp.Llama(source, **common)
        self.verify = llama_cpp.Llama(source, logits_all=True, **common)
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=4, max_ngram_size=4)
        self.drafted = llama_cpp.Llama(source, draft_model=lookup, logits_all=True, **common)
        self.system = llama_cpp.llama_print_system_info().decode().strip()
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def rows(self, rows: int, past: int) -> None:
        one = self.llama if rows == 1 else self.verify
        one.n_tokens = past
        one.eval(list(range(100, 100 + rows)))

    def fill(self, past: int) -> None:
        for one in (self.llama, self.verify):
            one.reset()
            one.eval([100 + i % 500 for i in range(past)])

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        one = self.drafted if spec else self.llama
        one.reset()
        start, out, first = time.perf_counter(), [], 0.0
        for token in one.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True):
            first = first or time.perf_counter()
            out.append(int(token))
            if len(out) == new:
                break
        seconds = time.perf_counter() - first
        return {"first_ms": 1e3 * (first - start), "seconds": seconds, "tokens": len(out) - 1, "ids": out}


class GenAi:
    """onnxruntime-genai over a folder that its own model builder wrote (int4, accuracy level 4, block 32)."""

    def __init__(self, source: str) -> None:
        import onnxruntime_genai as og

        self.og, self.model = og, og.Model(source)
        self.system, self.version = "", f"onnxruntime-genai {og.__version__}"
        self.generator: Any = None

    def rows(self, rows: int, past: int) -> None:
        self.generator.rewind_to(past)
        self.generator.append_tokens(list(range(100, 100 + rows)))

    def fill(self, past: int) -> None:
        self.generator = self.start()
        self.generator.append_tokens([100 + i % 500 for i in range(past)])

    def start(self) -> Any:
        params = self.og.GeneratorParams(self.model)
        params.set_search_options(max_length=CONTEXT, do_sample=False)
        return self.og.Generator(self.model, params)

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        if spec:
            return {}
        generator, start = self.start(), time.perf_counter()
        generator.append_tokens(ids)
        generator.generate_next_token()
        first, out = time.perf_counter(), [int(generator.get_next_tokens()[0])]
        while len(out) < new:
            generator.generate_next_token()
            out.append(int(generator.get_next_tokens()[0]))
        seconds = time.perf_counter() - first
        return {"first_ms": 1e3 * (first - start), "seconds": seconds, "tokens": new - 1, "ids": out}


PEERS = {"specc": Specc, "llama.cpp": LlamaCpp, "onnxruntime-genai": GenAi}


def burst(peer: Any, rows: int, past: int) -> float:
    """Seconds of one call as decoding makes them: the first wakes the threads, the median of five more counts."""
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        peer.rows(rows, past)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main() -> None:
    """Serve one peer until the input ends."""
    name, source = sys.argv[1:3]
    start = time.perf_counter()
    try:
        peer = PEERS[name](source)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        raise SystemExit(3) from None
    print(json.dumps({"ready": name}), flush=True)
    started, filled = time.perf_counter() - start, -1
    for line in sys.stdin:
        command = json.loads(line)
        if "rows" in command:
            if filled != command["past"]:
                peer.fill(filled := command["past"])
            answer = {"ms": 1e3 * burst(peer, command["rows"], command["past"])}
        elif "prompt" in command:
            answer = peer.generate(command["prompt"], command["new"], command["spec"])
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            answer = {"name": name, "version": peer.version, "system": peer.system, "peak_mb": peak, "start_s": started}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
