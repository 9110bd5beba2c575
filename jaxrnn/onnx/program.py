"""A graph ready to evaluate: every node bound to its operator, every constant read.

All nodes that cannot be run are reported here together, and none at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn.errors import ModelError, UnsupportedError
from jaxrnn.onnx.blocks import Block, BoundNode
from jaxrnn.onnx.graph import node_label
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.operators import OwnOperators, operator_of
from jaxrnn.onnx.origins import Origin, origin_of
from jaxrnn.onnx.parameters import name_parameters
from jaxrnn.onnx.registry import Operator
from jaxrnn.onnx.signatures import check_signature, present_inputs
from jaxrnn.onnx.text import text_array


@dataclass(frozen=True)
class Program:
    """The graph as a `Block`, and by name the arrays of its parameters and their origins in the file."""

    block: Block
    parameters: Mapping[str, np.ndarray]
    origins: Mapping[str, Origin | None]


def bind(model: ir.Model, limits: Limits | None = None, own: OwnOperators | None = None) -> Program:
    """Bind every node of a model.

    Args:
        model: the graph, its functions inlined.
        limits: limits of the memory and work that the graph asks for, beyond what the file itself holds.
        own: a user's own operators, which come before those of the package.

    Raises:
        UnsupportedError: lists every node that has no operator here, with the nearest supported alternative.
        ModelError: an attribute is unknown, missing or unreadable, or a constant cannot be read.
    """
    operators: dict[ir.Node, Operator] = {}
    problems: list[str] = []
    for node in model.graph.all_nodes():
        try:
            operators[node] = operator_of(node, own or {})
        except UnsupportedError as error:
            problems.append(f"  node {node_label(node)!r}: {error}")
    if problems:
        raise UnsupportedError(f"{len(problems)} node(s) cannot be run:\n" + "\n".join(problems))
    for node, operator in operators.items():
        check_signature(node, operator)

    constants: dict[ir.Value, np.ndarray | None] = {}

    def constant_of(value: ir.Value) -> np.ndarray | None:
        if value not in constants:
            constants[value] = read_constant(value)
        return constants[value]

    names = name_parameters(model.graph, operators.__getitem__, constant_of)
    block = _bind_block(model.graph, operators.__getitem__, constant_of, names)
    arrays: dict[str, np.ndarray] = {}
    for value, name in names.items():
        array = constant_of(value)
        assert array is not None, "only constants are named as parameters"
        arrays[name] = array
    size = sum(array.nbytes for array in constants.values() if array is not None)
    block.limits = (limits or Limits()).for_file(size)
    return Program(block, arrays, {name: origin_of(value) for value, name in names.items()})


def _bind_block(
    graph: ir.Graph,
    operator_of: Callable[[ir.Node], Operator],
    constant_of: Callable[[ir.Value], np.ndarray | None],
    names: Mapping[ir.Value, str],
) -> Block:
    initialized = set(graph.initializers.values())
    inputs = tuple(value for value in graph.inputs if value not in initialized)
    block = Block(str(graph.name or ""), inputs, tuple(graph.outputs))

    def place(value: ir.Value) -> bool:
        array = constant_of(value)
        if value in names:
            block.parameters[value] = names[value]
        elif array is not None:
            block.constants[value] = array
        return array is not None

    for value in initialized:
        place(value)
    for node in graph:
        if node.op_type == "Constant" and place(node.outputs[0]):
            continue
        attributes = {
            name: _bind_block(attribute.as_graph(), operator_of, constant_of, names)
            if attribute.type == ir.AttributeType.GRAPH
            else _read_attribute(attribute)
            for name, attribute in node.attributes.items()
        }
        inputs = present_inputs(node)
        block.nodes.append(BoundNode(node_label(node), operator_of(node), inputs, tuple(node.outputs), attributes))
    return block


_PLAIN_ATTRIBUTES = {
    ir.AttributeType.FLOAT: ir.Attr.as_float,
    ir.AttributeType.INT: ir.Attr.as_int,
    ir.AttributeType.STRING: ir.Attr.as_string,
    ir.AttributeType.FLOATS: ir.Attr.as_floats,
    ir.AttributeType.INTS: ir.Attr.as_ints,
    ir.AttributeType.STRINGS: ir.Attr.as_strings,
}


def _read_attribute(attribute: ir.Attr) -> Any:
    read = _PLAIN_ATTRIBUTES.get(attribute.type)
    if read is not None:
        return read(attribute)
    if attribute.type == ir.AttributeType.TENSOR:
        return _read_tensor(attribute.as_tensor(), f"attribute {attribute.name!r}")
    return attribute.value


def read_constant(value: ir.Value) -> np.ndarray | None:
    """The array of an initializer or of a Constant node, or None where the value is computed."""
    node = value.producer()
    if node is not None:
        return _read_constant_node(node) if node.op_type == "Constant" else None
    if value.const_value is None:
        return None
    return _read_tensor(value.const_value, f"initializer {value.name!r}")


def _read_tensor(tensor: ir.TensorProtocol, what: str) -> np.ndarray:
    try:
        if tensor.dtype == ir.DataType.STRING:
            strings: Any = tensor
            return text_array([item.decode() for item in strings.string_data()], tuple(tensor.shape.numpy()))
        array = tensor.numpy()
    except (ValueError, TypeError, OSError) as error:
        raise ModelError(f"the tensor of {what} cannot be read: {error}") from error
    if isinstance(tensor, ir.ExternalTensor):
        # A copy, so that later changes of the file do not change the model.
        array = np.array(array)
        tensor.release()
    return array


def _read_constant_node(node: ir.Node) -> np.ndarray | None:
    label = f"node {node_label(node)!r} (Constant)"
    if len(node.attributes) != 1:
        raise ModelError(f"{label}: exactly one value attribute is expected, not {sorted(node.attributes)}")
    (attribute,) = node.attributes.values()
    if attribute.name not in _CONSTANTS:
        return None
    kind, read = _CONSTANTS[attribute.name]
    if attribute.type != kind:
        raise ModelError(f"{label}: the attribute {attribute.name} must hold {kind.name}, not {attribute.type.name}")
    return _read_tensor(attribute.value, label) if read is None else read(attribute.value)


#: The types of the attributes of Constant, and how they are read; None for a tensor.
_CONSTANTS: dict[str, tuple[ir.AttributeType, Callable[[Any], np.ndarray] | None]] = {
    "value": (ir.AttributeType.TENSOR, None),
    "value_float": (ir.AttributeType.FLOAT, lambda value: np.asarray(value, np.float32)),
    "value_floats": (ir.AttributeType.FLOATS, lambda value: np.asarray(value, np.float32)),
    "value_int": (ir.AttributeType.INT, lambda value: np.asarray(value, np.int64)),
    "value_ints": (ir.AttributeType.INTS, lambda value: np.asarray(value, np.int64)),
    "value_string": (ir.AttributeType.STRING, lambda value: text_array([value], ())),
    "value_strings": (ir.AttributeType.STRINGS, text_array),
}
