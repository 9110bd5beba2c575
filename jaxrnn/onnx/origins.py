"""The place of each tensor in the file, so that a tensor is a single parameter and can be written back.

The *address* of a tensor is its path through the messages of the file: for each message the number of the field and the
index of the entry, or None if the field is not repeated. Addresses are attached to the tensors when a graph is read,
and survive the inlining of functions. Source of the messages: onnx.proto,
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

from jaxrnn.onnx.tensors import WRITTEN_OUT

Address = tuple[tuple[int, int | None], ...]

_KEY = "jaxrnn.origin"


class Origin(NamedTuple):
    """The place of a constant in the file."""

    address: Address  # the address of the message that holds the elements
    #: the type of that message: a tensor, or an attribute with plain floats
    kind: type[onnx.TensorProto] | type[onnx.AttributeProto]
    name: str | None  # a stable name for a constant in a local function, whose copies have different names; else None


def origin_of(value: ir.Value) -> Origin | None:
    """Return the origin of an initializer or of the output of a Constant node, or None."""
    node = value.producer()
    if node is None:
        return None if value.const_value is None else value.const_value.meta.get(_KEY)
    attribute = next(iter(node.attributes.values()), None)
    return None if attribute is None else tensor_origin(attribute)


def tensor_origin(attribute: ir.Attr) -> Origin | None:
    """Return the origin of an attribute that is a tensor or floats."""
    holder = attribute.as_tensor() if attribute.type == ir.AttributeType.TENSOR else attribute
    return holder.meta.get(_KEY)


def mark_origins(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Attach origins to the tensors of a model that was just read from ``proto``."""
    _mark_graph(proto.graph, model.graph, ((onnx.ModelProto.GRAPH_FIELD_NUMBER, None),), "")
    # Of functions with equal identifiers, the last counts.
    numbers = {(each.domain, each.name, each.overload): index for index, each in enumerate(proto.functions)}
    for identifier, index in numbers.items():
        function, made = proto.functions[index], model.functions[identifier]
        address = ((onnx.ModelProto.FUNCTIONS_FIELD_NUMBER, index),)
        field = onnx.FunctionProto.ATTRIBUTE_PROTO_FIELD_NUMBER
        _mark_attributes(function.attribute_proto, made.attributes, address, field, "", None)
        field = onnx.FunctionProto.NODE_FIELD_NUMBER
        _mark_nodes(function.node, tuple(made), address, field, f"{function.name}/")


def _mark_graph(proto: onnx.GraphProto, graph: ir.Graph, address: Address, scope: str) -> None:
    """Mark a graph; ``scope`` is the prefix of names in a function, else empty."""
    for index, tensor in enumerate(proto.initializer):
        value = graph.initializers.get(tensor.name)
        if value is not None and value.const_value is not None and tensor.doc_string != WRITTEN_OUT:
            here = (*address, (onnx.GraphProto.INITIALIZER_FIELD_NUMBER, index))
            name = f"{scope}{tensor.name}" if scope else None
            value.const_value.meta[_KEY] = Origin(here, onnx.TensorProto, name)
    _mark_nodes(proto.node, tuple(graph), address, onnx.GraphProto.NODE_FIELD_NUMBER, scope)


def _mark_nodes(
    protos: Sequence[onnx.NodeProto], nodes: Sequence[ir.Node], address: Address, field: int, scope: str
) -> None:
    for index, (proto, node) in enumerate(zip(protos, nodes, strict=True)):
        here = (*address, (field, index))
        name = f"{scope}{proto.output[0]}" if scope and proto.output else None
        _mark_attributes(proto.attribute, node.attributes, here, onnx.NodeProto.ATTRIBUTE_FIELD_NUMBER, scope, name)


def _mark_attributes(
    protos: Sequence[onnx.AttributeProto],
    attributes: Mapping[str, ir.Attr],
    address: Address,
    field: int,
    scope: str,
    name: str | None,
) -> None:
    # Of attributes with equal names, the last counts.
    for index, proto in {proto.name: (index, proto) for index, proto in enumerate(protos)}.values():
        attribute = attributes[proto.name]
        here = (*address, (field, index))
        if attribute.is_ref() or proto.t.doc_string == WRITTEN_OUT:
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            inner = (*here, (onnx.AttributeProto.T_FIELD_NUMBER, None))
            attribute.as_tensor().meta[_KEY] = Origin(inner, onnx.TensorProto, name)
        elif attribute.type == ir.AttributeType.FLOATS:
            attribute.meta[_KEY] = Origin(here, onnx.AttributeProto, name)
        elif attribute.type == ir.AttributeType.GRAPH:
            inner = (*here, (onnx.AttributeProto.G_FIELD_NUMBER, None))
            _mark_graph(proto.g, attribute.as_graph(), inner, scope)
        elif attribute.type == ir.AttributeType.GRAPHS:
            for number, graph in enumerate(attribute.as_graphs()):
                inner = (*here, (onnx.AttributeProto.GRAPHS_FIELD_NUMBER, number))
                _mark_graph(proto.graphs[number], graph, inner, scope)
