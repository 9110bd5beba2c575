"""Whether a parsed model is consistent: names are unique and defined before use, tensors are complete."""

from __future__ import annotations

from pathlib import Path

import onnx

from jaxrnn._files.messages import near
from jaxrnn.errors import ModelError
from jaxrnn.onnx.tensors import check_tensor, graphs_in, proto_label, tensors_of
from jaxrnn.onnx.wellformed import check_messages, check_texts


def check_proto(proto: onnx.ModelProto, folder: Path | None) -> None:
    """All checks that need no operator.

    Raises:
        ModelError: the model is inconsistent.
    """
    check_texts(entry.domain for entry in proto.opset_import)
    if not proto.graph.output:
        raise ModelError("the graph has no outputs")
    for graph in (proto.graph, *proto.functions):
        check_messages(graph)
        for label, tensor in tensors_of(graph):
            check_tensor(tensor, label, folder)
    _check_names(proto.graph, frozenset(), "")
    for function in proto.functions:
        _check_function(function)


def _check_names(graph: onnx.GraphProto, outer: frozenset[str], where: str) -> None:
    """Every name is defined once in its scope, and every name that is used is defined in it or in an outer one."""
    sources: dict[str, str] = {}

    def declare(name: str, by: str) -> None:
        if name and name in sources:
            raise ModelError(
                f"{where}the name {name!r} is given twice: by {sources[name]} and by {by}; names are unique"
            )
        sources[name] = by

    for value in graph.input:
        declare(value.name, "a graph input")
    inputs = frozenset(sources)
    initializers: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in initializers:
            raise ModelError(f"{where}the initializer {tensor.name!r} is given twice; names are unique")
        initializers.add(tensor.name)
        if tensor.name not in inputs:
            declare(tensor.name, "an initializer")
    for node in graph.node:
        for name in node.output:
            declare(name, f"node {node.name or name!r} ({node.op_type})")
    reach = outer | frozenset(sources)
    for node in graph.node:
        label = f"{where}{proto_label(node)}"
        for name in filter(None, node.input):
            _check_defined(name, reach, label)
        for attribute in node.attribute:
            for inner in graphs_in(attribute):
                _check_names(inner, reach, f"{label}, {attribute.name}: ")
    for value in graph.output:
        _check_defined(value.name, reach, f"{where}the graph's outputs")


def _check_function(function: onnx.FunctionProto) -> None:
    graph = onnx.GraphProto(name=function.name, node=function.node)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
    _check_names(graph, frozenset(), f"function {function.name!r}: ")


def _check_defined(name: str, reach: frozenset[str], label: str) -> None:
    if name not in reach:
        raise ModelError(
            f"{label} uses {name!r}, which is neither an initializer, nor an input, nor a node's output"
            f"{near(name, reach)}"
        )
