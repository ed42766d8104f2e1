"""Manners of a library: forked children, floating-point modes, files and variables that nobody asked for.

Each case is a process of its own, since what is tested holds for whole processes.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repository import ROOT

from specc.runtime import engine_library

onnx = pytest.importorskip("onnx", reason="writing the graph needs the build extra")
VOCAB, HIDDEN, HEADS, CAPACITY, WIDTHS = 512, 256, 4, 96, (1, 2, 3, 4, 5, 32)
HEAD = HIDDEN // HEADS

OPEN = f"""
import ctypes, hashlib, os, sys
from pathlib import Path
import numpy as np
from specc.errors import SpeccError
from specc.runtime import Model, Ort, engine_library
def opened():
    engine = Ort(Path(sys.argv[1]), {VOCAB}, 1, {HEADS}, {HEAD}, {CAPACITY}, {WIDTHS}, 2,
        Path(str(engine_library())))
    return Model.from_parts(engine, n_ids={VOCAB}, context=64, assume_exact=True)
"""
DIGEST = """
def digest():
    h = hashlib.sha256()
    with opened() as model:
        with model.session() as session:
            session.rows(list(range(32)), 0, 32)
            for past in range(0, 30, 5):
                h.update(session.rows(list(range(past, past + 5)), past, 5).tobytes())
        certificate = model.certify(list(range(400)), window=16)
        h.update(repr((certificate.kind, certificate.law_hash, certificate.rows_different)).encode())
    print(h.hexdigest())
"""
MODES = {
    "as it is": "",
    "rounding up": "ctypes.CDLL('libm.so.6').fesetround(0x800)",
    "rounding to zero": "ctypes.CDLL('libm.so.6').fesetround(0xc00)",
    "flush to zero": """
m, state = ctypes.CDLL("libm.so.6"), ctypes.create_string_buffer(32)
m.fegetenv(state)
state[28:32] = (int.from_bytes(state[28:32], "little") | 0x8040).to_bytes(4, "little")
m.fesetenv(state)
""",
    "traps on": "ctypes.CDLL('libm.so.6').feenableexcept(0xd)",
}
"""Set by the program before it opens a model; constants of x86-64's fenv.h."""


def make_constants() -> dict[str, np.ndarray]:
    """Random weights, and the tables of the rotation."""
    from specc.exporter.checkpoint.codes import Codes
    from specc.exporter.lower.cpu_layout import pack

    rng = np.random.default_rng(3)

    def weights(outputs: int) -> np.ndarray:
        scales = rng.uniform(0.001, 0.02, (outputs, HIDDEN // 32)).astype(np.float16)
        return pack(Codes("w8", rng.integers(-128, 128, (outputs, HIDDEN)).astype(np.int8), scales))

    angles = np.outer(np.arange(CAPACITY), 0.7 ** np.arange(HEAD // 2))
    return {
        "table": weights(VOCAB),
        "qkv_weights": weights(3 * HIDDEN),
        "head_weights": weights(VOCAB),
        "norm": rng.uniform(0.5, 2, HIDDEN).astype(np.float32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "zero": np.array([0]),
    }


def make_nodes() -> list[Any]:
    """Embedding, one attention, and a head, of specc's operators."""
    from specc.exporter.lower.cpu_layout import LAYOUT

    h = onnx.helper

    def node(op: str, inputs: list[str], names: list[str], /, **attributes: object) -> Any:
        made = h.make_node(op, inputs, names, domain="specc")
        made.attribute.extend(h.make_attribute(name, value) for name, value in attributes.items())
        return made

    def product(inputs: list[str], name: str, outputs: int) -> Any:
        sizes = {"outputs": outputs, "kept": outputs, "gate": 0, "epsilon": 1e-5}
        return node("MatMul", inputs, [name], layout=LAYOUT, kind=2, **sizes)

    packed = {"layout": LAYOUT, "kind": 2, "inputs": HIDDEN, "outputs": VOCAB}
    shape = {"heads": HEADS, "kv_heads": HEADS, "scale": HEAD**-0.5, "window": 0, "soft_cap": 0.0}
    past = ["past_k.0", "past_v.0", "past_len", "position", "cos", "sin"]
    return [
        node("Embedding", ["input_ids", "table"], ["x"], **packed),
        product(["x", "qkv_weights", "norm"], "qkv", 3 * HIDDEN),
        node("Attention", ["qkv", *past], ["y", "present_k.0", "present_v.0"], **shape),
        h.make_node("Squeeze", ["y", "zero"], ["rows"]),
        h.make_node("Gather", ["rows", "logit_rows"], ["asked"]),
        product(["asked", "head_weights", "norm"], "logits", VOCAB),
    ]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of specc's operators with random weights."""
    h, kinds = onnx.helper, onnx.TensorProto
    value, cache = h.make_tensor_value_info, [1, HEADS, CAPACITY, HEAD]
    inputs = [
        value("input_ids", kinds.INT64, [1, "R"]),
        value("past_len", kinds.INT32, [1]),
        value("position", kinds.INT64, [1, "R"]),
        value("logit_rows", kinds.INT64, ["m"]),
        *(value(f"past_{part}.0", kinds.FLOAT, cache) for part in "kv"),
    ]
    outputs = [
        value("logits", kinds.FLOAT, ["m", VOCAB]),
        *(value(f"present_{part}.0", kinds.FLOAT, cache) for part in "kv"),
    ]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in make_constants().items()]
    model = h.make_model(
        h.make_graph(make_nodes(), "layer", inputs, outputs, held),
        opset_imports=[h.make_opsetid("", 18), h.make_opsetid("specc", 1)],
        ir_version=9,
    )
    path: Path = tmp_path_factory.mktemp("manners") / "layer.onnx"
    onnx.save(model, path)
    return path


def run_program(graph: Path, text: str, **variables: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", OPEN + text, str(graph)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets modes by x86-64's constants")
def test_floating_point_modes_of_the_program_do_not_matter(graph: Path) -> None:
    """Opened, certified and scored under each mode: the same bits, and the program's mode is as it was."""
    kept = "print(ctypes.CDLL('libm.so.6').fegetround())"
    seen = {name: run_program(graph, DIGEST + mode + "\ndigest()\n" + kept) for name, mode in MODES.items()}
    assert len({text.split()[0] for text in seen.values()}) == 1, seen
    rounding = {name: int(text.split()[1]) for name, text in seen.items()}
    assert rounding["rounding up"] == 0x800
    assert rounding["rounding to zero"] == 0xC00
    assert rounding["as it is"] == rounding["flush to zero"] == 0


FORK = """
import signal
model = opened()
session = model.session()
said = session.run([1, 2, 3], temperature=0, max_new_tokens=8).tokens
child = os.fork()
if not child:
    signal.alarm(60)
    for call in (
        lambda: session.run([1, 2, 3], temperature=0, max_new_tokens=8),
        lambda: session.rows([1], 0, 1),
        lambda: model.session(),
        lambda: model.certify(list(range(40))),
    ):
        try:
            call()
            os._exit(2)
        except SpeccError as fault:
            if "forked child" not in str(fault):
                os._exit(3)
    session.close()
    model.close()
    with opened() as own, own.session() as again:
        os._exit(0 if again.run([1, 2, 3], temperature=0, max_new_tokens=8).tokens == said else 4)
_, status = os.waitpid(child, 0)
assert session.run([1, 2, 3], temperature=0, max_new_tokens=8).tokens == said
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_and_can_free_and_open_again(graph: Path) -> None:
    """Every call in the child is a named error, its free returns, a model of its own works; nor is the
    parent harmed.
    """
    assert run_program(graph, FORK) == "0"


QUIET = """
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
before = dict(os.environ)
for _ in range(3):
    with opened() as model, model.session() as session:
        session.run([1], temperature=0, max_new_tokens=2)
names = (b"ORT_DISABLE_TELEMETRY", b"ORT_TELEMETRY_DISABLED", b"HOME")
print(*(c.getenv(name) for name in names), len(os.listdir("/proc/self/task")) < 8)
"""


def test_no_telemetry_and_no_variable_stays(graph: Path, tmp_path: Path) -> None:
    """The engine writes no device id into the user's folders; the process's environment is as it was."""
    names = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")
    clean = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        said = run_program(graph, QUIET, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    finally:
        os.environ.update(clean)
    assert said == f"None None {os.fsencode(str(tmp_path))!r} True"
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in str(path)] == []


def test_no_telemetry_of_the_exporter(tmp_path: Path) -> None:
    """ONNX Runtime's Python package writes no device id either where a build imports it."""
    text = "import specc.exporter.graph.session as s; s.ort.SessionOptions()"
    names = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")
    variables = {name: value for name, value in os.environ.items() if name not in names}
    variables |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", text], check=True, timeout=120, env=variables)
    assert [path for path in tmp_path.rglob("*") if "onnxruntime" in str(path)] == []


def test_the_engine_library_is_not_the_hosts(graph: Path) -> None:
    """libonnxruntime itself is not loaded by opening a model, so a host that loads it finds it untouched."""
    text = """
model = opened()
maps = Path("/proc/self/maps").read_text()
print(str(Path(str(engine_library())).resolve()) in maps, "memfd:libonnxruntime" in maps)
"""
    assert engine_library()
    assert run_program(graph, text) == "False True"


def test_the_oldest_compiler_takes_what_is_cloned(tmp_path: Path) -> None:
    """GCC 11 knows no x86-64-v3 in target_clones; every file with clones compiles with it."""
    compiler = shutil.which("gcc-11")
    if compiler is None:
        pytest.skip("needs gcc-11")
    runtime = ROOT / "runtime"
    sources = [path for path in runtime.rglob("*.c") if "SPECC_CLONES" in path.read_text()]
    assert len(sources) > 3
    flags = ["-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-ffp-contract=off"]
    folders = [f"-I{runtime}", f"-I{runtime / 'include'}", "-D_GNU_SOURCE"]
    for path in sources:
        command = [compiler, *flags, *folders, "-c", str(path), "-o", str(tmp_path / "object.o")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
