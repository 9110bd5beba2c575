"""A graph ready for evaluation: nodes bound to operators and checked, constants read, loops bounded.

All nodes that cannot run are reported together when a file is loaded, and not during evaluation.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError, ModelError, UnsupportedError, check_count
from jaxrnn.jaxprs.numbering import fingerprint
from jaxrnn.onnx.evaluate import Block, BoundNode
from jaxrnn.onnx.graph import Origin, inputs_of, is_of_onnx, known_shape, node_label, origin_of
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.operators import OwnOperators, operator_of
from jaxrnn.onnx.operators.control import loop_with
from jaxrnn.onnx.parameters import choose_parameters
from jaxrnn.onnx.registry import REQUIRED, Operator
from jaxrnn.onnx.values import text_array


@dataclass(frozen=True)
class BoundGraph:
    """The graph as a `Block`, and the array and origin of each parameter."""

    block: Block
    parameters: Mapping[str, np.ndarray]
    origins: Mapping[str, Origin | None]


def bind(model: ir.Model, limits: Limits | None = None, own: OwnOperators | None = None) -> BoundGraph:
    """Bind the nodes of a model to their operators."""
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

    names = choose_parameters(model, operators.__getitem__, constant_of).names
    block = _bind_block(model.graph, operators.__getitem__, constant_of, names)
    arrays: dict[str, np.ndarray] = {}
    for value, name in names.items():
        array = constant_of(value)
        assert array is not None, "only constants are named as parameters"
        arrays[name] = array
    size = sum(array.nbytes for array in constants.values() if array is not None)
    block.limits = (limits or Limits()).for_file(size)
    return BoundGraph(block, arrays, {name: origin_of(value) for value, name in names.items()})


def _bind_block(
    graph: ir.Graph,
    operator_of: Callable[[ir.Node], Operator],
    constant_of: Callable[[ir.Value], np.ndarray | None],
    names: Mapping[ir.Value, str],
) -> Block:
    block = Block(str(graph.name or ""), inputs_of(graph), tuple(graph.outputs))

    def place(value: ir.Value) -> bool:
        array = constant_of(value)
        if value in names:
            block.parameters[value] = names[value]
        elif array is not None:
            block.constants[value] = array
        return array is not None

    for value in graph.initializers.values():
        place(value)
    for node in graph:
        if is_of_onnx(node, "Constant") and place(node.outputs[0]):
            continue
        attributes: dict[str, Any] = {}
        for name, attribute in node.attributes.items():
            attributes[name] = attribute.value
            if attribute.type == ir.AttributeType.GRAPH:
                attributes[name] = _bind_block(attribute.as_graph(), operator_of, constant_of, names)
            elif attribute.type == ir.AttributeType.TENSOR:
                attributes[name] = _read_tensor(attribute.as_tensor(), f"attribute {name!r}")
        inputs = present_inputs(node)
        block.nodes.append(BoundNode(node_label(node), operator_of(node), inputs, tuple(node.outputs), attributes))
    return block


def read_constant(value: ir.Value) -> np.ndarray | None:
    """Return the array of an initializer or a Constant node, or None if the value is computed."""
    node = value.producer()
    if node is None:
        return None if value.const_value is None else _read_tensor(value.const_value, f"initializer {value.name!r}")
    if not is_of_onnx(node, "Constant"):
        return None
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


def _read_tensor(tensor: ir.TensorProtocol, what: str) -> np.ndarray:
    try:
        if tensor.dtype == ir.DataType.STRING:
            strings: Any = tensor
            return text_array([item.decode() for item in strings.string_data()], tuple(tensor.shape.numpy()))
        array = tensor.numpy()
    except (ValueError, TypeError, OSError, MemoryError) as error:
        raise ModelError(f"the tensor of {what} cannot be read: {error}") from error
    if isinstance(tensor, ir.ExternalTensor):
        # A copy, so that later changes of the file do not change the model.
        array = np.array(array)
        tensor.release()
    return array


#: For each attribute of Constant, the type and a function that reads the value; None for a tensor.
_CONSTANTS: dict[str, tuple[ir.AttributeType, Callable[[Any], np.ndarray] | None]] = {
    "value": (ir.AttributeType.TENSOR, None),
    "value_float": (ir.AttributeType.FLOAT, lambda value: np.asarray(value, np.float32)),
    "value_floats": (ir.AttributeType.FLOATS, lambda value: np.asarray(value, np.float32)),
    "value_int": (ir.AttributeType.INT, lambda value: np.asarray(value, np.int64)),
    "value_ints": (ir.AttributeType.INTS, lambda value: np.asarray(value, np.int64)),
    "value_string": (ir.AttributeType.STRING, lambda value: text_array([value], ())),
    "value_strings": (ir.AttributeType.STRINGS, text_array),
}


def present_inputs(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return the inputs of a node without absent inputs at the end."""
    kept = list(node.inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def check_signature(node: ir.Node, operator: Operator) -> None:
    """Check the inputs and attributes of a node against its operator."""
    label = f"node {node_label(node)!r} ({operator})"
    defined: dict[str, Any] = {} if operator.schema is None else operator.schema.attributes
    types = {name: ir.AttributeType(int(attribute.type)) for name, attribute in defined.items()}
    for name, attribute in node.attributes.items():
        if name not in operator.attributes:
            known = ", ".join(operator.attributes) or "none"
            raise ModelError(f"{label}: unknown attribute {name!r}; {operator} has: {known}")
        expected = types.get(name, attribute.type)
        if attribute.type != expected:
            kinds = f"a {attribute.type.name}, but {expected.name} is expected"
            raise ModelError(f"{label}: the attribute {name!r} is {kinds}")
    for name, default in operator.attributes.items():
        if default is REQUIRED and name not in node.attributes:
            raise ModelError(f"{label}: the required attribute {name!r} is missing")
    inputs = present_inputs(node)
    if operator.variadic is None and len(inputs) > len(operator.slots):
        raise ModelError(f"{label}: {len(inputs)} inputs, but the operator takes at most {len(operator.slots)}")
    schema = operator.schema
    if schema is not None and len(node.outputs) > schema.max_output:
        raise ModelError(f"{label}: {len(node.outputs)} outputs, but the operator has at most {schema.max_output}")
    for index, slot in enumerate(operator.slots):
        if slot.required and (index >= len(inputs) or inputs[index] is None):
            raise ModelError(f"{label}: the input {slot.name!r} is missing")
    if operator.traits.check is not None:
        names = [slot.name for slot in operator.slots]
        shapes = {name: known_shape(value) for name, value in zip(names, inputs, strict=False)}
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        try:
            operator.traits.check(shapes, attributes)
        except ValueError as error:
            raise ModelError(f"{label}: {error}") from error


def bound_loops(program: BoundGraph, max_trip_count: int | Mapping[str, int] | None) -> None:
    """Bind each Loop of a program to a label and a bound, in place."""
    places = list(_loops(program.block))
    labels = list(dict.fromkeys(block.nodes[index].name for block, index in places))
    if isinstance(max_trip_count, Mapping):
        bounds = {
            _known(name, labels): check_count(f"max_trip_count of {name!r}", bound)
            for name, bound in max_trip_count.items()
        }
    else:
        bound = None if max_trip_count is None else check_count("max_trip_count", max_trip_count)
        bounds = dict.fromkeys(labels, bound)
    for block, index in places:
        node = block.nodes[index]
        function = loop_with(f"node {node.name!r} ({node.operator})", bounds.get(node.name))
        block.nodes[index] = dataclasses.replace(node, operator=dataclasses.replace(node.operator, function=function))


def _loops(block: Block) -> Iterator[tuple[Block, int]]:
    """Yield the Loop nodes of a block and its subgraphs, as a block and an index."""
    for index, node in enumerate(block.nodes):
        if node.applies("Loop"):
            yield block, index
        for inner in node.blocks:
            yield from _loops(inner)


def _known(name: Any, labels: list[str]) -> str:
    if name in labels:
        return name
    listed = ", ".join(map(repr, labels)) or "none"
    raise InputError(f"max_trip_count: there is no Loop {name!r}{near(name, labels)}; the Loop nodes are: {listed}")


def fingerprint_of(program: BoundGraph, options: Any) -> str:
    """Return the fingerprint of a graph and of the options that it was loaded with."""
    parameters = {name: (array.dtype.name, array.shape) for name, array in program.parameters.items()}
    return fingerprint(_block_facts(program.block), parameters, options)


def _block_facts(block: Block) -> Any:
    constants = {str(value.name): array for value, array in block.constants.items()}
    parameters = {str(value.name): name for value, name in block.parameters.items()}
    return _names(block.inputs), _names(block.outputs), constants, parameters, list(map(_node_facts, block.nodes))


def _node_facts(node: BoundNode) -> Any:
    operator = node.operator
    attributes = {
        name: _block_facts(value) if isinstance(value, Block) else value for name, value in node.attributes.items()
    }
    own = [function_facts(operator.function)] if operator.own else []
    identifier = (operator.domain, operator.name, operator.since, *own)
    return identifier, _names(node.inputs), _names(node.outputs), attributes


def function_facts(function: Any) -> Any:
    """Return the facts that identify a caller's function: name, code, and closed-over values."""
    if isinstance(function, functools.partial):
        return function_facts(function.func), function.args, function.keywords
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    cells = [cell.cell_contents for cell in getattr(inner, "__closure__", None) or ()]
    return inner, [] if code is None else _code(code), cells, getattr(inner, "__kwdefaults__", None)


def _code(code: types.CodeType) -> Any:
    constants = [_code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, constants


def _names(values: Iterable[ir.Value | None]) -> list[str | None]:
    return [None if value is None else str(value.name) for value in values]
