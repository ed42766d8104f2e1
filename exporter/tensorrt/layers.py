"""In which type each layer of an engine really runs: told by the engine where its GPU is, else by the typed network.

A builder may fuse Q/DQ away, move it, or run a layer in another type than the graph says; a network that is strongly
typed forbids the last. The gate judges the engine whichever it is; this says what was judged.
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
"""What the libraries of all versions call a type in a sentence such as "Row major linear FP16 format"."""
PRODUCT = re.compile(r"matrix_?multiply|matmul|gemm|fully_?connected", re.IGNORECASE)
BOTH_SIDES = ("int8", "fp8")
"""Schemes that promise products of such activations; the others promise what is stored, which a fused layer hides."""
MOST = 8


@dataclass(frozen=True)
class Layer:
    """One layer: types of what it reads and gives, in their order."""

    name: str
    kind: str
    reads: tuple[str, ...]
    gives: tuple[str, ...]

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices."""
        return bool(PRODUCT.search(self.kind) or PRODUCT.search(self.name))


def summarize_layers(layers: Iterable[Layer], source: str, scheme: str) -> dict[str, Any]:
    """Plain JSON: how many products of which types, the other kinds by result, and strays from the scheme."""
    held = list(layers)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for layer in held:
        types = " x ".join(layer.reads[:2]) if layer.is_product else "/".join(sorted(set(layer.gives)))
        kinds["product" if layer.is_product else layer.kind.lower()][types] += 1
    counted = {kind: dict(sorted(types.items())) for kind, types in sorted(kinds.items())}
    return {"source": source, "kinds": counted, "strays": find_strays(held, scheme)[:MOST]}


def find_strays(layers: Iterable[Layer], scheme: str) -> list[str]:
    """Products of decoder layers that read no operand in the type that the scheme promises, with what they read."""
    if scheme not in BOTH_SIDES:
        return []
    inner = (layer for layer in layers if layer.is_product and "layers." in layer.name)
    return [f"{layer.name} ({' x '.join(layer.reads)})" for layer in inner if scheme not in layer.reads]


def parse_type(text: str) -> str:
    """The type named in a library's own words; those words where none is known."""
    return next((name for words, name in WORDS if re.search(words, text, re.IGNORECASE)), text)


# ---------------------------------------------------------------------- the engine's own account


def read_engine_layers(account: str) -> list[Layer]:
    """From the JSON of an engine inspector (detailed: an object a layer; else a name a layer, without types)."""
    found = json.loads(account).get("Layers", [])
    return [read_layer(item if isinstance(item, Mapping) else {"Name": str(item)}) for item in found]


def read_layer(item: Mapping[str, Any]) -> Layer:
    """One entry."""
    reads, gives = (
        tuple(
            parse_type(str(tensor.get("Format/Datatype", tensor.get("Datatype", "?"))))
            for tensor in item.get(key, [])
        )
        for key in ("Inputs", "Outputs")
    )
    return Layer(str(item.get("Name", "?")), str(item.get("LayerType", "?")), reads, gives)


# ---------------------------------------------------------------------- the network


def read_network_layers(network: Any) -> list[Layer]:
    """From a parsed network; a product that reads the result of a DequantizeLinear reads the type before it."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    made = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
    return [read_network_layer(layer, made) for layer in layers]


def read_network_layer(layer: Any, made: Mapping[str, Any]) -> Layer:
    """One layer."""
    kind = str(layer.type).rpartition(".")[2]
    inputs = [tensor for i in range(layer.num_inputs) if (tensor := layer.get_input(i)) is not None]
    stored = kind == "MATRIX_MULTIPLY"
    reads = tuple(
        parse_type(str((find_stored_input(tensor, made) if stored else tensor).dtype)) for tensor in inputs
    )
    gives = tuple(parse_type(str(layer.get_output(i).dtype)) for i in range(layer.num_outputs))
    return Layer(layer.name, kind, reads, gives)


def find_stored_input(tensor: Any, made: Mapping[str, Any]) -> Any:
    """What a DequantizeLinear read to give this tensor, through layers that only move; else the tensor itself."""
    layer = made.get(tensor.name)
    if layer is None:
        return tensor
    kind = str(layer.type).rpartition(".")[2]
    if kind == "DEQUANTIZE":
        return layer.get_input(0)
    if kind != "SHUFFLE":
        return tensor
    found = find_stored_input(layer.get_input(0), made)
    return tensor if found.name == layer.get_input(0).name else found
