"""Python binding of libspecc: exact speculative sampling on a bundle, or on engines of your own.

with Model.open("smollm2-135m-cpu") as model, model.session() as session:
    for event in session.generate(prompt_ids, temperature=0.8, max_new_tokens=128):
        print(event.text, end="")
"""

from specc.runtime._ffi import Library, controls, engine_library, library
from specc.runtime.certificate import Certificate
from specc.runtime.drafters import (
    DraftContext,
    Drafter,
    HeadDraft,
    Hierarchy,
    ModelDraft,
    Ngram,
    Node,
    Staged,
    StaticNgram,
)
from specc.runtime.engines import Backend, Io, Ort, Table, TableHeads, Wrapped
from specc.runtime.model import Info, Model, device, kernels
from specc.runtime.nvidia import Gpu, gpu
from specc.runtime.pure import distribution
from specc.runtime.request import Options, Request
from specc.runtime.session import Decision, Event, Result, Session

__all__ = [
    "Backend",
    "Certificate",
    "Decision",
    "DraftContext",
    "Drafter",
    "Event",
    "Gpu",
    "HeadDraft",
    "Hierarchy",
    "Info",
    "Io",
    "Library",
    "Model",
    "ModelDraft",
    "Ngram",
    "Node",
    "Options",
    "Ort",
    "Request",
    "Result",
    "Session",
    "Staged",
    "StaticNgram",
    "Table",
    "TableHeads",
    "Wrapped",
    "controls",
    "device",
    "distribution",
    "engine_library",
    "gpu",
    "kernels",
    "library",
]
