"""From a checkpoint to graph files.

`export.export_graph` is the way of a model: checkpoint -> trace -> rewrites -> lower -> write, with a check
against the Hugging Face module after every stage. `draft_heads.export.export_draft_head` is the same for a
trained draft head, `tensorrt.engine.build_engine` turns a written graph into a TensorRT engine.

A part imports only parts that stand before it in this order:

    graph        one ONNX graph: helpers, names, files, sessions
    checkpoint   what others trained: specs, tokenizers, weights as stored
    rewrites     graph -> graph, the same function in fewer nodes
    module_view  views of a Hugging Face module: shallow copies, another attention
    decoder      the parts of a module by what they are: layers, final norm, rotary embedding
    probe        what a module asks of attention; refuses what a graph does not carry over
    trace        the Hugging Face module -> graph
    lower        weights and operators of each dialect
    check        each stage, each node and the whole against the float module
    export       the stages in their order
    draft_heads  modules, files, tracing and export of trained draft heads
    tensorrt     engines
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""ONNX Runtime's Python package reads it when it is imported; without it a device id is written and sent."""
