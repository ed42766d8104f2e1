"""The products of one step alone: the target's graph without its attention, against the bandwidth.

Needs onnx (the extra `build`). Norms, gates and residuals that the products have taken in are part of them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

THREADS, DOMAIN = 2, "specc"


def products(bundle: Path, repeats: int = 80) -> dict[str, Any]:
    """Milliseconds of a plain step without attention, the bytes of its weights, GB/s."""
    import onnx

    source = bundle / "target.onnx"
    model = onnx.load(str(source), load_external_data=False)
    attention = [node for node in model.graph.node if node.domain == DOMAIN and node.op_type == "Attention"]
    if not attention:
        return {"missing": f"the bundle's graph has no {DOMAIN}::Attention"}
    heads = next(int(a.i) for a in attention[0].attribute if a.name == "heads")
    head_dim = json.loads((bundle / "manifest.json").read_text())["engines"]["target"]["head_dim"]
    without(onnx, model, attention)
    with tempfile.TemporaryDirectory(dir=bundle.parent) as folder:
        data = Path(folder) / "target.onnx.data"
        try:
            os.link(bundle / data.name, data)
        except OSError:
            shutil.copy(bundle / data.name, data)
        onnx.save(model, str(Path(folder) / source.name))
        seconds = timed(Path(folder) / source.name, heads * head_dim, repeats)
        size = data.stat().st_size
    return {"ms": 1e3 * seconds, "weights_mb": size / 1e6, "gb_s": size / seconds / 1e9}


def without(onnx: Any, model: Any, attention: list[Any]) -> None:
    """Takes attention out: what it would give is one input, what it would read are outputs, so that nothing
    is dead.
    """
    graph, kind = model.graph, onnx.TensorProto.FLOAT
    given = {node.output[0] for node in attention}
    read = [node.input[0] for node in attention]
    for node in attention:
        graph.node.remove(node)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in given:
                node.input[i] = "attended"
    used = {name for node in graph.node for name in node.input}
    for values in (graph.input, graph.output):
        made = {name for node in graph.node for name in node.output}
        for value in [v for v in values if v.name not in used and v.name not in made]:
            values.remove(value)
    for value in [v for v in graph.initializer if v.name not in used]:
        graph.initializer.remove(value)
    graph.input.append(onnx.helper.make_tensor_value_info("attended", kind, None))
    graph.output.extend(onnx.helper.make_tensor_value_info(name, kind, None) for name in read)


def timed(path: Path, width: int, repeats: int) -> float:
    """Median seconds of one row."""
    import onnxruntime as ort

    from specc.runtime import library

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library().path))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {"attended": np.full((1, 1, width), 0.1, np.float32)}
    feeds |= {
        v.name: np.zeros((1, 1) if v.name == "input_ids" else 1, np.int64)
        for v in session.get_inputs()
        if v.name != "attended"
    }
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - begin)
    return median(times[repeats // 4 :])
