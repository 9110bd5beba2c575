"""Checks of the tensors of a file before memory is allocated, and conversion of sparse to dense tensors."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from jaxrnn._files.arrays import MAX_ARRAY_BYTES
from jaxrnn._files.messages import bytes_of, too_large
from jaxrnn._files.stores import check_regular
from jaxrnn.errors import LimitError, ModelError, UnsupportedError
from jaxrnn.onnx.limits import Limits, raised

#: For each type, the repeated field for elements without ``raw_data``. Other types are in ``int32_data``.
_TYPED_FIELDS = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
#: The repeated fields for the elements of a tensor.
_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
#: A number in the entries of external data. Python also accepts signs, blanks, ``1_0`` and digits of other scripts,
#: which other programs read differently or refuse.
_NUMBER = re.compile(r"[0-9]{1,19}")


def proto_label(node: onnx.NodeProto) -> str:
    """Return the label of a node of a file in messages."""
    return f"node {node.name or (node.output[0] if node.output else '')!r} ({node.op_type})"


def graphs_in(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return the graphs in an attribute."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def graphs_below(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield a graph or function and all graphs inside, also in defaults of attributes."""
    pending = [graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for _, attribute in _attributes(graph) for inner in graphs_in(attribute)]


def tensors_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield the tensors of a graph or function and of inner graphs, with labels."""
    for each in graphs_below(graph):
        if isinstance(each, onnx.GraphProto):
            for tensor in each.initializer:
                yield f"initializer {tensor.name!r}", tensor
        for label, attribute in _attributes(each):
            for tensor in ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors):
                yield f"{label}, attribute {attribute.name!r}", tensor


def _attributes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[str, onnx.AttributeProto]]:
    """Yield the attributes of the nodes of a graph, and the defaults of a function, with labels of their owners."""
    if isinstance(graph, onnx.FunctionProto):
        yield from ((f"function {graph.name!r}", default) for default in graph.attribute_proto)
    for node in graph.node:
        label = proto_label(node)
        yield from ((label, attribute) for attribute in node.attribute)


#: The most axes of an array of NumPy.
_MAX_RANK = 64


def check_rank(rank: int, label: str) -> None:
    """Refuse more axes than an array can have, before sizes are multiplied."""
    if rank > _MAX_RANK:
        raise ModelError(f"{label}: {rank} axes, but an array has at most {_MAX_RANK}")


def check_tensor(tensor: onnx.TensorProto, label: str, folder: Path | None) -> None:
    """Check the shape and the type of a tensor against its data."""
    try:
        kind = ir.DataType(tensor.data_type)
    except ValueError:
        kind = ir.DataType.UNDEFINED
    if kind == ir.DataType.UNDEFINED:
        raise ModelError(f"{label}: unknown element type {tensor.data_type}")
    check_rank(len(tensor.dims), label)
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{label}: negative dimension in shape {list(tensor.dims)}")
    field = _TYPED_FIELDS.get(kind.name, "int32_data")
    home = _check_one_place(tensor, field, label)
    count = math.prod(tensor.dims)
    shape = f"shape {list(tensor.dims)} of {kind.name}"
    if home == "external_data":
        _check_external(tensor, -(-count * kind.bitwidth // 8), label, folder)
    elif home == "raw_data":
        expected = -(-count * kind.bitwidth // 8)
        if len(tensor.raw_data) != expected:
            raise ModelError(f"{label}: {shape} needs {expected} bytes, but the file has {len(tensor.raw_data)}")
    else:
        expected, stored = count, len(getattr(tensor, field))
        if kind.name.startswith("COMPLEX"):
            expected = 2 * count
        elif kind != ir.DataType.STRING and kind.bitwidth < 8:  # an entry has several elements
            expected = -(-count * kind.bitwidth // 8)
        if stored != expected:
            raise ModelError(f"{label}: {shape} needs {expected} elements, but {field} has {stored}")


def _check_one_place(tensor: onnx.TensorProto, field: str, label: str) -> str:
    """Return the single field with a tensor's data; programs disagree on which of several fields to read."""
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
            f"{label}: its data must be in {home}, but {', '.join(stray)} also has data; save the model again"
        )
    return home


def _check_external(tensor: onnx.TensorProto, expected: int, label: str, folder: Path | None) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) < len(tensor.external_data) or not all(isinstance(each, str) for each in entries.values()):
        raise ModelError(f"{label}: the entries of its external data are not valid UTF-8, or are repeated")
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{label}: its data is in the file {location!r}; load the model from its path, not from bytes")
    where = f"{label}: external data {location!r}"
    outside = ModelError(f"{where} is outside of the model's folder {folder}; copy the data beside the model")
    if not location or "\0" in location:
        raise ModelError(f"{where}: the location is empty or invalid")
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
    if length > MAX_ARRAY_BYTES:
        raise LimitError(f"{where}: {too_large(length, MAX_ARRAY_BYTES)}")


def _inside(path: Path, folder: Path) -> bool:
    return path.is_relative_to(os.path.realpath(folder)) or path.is_relative_to(folder)


#: The doc string of dense tensors from sparse tensors: such tensors cannot be written back to the file.
WRITTEN_OUT = "jaxrnn: written out of a sparse tensor"
#: The simultaneous copies of a new dense tensor: array, bytes, message and graph.
_COPIES = 4


def write_out_sparse(proto: onnx.ModelProto, folder: Path | None, limits: Limits) -> onnx.ModelProto:
    """Return the model with dense instead of sparse tensors; the same object if all tensors are dense."""
    graphs = (proto.graph, *proto.functions)
    if not any(_is_sparse(graph) for outer in graphs for graph in graphs_below(outer)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    writer = _Writer(folder, limits)
    for outer in (copy.graph, *copy.functions):
        for graph in graphs_below(outer):
            writer.graph(graph)
    return copy


def _is_sparse(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    if isinstance(graph, onnx.GraphProto) and graph.sparse_initializer:
        return True
    return any(attribute.HasField("sparse_tensor") for node in graph.node for attribute in node.attribute)


class _Writer:
    def __init__(self, folder: Path | None, limits: Limits):
        self._folder, self._limits = folder, limits
        self._bytes = self._source_bytes = 0

    def graph(self, graph: onnx.GraphProto | onnx.FunctionProto) -> None:
        """Convert the sparse tensors of a graph, in place."""
        if isinstance(graph, onnx.GraphProto):
            for sparse in graph.sparse_initializer:
                label = f"the sparse initializer {sparse.values.name!r}"
                graph.initializer.append(self._dense(sparse, label))
            del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if not attribute.HasField("sparse_tensor"):
                    continue
                label = proto_label(node)
                if node.op_type != "Constant" or attribute.name != "sparse_value":
                    raise UnsupportedError(
                        f"{label}: the attribute {attribute.name!r} is a sparse tensor, which is supported only in "
                        "Constant"
                    )
                dense = self._dense(attribute.sparse_tensor, f"{label}, attribute {attribute.name!r}")
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)

    def _dense(self, sparse: onnx.SparseTensorProto, label: str) -> onnx.TensorProto:
        check_tensor(sparse.values, f"{label}, values", self._folder)
        check_tensor(sparse.indices, f"{label}, indices", self._folder)
        shape = tuple(sparse.dims)
        check_rank(len(shape), label)
        if any(size < 0 for size in shape):
            raise ModelError(f"{label}: negative dimension in shape {list(shape)}")
        if sparse.values.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            raise UnsupportedError(f"{label}: only numbers can be sparse; save the tensor as a dense tensor")
        values = _read(sparse.values, f"{label}, values", self._folder)
        size = math.prod(shape) * values.dtype.itemsize
        self._bytes += size
        self._source_bytes += sparse.ByteSize()
        allowed = self._limits.for_file(self._source_bytes).constant_bytes
        if self._bytes * _COPIES > allowed:
            raise LimitError(
                f"{label} of shape {list(shape)} takes {bytes_of(size)} as a dense tensor. All dense tensors take "
                f"{bytes_of(self._bytes)}, and {_COPIES} copies exceed the limit of {bytes_of(allowed)}; "
                f"{raised('constant_bytes')}"
            )
        places = _places(_read(sparse.indices, f"{label}, indices", self._folder), shape, values, label)
        dense = np.zeros(math.prod(shape), values.dtype)
        dense[places] = values
        tensor = numpy_helper.from_array(dense.reshape(shape), sparse.values.name)
        tensor.doc_string = WRITTEN_OUT
        return tensor


def _read(tensor: onnx.TensorProto, label: str, folder: Path | None) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor, "" if folder is None else str(folder))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        raise ModelError(f"{label} cannot be read: {error}") from error


def _places(indices: np.ndarray, shape: tuple[int, ...], values: np.ndarray, label: str) -> np.ndarray:
    """Return the flat indices of the values; ``indices`` has flat indices, or rows with an index for each axis."""
    if indices.dtype != np.int64 or values.ndim != 1:
        raise ModelError(
            f"{label}: the values must have one axis and the indices dtype int64, not {values.ndim} axes and "
            f"{indices.dtype}"
        )
    in_rows = indices.shape == (values.size, len(shape))
    if not in_rows and indices.shape != values.shape:
        raise ModelError(
            f"{label}: {values.size} values need indices of shape [{values.size}] or "
            f"[{values.size}, {len(shape)}], not {list(indices.shape)}"
        )
    if (indices < 0).any() or (indices >= (shape if in_rows else math.prod(shape))).any():
        raise ModelError(f"{label}: an index lies outside of the shape {list(shape)}")
    if not in_rows:
        return indices
    return np.asarray(np.ravel_multi_index(tuple(indices.T), shape)) if shape else np.zeros(values.size, np.int64)
