"""Weights of a module in an exported file, found by marks and written under the framework's names and layouts."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxrnn.errors import ModelError
from jaxrnn.onnx.parameters import WEIGHTS
from jaxrnn.onnx.tensors import graphs_below, graphs_in

Arrays = Mapping[str, np.ndarray]
#: Marks are consecutive float32 numbers from 2^-60 on: too small for the constants of a network, and large enough that
#: no product of a mark is subnormal.
_FIRST = int(np.float32(2.0**-60).view(np.int32))
_LAST = int(np.float32(2.0**-20).view(np.int32))
_MARKED_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
#: Pieces of one axis from different weights, such as the biases of a GRU.
_MOST_PIECES = 16


def export_with_names(weights: Arrays, export: Callable[[Arrays], onnx.ModelProto]) -> onnx.ModelProto:
    """Export a module so that the weights are parameters under the framework's names.

    Initializers of the file contain the weights in the framework's layout, and nodes at the start of the graph convert
    each weight to the layout of the operator that reads the weight. A weight with which the exporter has computed, such
    as a normalization that became part of a convolution, is not a parameter.

    Exporters rename weights, regroup gates, transpose matrices, and merge equal tensors. So the module is exported
    twice with a different number in each element of the weights. A tensor of the file that contains such numbers is a
    rearrangement of weights, and the two exports must agree on the rearrangement. Nodes that rearrange the weights then
    replace the tensor, and the weights get their values back.

    ``export`` exports the module with the given weights, a dict of float arrays, in place of the module's weights.
    """
    marked = [name for name, array in weights.items() if array.dtype in (np.float32, np.float64)]
    # In a second round, weights that the exporter has computed with keep their values.
    for _ in range(2):
        chosen = {name: weights[name] for name in marked}
        ids, total = _numbered(chosen), sum(array.size for array in chosen.values())
        if not 0 < total <= _LAST - _FIRST:
            break
        marks = (
            {name: _mark(ids[name], flip, total).astype(array.dtype) for name, array in chosen.items()}
            for flip in (False, True)
        )
        proto, other = (export({**weights, **each}) for each in marks)
        places, others = list(_places(proto)), list(_places(other))
        if [place.form for place in places] != [place.form for place in others]:
            break
        sources = [_sources(place.array, other.array, total) for place, other in zip(places, others, strict=True)]
        writer = _Writer(proto, chosen, ids)
        for place, found in zip(places, sources, strict=True):
            if found is not None and (found[0] >= 0).any():
                writer.replace(place, *found)
        if all(found is not None for found in sources):
            return writer.finish()
        marked = [name for name in marked if name in writer.written]
    return export(weights)


def _numbered(weights: Arrays) -> dict[str, np.ndarray]:
    """Return consecutive numbers from 0 on for the elements of all weights."""
    starts = np.cumsum([0, *(array.size for array in weights.values())])
    return {
        name: np.arange(start, start + array.size).reshape(array.shape)
        for start, (name, array) in zip(starts, weights.items(), strict=False)
    }


def _mark(ids: np.ndarray, flip: bool, total: int) -> np.ndarray:
    return (_FIRST + (total - 1 - ids if flip else ids)).astype(np.int32).view(np.float32)


def _read_marks(array: np.ndarray, flip: bool, total: int) -> np.ndarray:
    """Decode the marks in an array to numbers of weight elements; -1 if an element is not a mark."""
    narrow = array.astype(np.float32)
    ids = narrow.view(np.int32).astype(np.int64) - _FIRST
    ids = np.where((ids >= 0) & (ids < total) & (narrow == array), ids, -1)
    return np.where(ids >= 0, total - 1 - ids, -1) if flip else ids


def _sources(first: np.ndarray, second: np.ndarray, total: int) -> tuple[np.ndarray, bool] | None:
    """Return the number of the weight element that each element of a tensor copies, or -1 for constants.

    The second result is True if the tensor contains the weights with the opposite sign. Returns None if the exporter
    has computed the tensor from weights in any other way.
    """
    constant = (first == second) | (np.isnan(first) & np.isnan(second))
    for sign in (1, -1):
        ids, again = _read_marks(sign * first, False, total), _read_marks(sign * second, True, total)
        moved = (ids == again) & (ids >= 0)
        if (moved | constant).all():
            return np.where(moved, ids, -1), sign < 0
    return None


@dataclass(frozen=True)
class _Place:
    """A float tensor of a graph: an initializer, or the value of a `Constant` node."""

    graph: onnx.GraphProto
    tensor: onnx.TensorProto
    node: onnx.NodeProto | None

    @property
    def name(self) -> str:
        return self.tensor.name if self.node is None else self.node.output[0]

    @property
    def array(self) -> np.ndarray:
        return numpy_helper.to_array(self.tensor)

    @property
    def form(self) -> tuple[int, tuple[int, ...]]:
        return self.tensor.data_type, tuple(self.tensor.dims)


def _places(proto: onnx.ModelProto) -> Iterator[_Place]:
    """Yield the float tensors that outputs depend on, in an order that depends only on the structure of the graph."""
    found: dict[int, dict[str, onnx.NodeProto | onnx.TensorProto]] = {}

    def producers(graph: onnx.GraphProto) -> Mapping[str, onnx.NodeProto | onnx.TensorProto]:
        if id(graph) not in found:
            found[id(graph)] = {name: node for node in graph.node for name in node.output}
            found[id(graph)] |= {tensor.name: tensor for tensor in graph.initializer}
        return found[id(graph)]

    pending: list[tuple[str, tuple[onnx.GraphProto, ...]]] = [
        (output.name, (proto.graph,)) for output in proto.graph.output
    ]
    seen: set[tuple[int, str]] = set()
    while pending:
        name, scope = pending.pop()
        while scope and name not in producers(scope[-1]):
            scope = scope[:-1]
        if not scope or (id(scope[-1]), name) in seen:
            continue
        graph, producer = scope[-1], producers(scope[-1])[name]
        if isinstance(producer, onnx.TensorProto):
            seen.add((id(graph), name))
            if producer.data_type in _MARKED_TYPES:
                yield _Place(graph, producer, None)
            continue
        seen.update((id(graph), output) for output in producer.output)
        if producer.op_type == "Constant":
            tensor = next((each.t for each in producer.attribute if each.name == "value"), None)
            if tensor is not None and tensor.data_type in _MARKED_TYPES:
                yield _Place(graph, tensor, producer)
        pending += [(each, scope) for each in producer.input if each]
        for attribute in producer.attribute:
            pending += [(output.name, (*scope, inner)) for inner in graphs_in(attribute) for output in inner.output]


@dataclass
class _Writer:
    """Writes weights into a file, with nodes that rearrange the weights in place of the rearranged tensors."""

    proto: onnx.ModelProto
    weights: Arrays
    ids: Arrays
    written: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = np.array([ids.flat[0] for ids in self.ids.values() if ids.size])
        self.names = [name for name, ids in self.ids.items() if ids.size]
        self.taken = {name for graph in graphs_below(self.proto.graph) for node in graph.node for name in node.output}
        self.taken |= {value.name for value in self.proto.graph.input}
        #: Replaced tensors, and the values that replace them.
        self.moved: list[tuple[_Place, str]] = []

    def replace(self, place: _Place, source: np.ndarray, negated: bool) -> None:
        """Plan the rearrangement of weights that replaces the tensor of a place."""
        value = self._rearranged(source, -place.array if negated else place.array)
        self.moved.append((place, self._add("Neg", value) if negated else value))

    def finish(self) -> onnx.ModelProto:
        """Return the file with the planned rearrangements."""
        graph = self.proto.graph
        for place, value in self.moved:
            if place.node is not None:
                identity = helper.make_node("Identity", [value], place.node.output, name=place.node.name)
                place.node.CopyFrom(identity)
            else:
                if value != place.name:
                    _rename_reads(place.graph, place.name, value)
                place.graph.initializer.remove(place.tensor)
        kept = {tensor.name for tensor in graph.initializer}
        for name in self.names:
            if name in self.written:
                if name in self.taken | kept:
                    raise ModelError(f"the weight {name!r} has the name of another value of the file; rename the layer")
                graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(self.weights[name]), name))
        nodes = [*self.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        self.proto.metadata_props.add(key=WEIGHTS, value=json.dumps(sorted(self.written)))
        return self.proto

    def _rearranged(self, source: np.ndarray, array: np.ndarray) -> str:
        """Write nodes that compute an array from elements of weights, and return the name of the result."""
        owners = self._owners(source)
        if len(owners) == 1 and (source >= 0).all():
            result = self._permuted(source, owners[0]) or self._selected(source, owners[0])
            if result is not None:
                return result
        for axis in range(source.ndim):
            pieces = self._pieces(source, axis)
            if 1 < len(pieces) <= _MOST_PIECES:
                parts = [(np.take(source, piece, axis), np.take(array, piece, axis)) for piece in pieces]
                return self._add("Concat", *(self._piece(*part) for part in parts), axis=axis)
        return self._gathered(source, array)

    def _piece(self, source: np.ndarray, array: np.ndarray) -> str:
        return self._rearranged(source, array) if (source >= 0).any() else self._constant(array)

    def _owners(self, source: np.ndarray) -> list[str]:
        found = np.unique(np.searchsorted(self.starts, source[source >= 0], side="right") - 1)
        return [self.names[index] for index in found]

    def _pieces(self, source: np.ndarray, axis: int) -> list[np.ndarray]:
        """Split an axis into runs of slices from one weight or from constants; no runs if slices mix weights."""
        owner = np.where(source >= 0, np.searchsorted(self.starts, source, side="right") - 1, -1)
        rows = np.moveaxis(owner, axis, 0).reshape(source.shape[axis], -1)
        if rows.size == 0 or (rows != rows[:, :1]).any():
            return []
        cuts = np.flatnonzero(np.diff(rows[:, 0])) + 1
        return np.split(np.arange(len(rows)), cuts)

    def _permuted(self, source: np.ndarray, owner: str) -> str | None:
        """Write a weight with transposed axes and a new shape, if that suffices."""
        ids = self.ids[owner]
        if ids.size != source.size:
            return None
        for order in itertools.permutations(range(ids.ndim)):
            if np.array_equal(ids.transpose(order).reshape(source.shape), source):
                value = self._weight(owner)
                if order != tuple(range(ids.ndim)):
                    value = self._add("Transpose", value, perm=order)
                turned = tuple(ids.shape[axis] for axis in order)
                return value if turned == source.shape else self._reshaped(value, source.shape)
        return None

    def _selected(self, source: np.ndarray, owner: str) -> str | None:
        """Write reordered slices of a weight along an axis, such as the gates of a cell, if that suffices."""
        ids, goal = np.squeeze(self.ids[owner]), np.squeeze(source)
        if ids.ndim != goal.ndim:
            return None
        for order in itertools.permutations(range(ids.ndim)):
            turned = ids.transpose(order)
            for axis in range(ids.ndim):
                where = {int(row.flat[0]): index for index, row in enumerate(np.moveaxis(turned, axis, 0))}
                picks = [where.get(int(row.flat[0]), -1) for row in np.moveaxis(goal, axis, 0)]
                if min(picks, default=-1) >= 0 and np.array_equal(np.take(turned, picks, axis), goal):
                    value = self._weight(owner)
                    value = value if ids.shape == self.ids[owner].shape else self._reshaped(value, ids.shape)
                    if order != tuple(range(ids.ndim)):
                        value = self._add("Transpose", value, perm=order)
                    value = self._add("Gather", value, self._integers(picks), axis=axis)
                    return value if goal.shape == source.shape else self._reshaped(value, source.shape)
        return None

    def _gathered(self, source: np.ndarray, array: np.ndarray) -> str:
        """Write any arrangement of elements, element by element."""
        owners = self._owners(source)
        flat = [self._reshaped(self._weight(owner), (-1,)) for owner in owners]
        places, ids = np.full(source.shape, -1), np.concatenate([self.ids[owner].ravel() for owner in owners])
        moved, order = source >= 0, np.argsort(ids)
        places[moved] = order[np.searchsorted(ids, source[moved], sorter=order)]
        constants = array[~moved]
        if constants.size:
            flat.append(self._constant(constants))
            places[~moved] = ids.size + np.arange(constants.size)
        joined = flat[0] if len(flat) == 1 else self._add("Concat", *flat, axis=0)
        return self._add("Gather", joined, self._integers(places), axis=0)

    def _weight(self, name: str) -> str:
        self.written.add(name)
        return name

    def _constant(self, array: np.ndarray) -> str:
        if array.size and (array == array.flat[0]).all():
            value = numpy_helper.from_array(array.reshape(-1)[:1])
            return self._add("ConstantOfShape", self._integers(array.shape), value=value)
        return self._add("Constant", value=numpy_helper.from_array(np.ascontiguousarray(array)))

    def _integers(self, values: Any) -> str:
        return self._add("Constant", value=numpy_helper.from_array(np.asarray(values, np.int64)))

    def _reshaped(self, value: str, shape: tuple[int, ...]) -> str:
        return self._add("Reshape", value, self._integers(shape))

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"layout.{len(self.nodes)}"
        while output in self.taken:
            output += "_"
        self.taken.add(output)
        self.nodes.append(helper.make_node(operator, inputs, [output], name=f"/layout/{output}", **attributes))
        return output


def _rename_reads(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Replace a value in the inputs of all nodes of a graph and of inner graphs."""
    for each in graphs_below(graph):
        for node in each.node:
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new
        if isinstance(each, onnx.GraphProto):
            for output in each.output:
                if output.name == old and each is not graph:
                    each.node.append(helper.make_node("Identity", [new], [old]))


@contextlib.contextmanager
def quiet(level: int) -> Iterator[None]:
    """Silence the warnings of an exporter, and its logs up to a level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def declare_shapes(proto: onnx.ModelProto, shapes: Sequence[Sequence[int | str | None]]) -> None:
    """Declare the shapes of the outputs, which exporters state wrongly or not at all."""
    for output, shape in zip(proto.graph.output, shapes, strict=True):
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, shape))
