"""Write a graph and its weights: NAME.onnx beside NAME.onnx.data, every weight once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

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

    Equal bytes are stored once, whatever the names and shapes over them. With `shares`, another graph file of the same
    folder, weights whose bytes lie in its data file are read from there and no second copy is made; the data file of
    its own is left out when nothing remains for it.
    """
    known = read_places(shares) if shares is not None else {}
    proto_values, data = {}, folder / f"{name}.onnx.data"
    with data.open("wb") as out:
        for key, value in graph.model.graph.initializers.items():
            assert value.const_value is not None
            if value.const_value.nbytes >= INLINE:
                proto_values[key] = store_bytes(value.const_value.tobytes(), known, data.name, out)
    proto = reference_weights(graph.model, proto_values)
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    if data.stat().st_size == 0:
        data.unlink()
        return (path,)
    return path, data


def store_bytes(raw: bytes, known: dict[str, Place], location: str, out: object) -> Place:
    """The place of these bytes, appended to `out` when they are new; `known` grows."""
    digest = hashlib.sha256(raw).hexdigest()
    if digest not in known:
        offset = -(-out.tell() // ALIGN) * ALIGN  # type: ignore[attr-defined]
        out.seek(offset)  # type: ignore[attr-defined]
        out.write(raw)  # type: ignore[attr-defined]
        known[digest] = Place(location, offset, len(raw))
    return known[digest]


def reference_weights(model: ir.Model, places: dict[str, Place]) -> onnx.ModelProto:
    """The model as a protobuf whose placed weights are references into the data file."""
    slim = model.clone()
    for key, where in places.items():
        value = slim.graph.initializers[key]
        tensor = value.const_value
        assert tensor is not None
        value.const_value = ir.ExternalTensor(
            where.location,
            where.offset,
            where.length,
            tensor.dtype,
            shape=ir.Shape(tensor.numpy().shape),
            name=key,
            base_dir="",
        )
    clear_metadata(slim)
    proto = ir.to_proto(slim)
    proto.producer_name, proto.producer_version = "specc", ""
    return proto


def clear_metadata(model: ir.Model) -> None:
    """Drop the tracer's own notes: they hold paths of the build machine."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    model.metadata_props.clear()
    ClearMetadataAndDocStringPass()(model)


def read_places(path: Path) -> dict[str, Place]:
    """SHA-256 of each external weight of a written graph -> where it lies."""
    found: dict[str, Place] = {}
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        entry = {item.key: item.value for item in tensor.external_data}
        if not entry:
            continue
        where = Place(entry["location"], int(entry.get("offset", 0)), int(entry["length"]))
        with (path.parent / where.location).open("rb") as data:
            data.seek(where.offset)
            found[hashlib.sha256(data.read(where.length)).hexdigest()] = where
    return found
