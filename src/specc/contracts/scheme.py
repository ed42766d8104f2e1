"""How weights are stored: a scheme for the decoder layers and one for the LM head."""

from __future__ import annotations

from dataclasses import dataclass

from specc.yaml_table import Table

SCHEMES = ("fp32", "w8", "w4", "dynamic-int8", "fp16", "bf16", "int8", "fp8")
BLOCKS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Scheme:
    """Scheme of the decoder layers, scheme of the LM head, and how many weights share a scale."""

    layers: str
    head: str
    """Of the LM head."""
    block: int = 32


DEFAULT_SCHEME = Scheme("w4", "w8")


def read_scheme(parent: Table, default: Scheme) -> Scheme:
    """`scheme: w4` in short, or a table {layers, head, block}; `default` where the key is missing."""
    if "scheme" not in parent:
        return default
    if isinstance(parent.get("scheme"), str):
        layers = parent.get_choice("scheme", SCHEMES, "w4")
        return Scheme(layers, choose_lm_head(layers))
    table = parent.get_table("scheme")
    table.check_keys("layers", "head", "block")
    layers = table.get_choice("layers", SCHEMES, default.layers)
    head = table.get_choice("head", SCHEMES, choose_lm_head(layers))
    if ("dynamic-int8" in (layers, head)) and layers != head:
        found = f"layers are {layers} and the head is {head}"
        raise table.make_error("head", found, "dynamic-int8 is for both or none")
    return Scheme(layers, head, table.get_value("block", BLOCKS, 32))


def choose_lm_head(layers: str) -> str:
    """Scheme of the LM head, the most sensitive weight: 8 bits beside 4, no 8-bit activations."""
    return {"w4": "w8", "int8": "w8", "fp8": "fp16"}.get(layers, layers)
