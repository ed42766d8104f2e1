"""The type in which each layer of an engine runs: from the engine where its GPU is here, else from the
network.

A builder may fuse Q/DQ away, move it, or run a layer in another type than the graph says (a strongly typed
network forbids the last). The gate judges the engine in any case; the report says which types were judged.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

WORDS = (
    ("fp8", "fp8"),
    ("int4", "int4"),
    ("int8", "int8"),
    ("bf16|bfloat16", "bf16"),
    ("half|fp16", "fp16"),
    ("int64", "int64"),
    ("int32", "int32"),
    ("bool", "bool"),
    ("float|fp32", "fp32"),
)
"""Patterns for the names of types in texts of all library versions, such as "Row major linear FP16 format".
"""
PRODUCT = re.compile(r"matrix_?multiply|matmul|gemm|fully_?connected", re.IGNORECASE)
BOTH_SIDES = ("int8", "fp8")
"""Schemes that fix the type of activations.

The others fix the type of weights, which a fused layer does not show.
"""
MOST = 8


@dataclass(frozen=True)
class Layer:
    """One layer: the types of its inputs and outputs, in their order."""

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices."""
        return bool(PRODUCT.search(self.kind) or PRODUCT.search(self.name))


def summarize_layers(layers: Iterable[Layer], source: str, scheme: str) -> dict[str, Any]:
    """Plain JSON: counts of products by input types, of other layers by output types, and strays from the
    scheme.
    """
    layers = list(layers)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for layer in layers:
        types = " x ".join(layer.reads[:2]) if layer.is_product else "/".join(sorted(set(layer.writes)))
        kinds["product" if layer.is_product else layer.kind.lower()][types] += 1
    counted = {kind: dict(sorted(types.items())) for kind, types in sorted(kinds.items())}
    return {"source": source, "kinds": counted, "strays": find_strays(layers, scheme)[:MOST]}


def find_strays(layers: Iterable[Layer], scheme: str) -> list[str]:
    """Products of decoder layers without an operand in the type of the scheme, each with the types it
    reads.
    """
    if scheme not in BOTH_SIDES:
        return []
    inner = (layer for layer in layers if layer.is_product and "layers." in layer.name)
    return [f"{layer.name} ({' x '.join(layer.reads)})" for layer in inner if scheme not in layer.reads]


def parse_type(text: str) -> str:
    """The type that a text of the library names; the text itself where it names none."""
    return next((name for words, name in WORDS if re.search(words, text, re.IGNORECASE)), text)


# ---------------------------------------------------------------------- the engine


def read_engine_layers(text: str) -> list[Layer]:
    """Layers from the JSON of an engine inspector: objects when it is detailed, else names without types."""
    entries = json.loads(text).get("Layers", [])
    return [read_layer(entry if isinstance(entry, Mapping) else {"Name": str(entry)}) for entry in entries]


def read_layer(entry: Mapping[str, Any]) -> Layer:
    """The layer of one entry."""
    reads, writes = (
        tuple(
            parse_type(str(tensor.get("Format/Datatype", tensor.get("Datatype", "?"))))
            for tensor in entry.get(key, [])
        )
        for key in ("Inputs", "Outputs")
    )
    return Layer(str(entry.get("Name", "?")), str(entry.get("LayerType", "?")), reads, writes)


# ---------------------------------------------------------------------- the network


def read_network_layers(network: Any) -> list[Layer]:
    """Layers of a parsed network; of a product after a DequantizeLinear the type before it is taken."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    producers = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
    return [read_network_layer(layer, producers) for layer in layers]


def read_network_layer(layer: Any, producers: Mapping[str, Any]) -> Layer:
    """One layer; `producers`: the layer that computes each tensor, by the tensor's name."""
    kind = str(layer.type).rpartition(".")[2]
    inputs = [tensor for i in range(layer.num_inputs) if (tensor := layer.get_input(i)) is not None]
    is_product = kind == "MATRIX_MULTIPLY"
    reads = tuple(
        parse_type(str((find_stored_input(tensor, producers) if is_product else tensor).dtype))
        for tensor in inputs
    )
    writes = tuple(parse_type(str(layer.get_output(i).dtype)) for i in range(layer.num_outputs))
    return Layer(layer.name, kind, reads, writes)


def find_stored_input(tensor: Any, producers: Mapping[str, Any]) -> Any:
    """The input of the DequantizeLinear that computes this tensor, behind shuffles at most.

    Else the tensor.
    """
    layer = producers.get(tensor.name)
    if layer is None:
        return tensor
    kind = str(layer.type).rpartition(".")[2]
    if kind == "DEQUANTIZE":
        return layer.get_input(0)
    if kind != "SHUFFLE":
        return tensor
    stored = find_stored_input(layer.get_input(0), producers)
    return tensor if stored.name == layer.get_input(0).name else stored
