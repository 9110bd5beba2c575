"""The tables of LiteRT files, as far as the converter leaves them to us: what follows changes no number.

Slices that cover an axis become a split, outputs get tensors of their own, empty tables are left out, weights are
stored in 16 bits, and metadata are added.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.verification.litert import package

#: The numbers of parts of splits that LiteRT's fast kernels (XNNPACK) have.
_PARTS = (2, 3, 4)


@dataclass
class Tables:
    """The tables of a file, with the module of LiteRT's schema."""

    schema: Any
    model: Any

    @classmethod
    def of(cls, written: bytes) -> Tables:
        """Read the tables of a file."""
        schema = package("ai_edge_litert.schema_py_generated")
        model = schema.ModelT.InitFromPackedBuf(written)
        for each in model.buffers:
            if each.offset > 1:  # the quantizer stores large buffers behind the tables
                each.data = np.frombuffer(written, np.uint8, each.size, each.offset)
                each.offset = each.size = 0
        return cls(schema, model)

    def packed(self) -> bytes:
        """Return the file."""
        builder = package("flatbuffers").Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def is_any(self, node: Any, *names: str) -> bool:
        """Return True if an operator has one of these names."""
        code = self.model.operatorCodes[node.opcodeIndex].builtinCode
        return any(code == getattr(self.schema.BuiltinOperator, name) for name in names)

    def data(self, tensor: Any) -> np.ndarray | None:
        """Return the bytes of a constant, or None if the tensor is computed."""
        data = self.model.buffers[tensor.buffer].data
        return None if data is None or not len(data) else np.frombuffer(bytes(data), np.uint8)

    def buffer(self, data: np.ndarray) -> int:
        """Add a buffer, and return its place."""
        buffer = self.schema.BufferT()
        buffer.data = data.reshape(-1).view(np.uint8)
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def operator(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], version: int = 1, **options: Any
    ) -> Any:
        """Return an operator with options by name."""
        code, node = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, name)
        code.version = version
        alike = [vars(each) == vars(code) for each in self.model.operatorCodes]
        if not any(alike):
            self.model.operatorCodes.append(code)
        node.opcodeIndex = alike.index(True) if any(alike) else len(alike)
        node.inputs, node.outputs = list(inputs), list(outputs)
        if options:
            kind = f"{name.capitalize()}Options"
            node.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
            node.builtinOptions = getattr(self.schema, f"{kind}T")()
            vars(node.builtinOptions).update(options)
        return node


def finished(written: bytes, texts: Mapping[str, str]) -> bytes:
    """Return the file with joined slices, separate outputs and without empty tables, and with entries of metadata."""
    tables = Tables.of(written)
    for graph in tables.model.subgraphs:
        _join_slices(tables, graph)
    _separate_outputs(tables)
    tables.model.metadata = tables.model.metadata or []
    for name, text in texts.items():
        entry = tables.schema.MetadataT()
        entry.name, entry.buffer = name, tables.buffer(np.frombuffer(text.encode(), np.uint8))
        tables.model.metadata.append(entry)
    _without_empty_tables(tables)
    return tables.packed()


def _join_slices(tables: Tables, graph: Any) -> None:
    """Replace slices of equal size that cover an axis, such as the gates of a cell, by a split."""
    types = tables.schema.TensorType.FLOAT32, tables.schema.TensorType.INT32  # of conditions, there are no splits
    groups: dict[tuple[int, int], dict[int, int]] = {}  # by array and axis, the place of each slice by its start
    for place, node in enumerate(graph.operators):
        if not tables.is_any(node, "SLICE"):
            continue
        x, starts, y = (graph.tensors[each] for each in (*node.inputs[:2], *node.outputs))
        axes = np.flatnonzero(np.not_equal(x.shape, y.shape)).tolist()
        data = tables.data(starts)
        if len(axes) == 1 and data is not None and x.type in types and starts.type == types[1]:
            start = int(data.view(np.int32)[axes[0]])
            groups.setdefault((int(node.inputs[0]), axes[0]), {}).setdefault(start, place)
    axes_of: dict[int, int] = {}
    for (index, axis), slices in groups.items():
        size = int(graph.tensors[index].shape[axis])
        outputs = [int(graph.operators[place].outputs[0]) for _, place in sorted(slices.items())]
        sizes = [int(graph.tensors[each].shape[axis]) for each in outputs]
        if len(outputs) not in _PARTS or sorted(slices) != [*range(0, size, sizes[0])] or {*sizes} != {sizes[0]}:
            continue
        if axis not in axes_of:
            tensor = tables.schema.TensorT()
            tensor.name, tensor.shape, tensor.hasRank = b"axis", [], True
            tensor.type, tensor.buffer = tables.schema.TensorType.INT32, tables.buffer(np.array([axis], np.int32))
            axes_of[axis] = len(graph.tensors)
            graph.tensors.append(tensor)
        first, *others = sorted(slices.values())
        graph.operators[first] = tables.operator("SPLIT", [axes_of[axis], index], outputs, numSplits=len(outputs))
        for place in others:
            graph.operators[place] = None
    graph.operators = [each for each in graph.operators if each is not None]


def _separate_outputs(tables: Tables) -> None:
    """Copy each output that is an input or another output to a tensor of its own.

    The C interface of LiteRT 2.3 takes names and buffers of outputs from tensors, and mixes up outputs that share one.
    """
    for signature in tables.model.signatureDefs:
        graph = tables.model.subgraphs[signature.subgraphIndex]
        inputs, outputs = {int(each) for each in graph.inputs}, list[int]()
        computed = {int(each) for node in graph.operators for each in node.outputs} | inputs
        for named in signature.outputs:
            index = named.tensorIndex
            if index in inputs or index in outputs:
                tensor = copy.copy(graph.tensors[index])
                tensor.name, named.tensorIndex = named.name, len(graph.tensors)
                graph.tensors.append(tensor)
                # LiteRT computes a copy of a constant beforehand, and refuses the buffer of the caller.
                if index in computed:
                    tensor.buffer = 0
                    shape = [int(size) for size in tensor.shape]
                    graph.operators.append(tables.operator("RESHAPE", [index], [named.tensorIndex], newShape=shape))
            outputs.append(named.tensorIndex)
        graph.outputs = outputs


def _without_empty_tables(tables: Tables) -> None:
    """Leave out empty buffers of computed tensors and empty parameters of quantisation: a tenth of many operators."""
    model = tables.model
    tensors = [each for graph in model.subgraphs for each in graph.tensors]
    for each in tensors:
        each.buffer = 0 if tables.data(each) is None else each.buffer
        if each.quantization is not None and each.quantization.scale is None:
            each.quantization = None
    holders = [*tensors, *model.metadata]
    kept = sorted({0, *(each.buffer for each in holders)})
    places = {index: place for place, index in enumerate(kept)}
    for each in holders:
        each.buffer = places[each.buffer]
    model.buffers = [model.buffers[index] for index in kept]


def in_float16(written: bytes, excluded: str, weighted: Sequence[str]) -> bytes:
    """Store the second operands of operators in 16 bits, from which LiteRT makes float32 when it opens the file.

    Operators stay if the names of their results have an ``excluded`` pattern.
    """
    tables, halves = Tables.of(written), dict[int, int]()
    types, model = tables.schema.TensorType, tables.model
    for graph in model.subgraphs:
        chosen, others = set(), set()
        for node in graph.operators:
            is_product = tables.is_any(node, *weighted)
            kept = re.search(excluded, ";".join(graph.tensors[each].name.decode() for each in node.outputs))
            for place, index in enumerate(node.inputs):
                (chosen if is_product and place == 1 and not kept else others).add(int(index))
        for index in sorted(chosen - others):
            tensor, data = graph.tensors[index], tables.data(graph.tensors[index])
            if data is None or tensor.type != types.FLOAT32:
                continue
            if tensor.buffer not in halves:
                with np.errstate(over="ignore"):
                    numbers = data.view(np.float32).astype(np.float16)
                if not np.isfinite(numbers).all():
                    continue
                halves[tensor.buffer] = tables.buffer(numbers)
            half = copy.copy(tensor)
            half.type, half.buffer, half.name = types.FLOAT16, halves[tensor.buffer], tensor.name + b"_half"
            # The third version is the first that takes float16.
            graph.operators.insert(0, tables.operator("DEQUANTIZE", [len(graph.tensors)], [index], version=3))
            graph.tensors.append(half)
            tensor.buffer = 0  # it is computed
    return tables.packed()


def product_names(written: bytes, operators: Sequence[str]) -> list[str]:
    """Return the names of the results of operators."""
    tables = Tables.of(written)
    tensors = [
        graph.tensors[node.outputs[0]].name.decode()
        for graph in tables.model.subgraphs
        for node in graph.operators
        if tables.is_any(node, *operators)
    ]
    return [part for name in tensors for part in name.split(";")]


def overflowing(written: bytes, ranges: Mapping[str, Any], operators: Sequence[str]) -> list[str]:
    """Return products with a bias beyond 32 bits in steps of input times weight, as pruned channels have.

    ``ranges`` has ``min`` and ``max`` of tensors by name.
    """
    tables, found = Tables.of(written), []
    for graph in tables.model.subgraphs:
        for node in graph.operators:
            if not tables.is_any(node, *operators) or len(node.inputs) < 3 or node.inputs[2] < 0:
                continue
            x, kernel, added = (graph.tensors[each] for each in node.inputs)
            weights, bias, known = tables.data(kernel), tables.data(added), ranges.get(x.name.decode())
            if weights is None or bias is None or known is None:
                continue
            offsets = np.abs(bias.view(np.float32))
            sizes = np.abs(weights.view(np.float32).reshape(kernel.shape))
            channel = -1 if kernel.shape[0] != offsets.size else 0
            steps = np.moveaxis(sizes, channel, 0).reshape(offsets.size, -1).max(1) / 127
            step = (np.max(known["max"]) - np.min(known["min"])) / 255
            if np.any(offsets > 2.0**31 * step * steps):
                found.append(";".join(graph.tensors[each].name.decode() for each in node.outputs))
    return found
