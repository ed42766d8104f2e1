"""Graph files: NAME.onnx with the nodes, NAME.onnx.data with the weights, every weight stored once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from specc.exporter.graph.graph import Graph

ALIGN = 64  # bytes; weights start at cache lines
INLINE = 1024  # bytes; smaller weights stay in the graph file


@dataclass(frozen=True)
class Place:
    """Where one weight's bytes lie: file name relative to the graph, offset and length in bytes."""

    location: str
    offset: int
    length: int


def write_graph(graph: Graph, folder: Path, name: str, shares: Path | None = None) -> tuple[Path, ...]:
    """Write `name`.onnx and `name`.onnx.data into `folder`; returns the files written.

    Equal bytes are stored once, whatever their names and shapes. `shares` is another graph file of the same
    folder: weights whose bytes lie in its data file are read from there, and a data file that would be empty
    is not written.
    """
    places = read_places(shares) if shares is not None else {}
    place_of, data = {}, folder / f"{name}.onnx.data"
    with data.open("wb") as out:
        for key, value in graph.model.graph.initializers.items():
            assert value.const_value is not None
            if value.const_value.nbytes >= INLINE:
                place_of[key] = store_bytes(value.const_value.tobytes(), places, data.name, out)
    proto = reference_weights(graph.model, place_of)
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    if data.stat().st_size == 0:
        data.unlink()
        return (path,)
    return path, data


def store_bytes(raw: bytes, places: dict[str, Place], location: str, out: BinaryIO) -> Place:
    """The place of these bytes; bytes that `places` (by SHA-256) lacks are appended to `out` and added to
    it.
    """
    digest = hashlib.sha256(raw).hexdigest()
    if digest not in places:
        offset = -(-out.tell() // ALIGN) * ALIGN
        out.seek(offset)
        out.write(raw)
        places[digest] = Place(location, offset, len(raw))
    return places[digest]


def reference_weights(model: ir.Model, places: dict[str, Place]) -> onnx.ModelProto:
    """The model as a protobuf in which weights with a place refer to the data file instead of holding
    bytes.
    """
    light = model.clone()
    for key, place in places.items():
        value = light.graph.initializers[key]
        tensor = value.const_value
        assert tensor is not None
        value.const_value = ir.ExternalTensor(
            place.location,
            place.offset,
            place.length,
            tensor.dtype,
            shape=ir.Shape(tensor.numpy().shape),
            name=key,
            base_dir="",
        )
    clear_metadata(light)
    proto = ir.to_proto(light)
    proto.producer_name, proto.producer_version = "specc", ""
    return proto


def clear_metadata(model: ir.Model) -> None:
    """Drop the tracer's metadata: they hold paths of the build machine."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    model.metadata_props.clear()
    ClearMetadataAndDocStringPass()(model)


def read_places(path: Path) -> dict[str, Place]:
    """SHA-256 of each external weight of a written graph -> its place."""
    places: dict[str, Place] = {}
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        entry = {item.key: item.value for item in tensor.external_data}
        if not entry:
            continue
        place = Place(entry["location"], int(entry.get("offset", 0)), int(entry["length"]))
        with (path.parent / place.location).open("rb") as data:
            data.seek(place.offset)
            places[hashlib.sha256(data.read(place.length)).hexdigest()] = place
    return places
