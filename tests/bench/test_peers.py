"""The bench against other engines: ratios, missing peers, turns."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# ---------------------------------------------------------------------- tests/bench/bench_peers.py


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The bench against other engines, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return __import__("bench_peers")


FOUND: dict[str, Any] = {
    "bandwidth_gb_s": 40.0,
    "weights_mb": 95.0,
    "cache_mb": 25.0,
    "peers": {"llama.cpp": {"system": "AVX2 = 1"}},
    "ms_by_rows": {"specc": {1: 4.0, 5: 6.0}, "llama.cpp": {1: 12.0}},
    "tokens_per_second": {
        "specc": {"plain": 240.0, "spec": 330.0},
        "llama.cpp": {"plain": 80.0, "spec": 60.0},
        "onnxruntime-genai": {"plain": 110.0},
    },
}


def test_ratios_against_peers(peers: Any) -> None:
    found = peers.report(FOUND)
    assert found["verify_cost_ratio"] == 1.5 and found["verify5_vs_llama_cpp_1"] == 0.5
    assert found["plain_vs_llama_cpp"] == 3.0 and found["spec_vs_best_peer"] == 3.0
    assert (
        found["bandwidth_share_of_a_plain_step"] == pytest.approx(0.75)
        and found["llama_cpp_system"] == "AVX2 = 1"
    )
    assert peers.report(json.loads(json.dumps(FOUND))) == found


def test_a_peer_that_is_missing_has_no_ratio(peers: Any) -> None:
    """Nothing is guessed."""
    alone = {
        **FOUND,
        "ms_by_rows": {"specc": {1: 4.0, 5: 6.0}},
        "peers": {},
        "tokens_per_second": {"specc": {"plain": 1.0}},
    }
    found = peers.report(alone)
    assert not {"verify5_vs_llama_cpp_1", "plain_vs_llama_cpp", "spec_vs_best_peer"} & found.keys()
    assert found["llama_cpp_system"] is None and peers.report({"peers": {}}) == {"llama_cpp_system": None}


def test_parts_of_several_runs_join(peers: Any) -> None:
    first = {"ms_by_rows": {"specc": {"1": 4.0}}, "turns": {"rows": 15}, "bandwidth_gb_s": 30.0}
    found = peers.joined(
        first, {"ms_by_rows": {"specc": {1: 7.0, 9: 8.0}, "x": {9: 1.0}}, "turns": {"speeds": 32}}
    )
    assert found["ms_by_rows"] == {"specc": {"1": 4.0, "9": 8.0}, "x": {"9": 1.0}}
    assert found["turns"] == {"rows": 15, "speeds": 32} and found["bandwidth_gb_s"] == 30.0


def test_a_llama_without_avx2_is_refused(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : fpu avx avx2 fma")
    with pytest.raises(SystemExit, match="without AVX2"):
        peers.check_build({"llama.cpp": {"system": "AVX = 1 | AVX2 = 0"}})
    peers.check_build({"llama.cpp": {"system": "AVX2 = 1"}})
    peers.check_build({})


def test_workers_take_turns(peers: Any) -> None:
    """First and last change places; without time there are still three turns."""
    from workers import in_turn

    asked: list[tuple[str, int]] = []

    def ask(worker: Any, key: int, turn: int) -> float | None:
        asked.append((worker.name, turn))
        return float(turn) if worker.name == "a" else None

    workers = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    found, count = in_turn(workers, (1,), 15, -1.0, ask)
    assert found == {"a": {1: 1.0}, "b": {}} and count == 3
    assert asked == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_a_peer_that_cannot_start_says_why(peers: Any, tmp_path: Path) -> None:
    from workers import started

    workers, missing = started({"onnxruntime-genai": (str(tmp_path), "python3")}, 64)
    assert not workers and "Error" in missing["onnxruntime-genai"]
