"""The choice of the tensors that are parameters of a model, and their names.

Parameters are float initializers and float ``Constant`` tensors of rank 1 and more (some exporters put all weights
there, also in the branches of ``If``). Each parameter has a stable, unique name and ONNX's own layout. These tensors
are not parameters:

- values that an operator needs while tracing (axes, pads, the scales of Resize): inputs marked ``Static``, and every
  constant that only reaches such an input through other operators;
- values of masks: minus infinity and other numbers beyond 1e30, and single numbers that only masks select or compare;
- numbers of a formula: inputs marked ``Foldable`` (the exponent of Pow, the bounds of Clip), constants that are only
  compared, and scalars as exporters write the 1e-5 in ``sqrt(x + 1e-5)`` and the 1 in ``1 - z``: ``Constant`` nodes,
  initializers inside subgraphs, and initializers with names that exporters invent for numbers;
- zeros that are only read as initial values of recurrences: some exporters write a missing state in this way;
- scalar zeros that are compared, even if other nodes read the zeros: exporters that merge equal constants use the same
  zero for a counter, a missing state and a mask.

A tensor of the file is a single parameter, even if a local function with the tensor is called several times.

A file may also state its parameters: the metadata entry ``jaxrnn.weights`` lists the names of initializers, in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.graph import Address, graphs_of, origin_of, subgraphs_of, tensor_origin
from jaxrnn.onnx.recurrences import starts_recurrence
from jaxrnn.onnx.registry import Operator

FLOATS = frozenset(map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))

#: The largest weight; masks have larger numbers.
_LARGEST = 1e30

#: Names of scalars that were written as numbers, by PyTorch, TensorFlow and ``jaxrnn.export_onnx``.
_NUMBER = re.compile(r"(val|const|scalar_tensor_default)(_\d+)*(_cast)?(_\d+)*|(.*/)?[xy]:0|(.*/)?constant(_\d+)?")


#: The entry of a file's metadata that lists its parameters.
WEIGHTS = "jaxrnn.weights"


def stated_parameters(model: ir.Model) -> frozenset[str] | None:
    """Return the initializers that the metadata of a file list as its parameters, or None without such a list.

    Raises:
        ModelError: the entry is not a list of initializers of the graph.
    """
    text = model.metadata_props.get(WEIGHTS)
    if text is None:
        return None
    try:
        names: Any = json.loads(text)
    except ValueError:
        names = None
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not listed or not model.graph.initializers.keys() >= set(names):
        raise ModelError(
            f"the metadata entry {WEIGHTS!r} must be a JSON list of names of initializers, not {text[:80]!r}; delete "
            "the entry, so that the parameters are found by their use"
        )
    return frozenset(names)


def name_parameters(
    graph: ir.Graph,
    operator_of: Callable[[ir.Node], Operator],
    constant_of: Callable[[ir.Value], np.ndarray | None],
    stated: Collection[str] | None = None,
) -> dict[ir.Value, str]:
    """Return the names of the parameters by their values in the graph, in the order of the file."""
    if stated is not None:
        return {value: name for name, value in graph.initializers.items() if name in stated}
    fixed = _needed_while_tracing(graph, operator_of) | _never_trained(graph, operator_of, constant_of)
    origins = [origin_of(value) for value in fixed if _is_constant(value)]
    for node in graph.all_nodes():
        if node.op_type != "Constant":
            tensors = (each for each in node.attributes.values() if each.type == ir.AttributeType.TENSOR)
            origins += map(tensor_origin, tensors)
    fixed_tensors = {origin.address for origin in origins if origin is not None}
    names: dict[ir.Value, str] = {}
    of_tensor: dict[Address, str] = {}
    taken: set[str] = set()

    def add(value: ir.Value, path: str) -> None:
        array = constant_of(value)
        if value in fixed or array is None or array.dtype not in FLOATS or not array.size:
            return
        origin = origin_of(value)
        if origin is not None and origin.address in fixed_tensors:
            return
        if origin is not None and origin.address in of_tensor:
            names[value] = of_tensor[origin.address]
            return
        own_name = str(value.name) if origin is None or origin.name is None else origin.name
        name = own_name if own_name not in taken else f"{path}{own_name}"
        while name in taken:
            name += "'"
        taken.add(name)
        names[value] = name
        if origin is not None:
            of_tensor[origin.address] = name

    def walk(graph: ir.Graph, path: str) -> None:
        for value in graph.initializers.values():
            array = constant_of(value)
            if array is not None and (array.ndim > 0 or not (path or _NUMBER.fullmatch(str(value.name)))):
                add(value, path)
        for node in graph:
            if node.op_type == "Constant":
                array = constant_of(node.outputs[0])
                if array is not None and array.ndim > 0:
                    add(node.outputs[0], path)
            for name, inner in subgraphs_of(node):
                walk(inner, f"{path}{node.name or node.op_type}.{name}/")

    walk(graph, "")
    return names


def _needed_while_tracing(graph: ir.Graph, operator_of: Callable[[ir.Node], Operator]) -> set[ir.Value]:
    """Return all values from which static and foldable inputs of operators are computed."""
    pending: list[ir.Value] = []
    for node in graph.all_nodes():
        operator = operator_of(node)
        for index, value in enumerate(node.inputs):
            slot = operator.slot(index)
            if value is None or slot is None:
                continue
            if slot.static or (slot.foldable and _is_constant(value)):
                pending.append(value)
    seen: set[ir.Value] = set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        pending.extend(_sources(value, operator_of))
    return seen


def _never_trained(
    graph: ir.Graph,
    operator_of: Callable[[ir.Node], Operator],
    constant_of: Callable[[ir.Value], np.ndarray | None],
) -> set[ir.Value]:
    """Return constants that are only compared, values of masks, zeros that only begin recurrences, compared zeros."""
    untrained = set()
    for value in _constants(graph):
        array = constant_of(value)
        if array is None or array.dtype not in FLOATS:
            continue
        ends = list(_ends(value, operator_of))
        zeros = not np.any(array)
        traits = [None if node is None else operator_of(node).traits for node, _ in ends]
        compared = [each is not None and bool(each.compares) for each in traits]
        single = array.size == 1 and all(each is not None and (each.compares or each.selects) for each in traits)
        masks = single or (array.size > 0 and not np.any(np.abs(array) < _LARGEST))
        starts = zeros and all(
            node is not None and starts_recurrence(node, index, operator_of(node).traits.carries)
            for node, index in ends
        )
        if ends and (starts or masks or all(compared) or (zeros and not array.ndim and any(compared))):
            untrained.add(value)
    return untrained


def _constants(graph: ir.Graph) -> Iterable[ir.Value]:
    for inner in graphs_of(graph):
        yield from inner.initializers.values()
        yield from (node.outputs[0] for node in inner if node.op_type == "Constant")


def _ends(value: ir.Value, operator_of: Callable[[ir.Node], Operator]) -> Iterable[tuple[ir.Node | None, int]]:
    """Yield the uses of a value, followed through nodes that only move elements; None is a graph output."""
    if value.is_graph_output():
        yield None, 0
    for node, index in value.uses():
        if index == 0 and operator_of(node).traits.moves_first:
            for output in node.outputs:
                yield from _ends(output, operator_of)
        else:
            yield node, index


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is None if not isinstance(producer, ir.Node) else producer.op_type == "Constant"


def _sources(value: ir.Value, operator_of: Callable[[ir.Node], Operator]) -> Iterable[ir.Value]:
    producer = value.producer()
    if producer is None or operator_of(producer).traits.of_shape:
        return
    yield from (source for source in producer.inputs if source is not None)
    for _, inner in subgraphs_of(producer):
        yield from (output for output in inner.outputs if output is not None)
