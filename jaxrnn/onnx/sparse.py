"""Sparse tensors of a file as dense ones: JAX works on dense arrays."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from jaxrnn._files.messages import bytes_of
from jaxrnn.errors import LimitError, ModelError, UnsupportedError
from jaxrnn.onnx.limits import Limits, raised
from jaxrnn.onnx.tensors import check_tensor, graphs_below, proto_label

#: The doc string of the dense tensors: they are not in the file, so that they cannot be written back to it.
WRITTEN_OUT = "jaxrnn: written out of a sparse tensor"
#: The copies of a dense tensor while it is made: as array, as bytes, in the message and in the graph.
_COPIES = 4


def write_out_sparse(proto: onnx.ModelProto, folder: Path | None, limits: Limits) -> onnx.ModelProto:
    """The model with dense tensors instead of sparse ones; the same object if it has none.

    Raises:
        ModelError: a sparse tensor does not make sense.
        LimitError: the dense ones would take more than ``constant_bytes``, all together.
        UnsupportedError: an attribute other than Constant's is sparse.
    """
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
        """Write out the sparse tensors of one graph, in place."""
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
                        f"{label}: the attribute {attribute.name!r} is sparse; only Constant has such an attribute"
                    )
                dense = self._dense(attribute.sparse_tensor, f"{label}, attribute {attribute.name!r}")
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)

    def _dense(self, sparse: onnx.SparseTensorProto, label: str) -> onnx.TensorProto:
        check_tensor(sparse.values, f"{label}, values", self._folder)
        check_tensor(sparse.indices, f"{label}, indices", self._folder)
        shape = tuple(sparse.dims)
        if any(size < 0 for size in shape):
            raise ModelError(f"{label}: negative dimension in shape {list(shape)}")
        if sparse.values.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            raise UnsupportedError(f"{label}: only numbers can be sparse; save it as a dense tensor")
        values = _read(sparse.values, f"{label}, values", self._folder)
        self._reserve(math.prod(shape) * values.dtype.itemsize, sparse.ByteSize(), shape, label)
        places = _places(_read(sparse.indices, f"{label}, indices", self._folder), shape, values, label)
        dense = np.zeros(math.prod(shape), values.dtype)
        dense[places] = values
        tensor = numpy_helper.from_array(dense.reshape(shape), sparse.values.name)
        tensor.doc_string = WRITTEN_OUT
        return tensor

    def _reserve(self, size: int, source_bytes: int, shape: tuple[int, ...], label: str) -> None:
        self._bytes += size
        self._source_bytes += source_bytes
        allowed = self._limits.for_file(self._source_bytes).constant_bytes
        if self._bytes * _COPIES > allowed:
            raise LimitError(
                f"{label} of shape {list(shape)} takes {bytes_of(size)} when it is written out, and all of them "
                f"{bytes_of(self._bytes)}, of which {_COPIES} copies are more than the {bytes_of(allowed)} that are "
                f"allowed; {raised('constant_bytes')}"
            )


def _read(tensor: onnx.TensorProto, label: str, folder: Path | None) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor, "" if folder is None else str(folder))
    except (ValueError, TypeError, OSError) as error:
        raise ModelError(f"{label} cannot be read: {error}") from error


def _places(indices: np.ndarray, shape: tuple[int, ...], values: np.ndarray, label: str) -> np.ndarray:
    """The flat indices of the values; ``indices`` holds these, or in each row an index for each axis."""
    if indices.dtype != np.int64 or values.ndim != 1:
        raise ModelError(
            f"{label}: the values must lie along one axis and the indices be int64, not of {values.ndim} axes and "
            f"{indices.dtype}"
        )
    if indices.shape == (values.size, len(shape)) and indices.ndim == 2:
        if (indices < 0).any() or (indices >= shape).any():
            raise ModelError(f"{label}: an index lies outside of the shape {list(shape)}")
        return np.asarray(np.ravel_multi_index(tuple(indices.T), shape)) if shape else np.zeros(values.size, np.int64)
    if indices.shape != values.shape:
        raise ModelError(
            f"{label}: {values.size} values need indices of shape [{values.size}] or "
            f"[{values.size}, {len(shape)}], not {list(indices.shape)}"
        )
    if (indices < 0).any() or (indices >= math.prod(shape)).any():
        raise ModelError(f"{label}: an index lies outside of the shape {list(shape)}")
    return indices
