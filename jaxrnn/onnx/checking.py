"""Whether a parsed model makes sense: every name given once, whatever is used is given, tensors whole, shapes fit."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import onnx
import onnx_ir as ir

from jaxrnn.errors import ModelError
from jaxrnn.onnx.graph import graphs_of
from jaxrnn.onnx.tensors import check_tensor, tensors_of

#: Constants up to this size go along to shape inference, which reads shapes and axes from them.
_SMALL = 256


def check_proto(proto: onnx.ModelProto, folder: Path | None) -> None:
    """All checks that need no operator of our own.

    Raises:
        ModelError: says what is wrong, where, and what would mend it.
    """
    if not proto.graph.output:
        raise ModelError("the graph has no outputs")
    for graph in (proto.graph, *proto.functions):
        for label, tensor in tensors_of(graph):
            check_tensor(tensor, label, folder)
    _check_names(proto.graph, frozenset(), "")
    for function in proto.functions:
        _check_function(function)


def _check_names(graph: onnx.GraphProto, outer: frozenset[str], where: str) -> None:
    """Every name is given once in its scope, and whatever is used has been given somewhere in reach."""
    given: dict[str, str] = {}

    def give(name: str, by: str) -> None:
        if name and name in given:
            raise ModelError(f"{where}the name {name!r} is given twice: by {given[name]} and by {by}; names are unique")
        given[name] = by

    for value in graph.input:
        give(value.name, "a graph input")
    inputs = frozenset(given)
    initializers: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in initializers:
            raise ModelError(f"{where}the initializer {tensor.name!r} is given twice; names are unique")
        initializers.add(tensor.name)
        if tensor.name not in inputs:
            give(tensor.name, "an initializer")
    for node in graph.node:
        for name in node.output:
            give(name, f"node {node.name or name!r} ({node.op_type})")
    reach = outer | frozenset(given)
    for node in graph.node:
        label = f"{where}node {node.name or (node.output[0] if node.output else '')!r} ({node.op_type})"
        for name in filter(None, node.input):
            _check_given(name, reach, label)
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                _check_names(inner, reach, f"{label}, {attribute.name}: ")
    for value in graph.output:
        _check_given(value.name, reach, f"{where}the graph's outputs")


def _check_function(function: onnx.FunctionProto) -> None:
    graph = onnx.GraphProto(name=function.name, node=function.node)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
    _check_names(graph, frozenset(), f"function {function.name!r}: ")


def _check_given(name: str, reach: frozenset[str], label: str) -> None:
    if name not in reach:
        close = difflib.get_close_matches(name, reach, n=1)
        hint = f"; did it mean {close[0]!r}?" if close else ""
        raise ModelError(
            f"{label} uses {name!r}, which is neither an initializer, nor an input, nor a node's output{hint}"
        )


def check_shapes(proto: onnx.ModelProto) -> None:
    """ONNX's own inference over a sorted copy without the weights' data: it tells which node's operands do not fit.

    Raises:
        ModelError: names the node.
    """
    try:
        onnx.shape_inference.infer_shapes(_sorted(_without_weights(proto)), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        places = re.findall(r"\(op_type:(\w+)", str(error))
        if len(places) > 1 and places[0] not in {function.name for function in proto.functions}:
            return  # inside ONNX's own body of an operator, which says nothing about the file
        message = _plain(str(error))
        raise ModelError(f"inconsistent shapes or types: {message}; correct the file or export it again") from error
    except (RuntimeError, ValueError, MemoryError):
        # Inference itself gave up (an operator that onnx does not define, for one); evaluation will tell.
        return


def _plain(message: str) -> str:
    """``node 'mm' (MatMul): Incompatible dimensions`` out of the several lines that inference writes."""
    text = re.sub(r"\[\w+\]\s*|Inference error\(s\):\s*", "", message)
    text = re.sub(r"\(op_type:(\w+), node name: ([^)]*)\)", r"node '\2' (\1)", text)
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())[:500]


def _sorted(proto: onnx.ModelProto) -> onnx.ModelProto:
    model = ir.serde.deserialize_model(proto)
    for graph in graphs_of(model.graph):
        graph.sort()
    return ir.serde.serialize_model(model)


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    graph = copy.graph
    graph.name = proto.graph.name
    graph.node.extend(proto.graph.node)
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    inputs = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if sum(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy
