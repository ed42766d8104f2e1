"""specc: whole generations through the C loop; rows through the bundle's own engine, as the loop calls it."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from serve import THREADS

from specc.pipeline import cache
from specc.runtime import Model, Ort, device, engine_library, kernels, library
from specc.runtime._ffi import ffi

WIDTHS = (*range(1, 18), 64)


class Engine:
    """Certificates are the bundle's own, or those that prepare.py keeps."""

    version = "specc"

    def __init__(self, source: str, context: int) -> None:
        self.folder, self.manifest = Path(source), json.loads((Path(source) / "manifest.json").read_text())
        own = cache.root() / "peers" / "certificates"
        self.model = Model.open(source, threads=THREADS, certificates=own if own.is_dir() else None)
        info = self.model.info
        self.session, self.drafts = self.model.session(), info.enabled
        state = f"K = {info.certificate.k}" if info.enabled else f"speculation off: {', '.join(info.reasons)}"
        self.system = (
            f"kernels {kernels()}, {device()[0]}, {info.certificate.kind}, drafter {info.drafter}, {state}"
        )

    @cached_property
    def engine(self) -> Any:
        """Backend, cache, buffers."""
        part = self.manifest["engines"]["target"]
        numbers = [part[name] for name in ("vocab", "layers", "kv_heads", "head_dim", "capacity")]
        made = Ort(self.folder / part["file"], *numbers, WIDTHS, THREADS, engine_library())
        backend, keep = made.native(library())
        cache, io = ffi.new("void **"), ffi.new("specc_io *")
        library().check(backend.open(backend.self, cache, io))
        return backend, cache[0], io, (made, keep)

    def rows(self, rows: int, past: int) -> None:
        backend, cache, io, _ = self.engine
        for i in range(rows):
            io.input_ids[i], io.position[i], io.logit_rows[i] = 100 + i, past + i, i
        io.past_len[0] = past
        if backend.run(cache, rows, rows):
            raise RuntimeError(f"a call of {rows} rows at {past} failed")

    def fill(self, past: int) -> None:
        backend, cache, io, _ = self.engine
        chunk = WIDTHS[-1]
        for at in range(0, past, chunk):
            for i in range(chunk):
                io.input_ids[i], io.position[i] = 100 + (at + i) % 500, at + i
            io.logit_rows[0], io.past_len[0] = 0, at
            if backend.run(cache, chunk, 1):
                raise RuntimeError(f"filling the cache failed at {at}")

    def generate(self, ids: list[int], new: int, spec: bool) -> dict[str, Any]:
        other = [0 if ids[0] else 1]  # what the cache holds of the last answer would help this one
        self.session.run(other, text=False, temperature=0.0, max_new_tokens=1, ignore_eos=True)
        rounds = self.session.generate(ids, temperature=0.0, max_new_tokens=new, speculation=spec)
        return {**counted(rounds), "tokens_per_call": self.per_call()}

    def per_call(self) -> float:
        """Of the last generation."""
        stats = self.session.stats
        return float(stats["emitted"] / max(stats["target_calls"], 1))


def counted(rounds: Any) -> dict[str, Any]:
    """As serve.timed, where several tokens may come at once: those beside the first cost no time and do not
    count.
    """
    import time

    start, first, out, beside = time.perf_counter(), 0.0, [], 0
    for event in rounds:
        if event.tokens and not first:
            first, beside = time.perf_counter(), len(event.tokens)
        out.extend(event.tokens)
    now = time.perf_counter()
    return {
        "first_ms": 1e3 * (first - start),
        "seconds": now - first,
        "tokens": len(out) - beside,
        "ids": out,
    }
