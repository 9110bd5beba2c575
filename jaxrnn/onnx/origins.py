"""Where in a file each tensor lies, so that one tensor is one parameter and can be written back to its place.

The *address* of a tensor is the way to it through the messages of the file, from the outermost inwards: for each, the
number of the field and which of its entries, None where the field has just one. Addresses are put on the tensors of a
graph when it is made, and stay on them when functions are inlined. The messages are those of onnx.proto,
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

from jaxrnn.onnx.sparse import WRITTEN_OUT

Address = tuple[tuple[int, int | None], ...]

_KEY = "jaxrnn.origin"


class Origin(NamedTuple):
    """Where the numbers of a constant come from.

    Attributes:
        address: the way to the message that holds them.
        kind: what that message is: a tensor, or an attribute with plain floats.
        name: what to call them where the graph's own names depend on how often a function is called, else None.
    """

    address: Address
    kind: type[onnx.TensorProto] | type[onnx.AttributeProto]
    name: str | None


def origin_of(value: ir.Value) -> Origin | None:
    """The origin of an initializer or of a Constant node's output; None where the file does not say which it is."""
    node = value.producer()
    if node is None:
        return None if value.const_value is None else value.const_value.meta.get(_KEY)
    attribute = next(iter(node.attributes.values()), None)
    return None if attribute is None else tensor_origin(attribute)


def tensor_origin(attribute: ir.Attr) -> Origin | None:
    """The origin of an attribute that is a tensor or floats."""
    holder = attribute.as_tensor() if attribute.type == ir.AttributeType.TENSOR else attribute
    return holder.meta.get(_KEY)


def mark_origins(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Put origins on the tensors of a model that was just made from ``proto``, with nothing inlined or sorted yet."""
    _mark_graph(proto.graph, model.graph, ((onnx.ModelProto.GRAPH_FIELD_NUMBER, None),), "")
    # Of functions with one identifier, the last is the one that counts.
    numbers = {(each.domain, each.name, each.overload): index for index, each in enumerate(proto.functions)}
    for identifier, index in numbers.items():
        function, made = proto.functions[index], model.functions[identifier]
        address = ((onnx.ModelProto.FUNCTIONS_FIELD_NUMBER, index),)
        field = onnx.FunctionProto.ATTRIBUTE_PROTO_FIELD_NUMBER
        _mark_attributes(function.attribute_proto, made.attributes, address, field, "", None)
        field = onnx.FunctionProto.NODE_FIELD_NUMBER
        _mark_nodes(function.node, tuple(made), address, field, f"{function.name}/")


def _mark_graph(proto: onnx.GraphProto, graph: ir.Graph, address: Address, scope: str) -> None:
    """Mark a graph; ``scope`` is what names in it begin with if it lies in a function, else empty."""
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
    # Of attributes with one name, the last is the one that counts.
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
