"""Whether a tensor of the file holds what it claims, before anyone allocates or reads it."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

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


def tensors_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor of a graph or function, subgraphs included, with what to call it."""
    if isinstance(graph, onnx.GraphProto):
        for tensor in graph.initializer:
            yield f"initializer {tensor.name!r}", tensor
    for node in graph.node:
        label = f"node {node.name or (node.output[0] if node.output else '')!r} ({node.op_type})"
        for attribute in node.attribute:
            for tensor in ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors):
                yield f"{label}, attribute {attribute.name!r}", tensor
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from tensors_of(inner)


def check_tensor(tensor: onnx.TensorProto, label: str, folder: Path | None) -> None:
    """The claimed shape and type against the data that is there.

    Raises:
        ModelError: unknown type, negative dimension, too little or too much data, or external data that is missing,
            outside the model's folder, or shorter than it says.
    """
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        kind = ir.DataType.UNDEFINED
    if kind == ir.DataType.UNDEFINED:
        raise ModelError(f"{label}: unknown element type {tensor.data_type}")
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{label}: negative dimension in shape {list(tensor.dims)}")
    count = math.prod(tensor.dims)
    shape = f"shape {list(tensor.dims)} of {kind.name}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if kind == ir.DataType.STRING:
            raise ModelError(f"{label}: strings cannot be external data")
        _check_external(tensor, -(-count * kind.bitwidth // 8), label, folder)
    elif tensor.HasField("raw_data"):
        expected = -(-count * kind.bitwidth // 8) if kind != ir.DataType.STRING else -1
        if len(tensor.raw_data) != expected:
            raise ModelError(f"{label}: {shape} needs {expected} bytes, but the file holds {len(tensor.raw_data)}")
    else:
        per_entry = 8 // kind.bitwidth if kind != ir.DataType.STRING and kind.bitwidth < 8 else 1
        field, per_entry = _TYPED_FIELDS.get(kind.name, ("int32_data", per_entry))
        found = len(getattr(tensor, field))
        if found != math.ceil(count / per_entry):
            raise ModelError(
                f"{label}: {shape} needs {math.ceil(count / per_entry)} elements, but {field} holds {found}"
            )


def _check_external(tensor: onnx.TensorProto, expected: int, label: str, folder: Path | None) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
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
        status = path.stat()
    except OSError as error:
        raise ModelError(f"{where} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{where} is not a regular file")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", expected))
    except ValueError as error:
        raise ModelError(f"{where}: offset and length must be integers") from error
    if length != expected:
        raise ModelError(f"{where}: length {length} is given, but the shape {list(tensor.dims)} needs {expected} bytes")
    if offset < 0 or offset + length > status.st_size:
        raise ModelError(
            f"{where}: bytes {offset} to {offset + length} are needed, but the file ends at {status.st_size}"
        )


def _inside(path: Path, folder: Path) -> bool:
    return path.is_relative_to(os.path.realpath(folder)) or path.is_relative_to(folder)
