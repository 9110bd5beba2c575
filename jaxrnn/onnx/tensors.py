"""Whether a tensor of the file holds the data that its shape and type need, before anything is allocated."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from jaxrnn._files.files import check_regular
from jaxrnn.errors import ModelError

#: The repeated field that holds a type's elements where there is no ``raw_data``, and elements to an entry.
_TYPED_FIELDS = {
    **dict.fromkeys(("FLOAT",), ("float_data", 1)),
    **dict.fromkeys(("COMPLEX64",), ("float_data", 0.5)),
    **dict.fromkeys(("DOUBLE",), ("double_data", 1)),
    **dict.fromkeys(("COMPLEX128",), ("double_data", 0.5)),
    **dict.fromkeys(("INT64",), ("int64_data", 1)),
    **dict.fromkeys(("UINT32", "UINT64"), ("uint64_data", 1)),
    **dict.fromkeys(("STRING",), ("string_data", 1)),
}
#: Every repeated field that may hold a tensor's elements.
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
#: A number of external data: what Python reads as one besides (a sign, blanks, ``1_0``, digits of other scripts) other
#: programs read otherwise or not at all.
_NUMBER = re.compile(r"[0-9]{1,19}")


def proto_label(node: onnx.NodeProto) -> str:
    """What to call a node of a file in messages."""
    return f"node {node.name or (node.output[0] if node.output else '')!r} ({node.op_type})"


def graphs_in(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def graphs_below(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """A graph or function and every graph inside it, those in defaults of attributes included."""
    pending = [graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for _, attribute in _attributes(graph) for inner in graphs_in(attribute)]


def tensors_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor of a graph or function and of the graphs inside it, with what to call it."""
    for each in graphs_below(graph):
        if isinstance(each, onnx.GraphProto):
            for tensor in each.initializer:
                yield f"initializer {tensor.name!r}", tensor
        for label, attribute in _attributes(each):
            for tensor in ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors):
                yield f"{label}, attribute {attribute.name!r}", tensor


def _attributes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, onnx.AttributeProto]]:
    """The attributes of the nodes of one graph, and the defaults of a function, with what to call their owners."""
    if isinstance(graph, onnx.FunctionProto):
        yield from ((f"function {graph.name!r}", default) for default in graph.attribute_proto)
    for node in graph.node:
        label = proto_label(node)
        yield from ((label, attribute) for attribute in node.attribute)


def check_tensor(tensor: onnx.TensorProto, label: str, folder: Path | None) -> None:
    """Check the shape and the type of a tensor against its data.

    Raises:
        ModelError: unknown type, negative dimension, too little or too much data, data in several places, or external
            data that is missing, outside the model's folder, or shorter than it says.
    """
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        kind = ir.DataType.UNDEFINED
    if kind == ir.DataType.UNDEFINED:
        raise ModelError(f"{label}: unknown element type {tensor.data_type}")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{label}: negative dimension in shape {list(tensor.dims)}")
    per_entry = 8 // kind.bitwidth if kind != ir.DataType.STRING and kind.bitwidth < 8 else 1
    field, per_entry = _TYPED_FIELDS.get(kind.name, ("int32_data", per_entry))
    home = _check_one_place(tensor, field, label)
    count = math.prod(tensor.dims)
    shape = f"shape {list(tensor.dims)} of {kind.name}"
    if home == "external_data":
        _check_external(tensor, -(-count * kind.bitwidth // 8), label, folder)
    elif home == "raw_data":
        expected = -(-count * kind.bitwidth // 8)
        if len(tensor.raw_data) != expected:
            raise ModelError(f"{label}: {shape} needs {expected} bytes, but the file holds {len(tensor.raw_data)}")
    else:
        count_stored = len(getattr(tensor, field))
        if count_stored != math.ceil(count / per_entry):
            raise ModelError(
                f"{label}: {shape} needs {math.ceil(count / per_entry)} elements, but {field} holds {count_stored}"
            )


def _check_one_place(tensor: onnx.TensorProto, field: str, label: str) -> str:
    """The one field that holds a tensor's data; programs would disagree on which of several to read."""
    if tensor.HasField("segment"):
        raise ModelError(f"{label}: it is a segment of a larger tensor; save the model with whole tensors")
    filled = [name for name in _FIELDS if len(getattr(tensor, name))]
    filled += ["raw_data"] if tensor.HasField("raw_data") else []
    filled += ["external_data"] if tensor.external_data else []
    home = "raw_data" if "raw_data" in filled and field != "string_data" else field
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        home = "external_data"
        if field == "string_data":
            raise ModelError(f"{label}: strings cannot be external data")
    stray = [name for name in filled if name != home]
    if stray:
        raise ModelError(
            f"{label}: its data belongs into {home}, but {', '.join(stray)} holds some; a tensor has its data in one "
            "place: save the model again"
        )
    return home


def _check_external(tensor: onnx.TensorProto, expected: int, label: str, folder: Path | None) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data) or not all(isinstance(each, str) for each in entries.values()):
        raise ModelError(f"{label}: the entries of its external data are no text in UTF-8, or stand there twice")
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(
            f"{label}: its data lies in the file {location!r}; load the model from its path, not from bytes"
        )
    where = f"{label}: external data {location!r}"
    outside = ModelError(f"{where} lies outside the model's folder {folder}; copy the data beside the model")
    if not location or "\0" in location:
        raise ModelError(f"{where}: no usable location")
    if os.path.isabs(location) or not _inside(Path(os.path.normpath(folder / location)), folder):
        raise outside
    path = folder / location
    if not _inside(Path(os.path.realpath(path)), folder):
        raise outside
    try:
        file_size = check_regular(path).stat().st_size
    except OSError as error:
        raise ModelError(f"{where} cannot be read: {error.strerror or error}") from error
    for key in ("offset", "length"):
        if not _NUMBER.fullmatch(entries.get(key, "0")):
            raise ModelError(f"{where}: {key} must be a number of bytes in digits, not {entries[key][:40]!r}")
    offset, length = int(entries.get("offset", 0)), int(entries.get("length", expected))
    if length != expected:
        raise ModelError(f"{where}: length {length} is given, but the shape {list(tensor.dims)} needs {expected} bytes")
    if offset + length > file_size:
        raise ModelError(f"{where}: bytes {offset} to {offset + length} are needed, but the file ends at {file_size}")


def _inside(path: Path, folder: Path) -> bool:
    return path.is_relative_to(os.path.realpath(folder)) or path.is_relative_to(folder)
