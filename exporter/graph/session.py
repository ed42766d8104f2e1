"""Run a graph in memory with ONNX Runtime, KV caches updated in place, for checks and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from specc.exporter.graph.files import INLINE, Place, reference_weights
from specc.exporter.graph.graph import Graph
from specc.runtime import library

NUMPY_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(float8e4m3fn)": np.uint8}
FLOAT8 = int(ir.DataType.FLOAT8E4M3FN)
"""ONNX Runtime's name for the type of a float8 cache, which numpy holds as bytes."""
COPIED_TYPES = (ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN, ir.DataType.BFLOAT16)  # numpy has no such types
DTYPES = {"past_len": np.int32, "input_ids": np.int64, "position": np.int64, "logit_rows": np.int64}


@dataclass(frozen=True)
class Runner:
    """A session and its cache buffers, [1, kv_heads, capacity, head_dim] each; contents change, shapes do
    not.

    A graph with outputs `rows_k.i` instead of `present_k.i` returns new rows, which `call` copies into the
    cache.
    """

    session: ort.InferenceSession
    caches: dict[str, np.ndarray]
    vocab: int
    gives_rows: bool = False
    length_type: type = np.int32

    def call(
        self, ids: np.ndarray, past: int, position: np.ndarray | None = None, wanted: np.ndarray | None = None
    ) -> np.ndarray:
        """Call the graph over `ids` [R] at cache slot `past`.

        Logits fp32 [m, vocab] of the wanted rows (all).
        """
        rows = len(ids)
        feeds: dict[str, np.ndarray] = {
            "input_ids": np.asarray(ids, np.int64)[None],
            "past_len": np.array([past], self.length_type),
            "position": (np.arange(past, past + rows) if position is None else np.asarray(position)).astype(
                np.int64
            )[None],
            "logit_rows": np.arange(rows, dtype=np.int64) if wanted is None else np.asarray(wanted, np.int64),
        }
        logits = np.empty((len(feeds["logit_rows"]), self.vocab), np.float32)
        binding = self.session.io_binding()
        for name, array in (*feeds.items(), *self.caches.items()):
            binding.bind_input(name, "cpu", 0, bind_type(array), array.shape, array.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        written = {
            name: array[:, :, :rows].copy() if self.gives_rows else array
            for name, array in self.caches.items()
        }
        for name, array in written.items():
            output = name.replace("past", "rows" if self.gives_rows else "present")
            binding.bind_output(output, "cpu", 0, bind_type(array), array.shape, array.ctypes.data)
        self.session.run_with_iobinding(binding)
        if self.gives_rows:
            for name, array in written.items():
                self.caches[name][:, :, past : past + rows] = array
        return logits

    def prefill(
        self, ids: np.ndarray, past: int = 0, chunk: int = 64, position: np.ndarray | None = None
    ) -> None:
        """Fill the caches with `ids` [n], `chunk` rows a call."""
        for start in range(0, len(ids), chunk):
            part = slice(start, start + chunk)
            self.call(ids[part], past + start, None if position is None else position[part], np.array([0]))


def bind_type(array: np.ndarray) -> Any:
    """The type under which ONNX Runtime binds an array."""
    return FLOAT8 if array.dtype == np.uint8 else array.dtype


def open_runner(graph: Graph, threads: int = 2) -> Runner:
    """A runner of a graph in memory; the session reads the graph's weights where they lie, without a file."""
    options = make_session_options(threads)
    model = graph.model
    big = {
        k: v.const_value
        for k, v in model.graph.initializers.items()
        if v.const_value and v.const_value.nbytes >= INLINE and v.const_value.dtype not in COPIED_TYPES
    }
    arrays = {key: np.ascontiguousarray(tensor.numpy()) for key, tensor in big.items()}
    shared = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    options.add_external_initializers(list(arrays), shared)
    proto = reference_weights(model, {key: Place("shared", 0, array.nbytes) for key, array in arrays.items()})
    return wrap_session(
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    )


def make_session_options(threads: int) -> ort.SessionOptions:
    """Options of every session of the exporter; specc's own operators are registered."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library().path))
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # compute what the graph says
    return options


def wrap_session(session: ort.InferenceSession) -> Runner:
    """A runner with caches of zeros over a session of the graph signature."""
    caches = {
        v.name: np.zeros(v.shape, NUMPY_TYPES[v.type])
        for v in session.get_inputs()
        if v.name.startswith("past_") and v.name != "past_len"
    }
    vocab = next(v.shape[-1] for v in session.get_outputs() if v.name == "logits")
    gives_rows = any(v.name.startswith("rows_") for v in session.get_outputs())
    wide = any(v.name == "past_len" and v.type == "tensor(int64)" for v in session.get_inputs())
    return Runner(session, caches, int(vocab), gives_rows, np.int64 if wide else np.int32)
