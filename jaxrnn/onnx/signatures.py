"""Whether a node fits its operator: its inputs, its attributes and their types, and the weights of a recurrent node."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.graph import node_label
from jaxrnn.onnx.registry import REQUIRED, Operator


def present_inputs(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """The node's inputs without the absent ones at the end."""
    kept = list(node.inputs)
    while kept and kept[-1] is None:
        kept.pop()
    return tuple(kept)


def check_signature(node: ir.Node, operator: Operator) -> None:
    """Check every input and attribute of a node against its operator.

    Raises:
        ModelError: one is missing, unknown or of the wrong type, or shapes of weights disagree.
    """
    label = f"node {node_label(node)!r} ({operator})"
    _check_attributes(node, operator, label)
    inputs = present_inputs(node)
    if operator.variadic is None and len(inputs) > len(operator.slots):
        raise ModelError(f"{label}: {len(inputs)} inputs, but the operator takes at most {len(operator.slots)}")
    schema = operator.schema
    if schema is not None and len(node.outputs) > schema.max_output:
        raise ModelError(f"{label}: {len(node.outputs)} outputs, but the operator gives at most {schema.max_output}")
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


def _check_attributes(node: ir.Node, operator: Operator, label: str) -> None:
    types = _attribute_types(operator)
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


def _attribute_types(operator: Operator) -> dict[str, ir.AttributeType]:
    """The types of an operator's attributes; empty where onnx does not define the operator."""
    defined: dict[str, Any] = {} if operator.schema is None else operator.schema.attributes
    return {name: ir.AttributeType(int(attribute.type)) for name, attribute in defined.items()}


def known_shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The shape of a value that the file itself holds or declares; None for a dimension that it leaves open."""
    if value is None:
        return None
    if value.is_graph_input() and value.shape is not None:
        return tuple(size if isinstance(size, int) else None for size in value.shape)
    tensor = value.const_value
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        tensor = producer.attributes["value"].as_tensor()
    return None if tensor is None else tuple(tensor.shape.numpy())
