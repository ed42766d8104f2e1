"""One of specc's operators by itself in ONNX Runtime, here or in a process with other instructions or a
fault.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402

from specc.runtime import controls, library  # noqa: E402

TYPES = {"f": TensorProto.FLOAT, "u": TensorProto.UINT8, "i": TensorProto.INT32, "l": TensorProto.INT64}
SIGNATURES = {
    "MatMul": {"x": "f", "weights": "u", "norm": "f", "bias": "f", "residual": "f"},
    "Embedding": {"ids": "l", "weights": "u"},
    "Attention": {
        "qkv": "f",
        "past_k": "f",
        "past_v": "f",
        "past_len": "i",
        "position": "l",
        "cos": "f",
        "sin": "f",
    }
    | {"bias": "f"},
}
OUTPUTS = {"MatMul": ["y"], "Embedding": ["y"], "Attention": ["y", "present_k", "present_v"]}
FAILS = Exception  # onnxruntime raises classes of its own
ROWS = 40
QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

Arrays = dict[str, np.ndarray]
Case = tuple[str, dict[str, Any], Arrays]


# ---------------------------------------------------------------------- one operator by itself


@functools.cache
def session(op: str, given: tuple[str, ...], attributes: tuple[tuple[str, Any], ...], threads: int) -> Any:
    """A session over one node whose inputs are all fed."""
    names = [name if name in given else "" for name in SIGNATURES[op]]
    node = helper.make_node(op, names, OUTPUTS[op], domain="specc")
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes)
    inputs = [helper.make_tensor_value_info(name, TYPES[SIGNATURES[op][name]], None) for name in given]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS[op]]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("specc", 1)]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=opsets, ir_version=10
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library().path))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(case: Case, threads: int = 1) -> list[np.ndarray]:
    """The operator's outputs."""
    op, attributes, feeds = case
    ort_session = session(
        op, tuple(n for n in SIGNATURES[op] if n in feeds), tuple(sorted(attributes.items())), threads
    )
    outputs: list[np.ndarray] = ort_session.run(None, feeds)
    return outputs


def bits(array: np.ndarray) -> bytes:
    """The numbers as they lie in memory, every NaN the same one."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


def wrong(case: Case, **arrays: np.ndarray) -> Case:
    """The case with other arrays."""
    return case[0], case[1], {**case[2], **arrays}


# ------------------------------------------------------------------ the same operator with other instructions


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer cases from another process until it closes; the first answer is the name of the instructions."""
    loaded = ctypes.CDLL(str(library().path))
    name, fault = loaded.specc_kernels, os.environ.get("SPECC_TEST_FAULT")
    name.restype = ctypes.c_char_p
    assert not fault or loaded.specc_fault_set(fault.encode()) == 0
    send(sink, name().decode())
    while (case := receive(source)) is not None:
        send(sink, run(case))


def send(sink: Any, value: Any) -> None:
    """Length, then the pickled value."""
    raw = pickle.dumps(value)
    sink.write(struct.pack("<Q", len(raw)) + raw)
    sink.flush()


def receive(source: Any) -> Any:
    """The next value, None at the end."""
    header = source.read(8)
    return pickle.loads(source.read(struct.unpack("<Q", header)[0])) if len(header) == 8 else None


class Other:
    """A process that runs the operators with the instructions that it is given, or with a fault active."""

    def __init__(self, kernels: str = "", fault: str = "") -> None:
        environment = {**os.environ, "SPECC_KERNELS": kernels, "SPECC_TEST_FAULT": fault}
        environment |= {"SPECC_LIBRARY": str(controls().path)} if fault else {}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.name = receive(self.process.stdout)

    def run(self, case: Case) -> list[np.ndarray]:
        """As `run`, in the other process."""
        send(self.process.stdin, case)
        outputs: list[np.ndarray] = receive(self.process.stdout)
        return outputs

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()


def other_instructions() -> Iterator[list[Other]]:
    """Body of a fixture: the scalar code, which defines the bits, and AVX2 where this CPU has it."""
    started = [Other("scalar"), Other("avx2")]
    assert started[0].name == "scalar"
    yield [other for i, other in enumerate(started) if i == 0 or other.name != "scalar"]
    for other in started:
        other.close()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
