"""Conversion of a model file to one graph: inlined functions, sorted nodes, an opset for each node, and origins.

The *origin* of a tensor is its place in the file, so that a tensor is a single parameter and can be written back. The
*address* of a tensor is its path through the messages of the file: for each message the number of the field and the
index of the entry, or None if the field is not repeated. Origins are attached to the tensors when a graph is read, and
survive the inlining of functions. Source of the messages: onnx.proto,
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.

The last part describes the inputs and outputs of a graph for callers, and binds arrays, strings and sequences to the
inputs.
"""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from jaxrnn._files.messages import VALUE, describe, first_line
from jaxrnn.errors import InputError, LimitError, ModelError, UnsupportedError, is_count
from jaxrnn.onnx.limits import MAX_DEPTH, Limits, raised
from jaxrnn.onnx.tensors import WRITTEN_OUT
from jaxrnn.onnx.values import as_text
from jaxrnn.steps.specs import ArraySpec, bind, check_names, converted

#: The deepest nesting of calls of local functions.
MAX_CALLS = 50


def normal_domain(domain: str) -> str:
    """Return the empty string for both spellings of ONNX's default domain."""
    return "" if domain == "ai.onnx" else domain


def is_of_onnx(node: ir.Node | onnx.NodeProto, name: str) -> bool:
    """Return True for ONNX's operator of this name, and False for an operator of a different domain."""
    return node.op_type == name and not normal_domain(node.domain)


def read_graph(proto: onnx.ModelProto, limits: Limits | None = None) -> ir.Model:
    """Inline the functions of a model and sort its nodes; ``node.version`` is the opset of each node."""
    try:
        model = ir.serde.deserialize_model(proto)
    except ir.serde.SerdeError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"the file is inconsistent: {first_line(cause)}; export it again") from error
    mark_origins(proto, model)
    _set_versions(model.graph, model.opset_imports)
    for function in model.functions.values():
        _set_versions(function, function.opset_imports)
        # All nodes have a version, so the inliner need not compare the opsets of functions and model.
        for domain in function.opset_imports:
            function.opset_imports[domain] = model.opset_imports.setdefault(domain, function.opset_imports[domain])
    if model.functions:
        _check_expansion(model, (limits or Limits()).nodes)
        for function in model.functions.values():
            _sort(function)
        try:
            InlinePass()(model)
        except (ValueError, AttributeError, ir.passes.InvariantError) as error:
            # Such as a cycle of functions that no node calls, or a function that returns an absent input.
            raise UnsupportedError(f"a local function cannot be inlined: {error}") from error
        _check_depth(model.graph)
    for graph in graphs_of(model.graph):
        _sort(graph)
    return model


def _sort(graph: ir.Graph | ir.Function) -> None:
    try:
        graph.sort()
    except ValueError as error:
        path = " -> ".join(repr(label) for label in _find_cycle(graph))
        kind = "graph" if isinstance(graph, ir.Graph) else "local function"
        raise ModelError(
            f"the {kind} {graph.name!r} has a cycle: {path}; a node may not depend on its own output"
        ) from error


def subgraphs_of(node: ir.Node) -> Iterable[tuple[str, ir.Graph]]:
    """Yield pairs of name and graph (``then_branch``, ``body``, ...) from the attributes of a node."""
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for index, graph in enumerate(attribute.as_graphs()):
                yield f"{name}[{index}]", graph


def graphs_of(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and all its subgraphs."""
    yield graph
    for node in graph:
        for _, inner in subgraphs_of(node):
            yield from graphs_of(inner)


def inputs_of(graph: ir.Graph) -> tuple[ir.Value, ...]:
    """Return the inputs of a graph that are not initializers."""
    initialized = set(graph.initializers.values())
    return tuple(value for value in graph.inputs if value not in initialized)


def node_label(node: ir.Node) -> str:
    """Return the label of a node in messages and scopes: the name of the node or of its first output."""
    if node.name:
        return node.name
    return next((str(output.name) for output in node.outputs if output.name), node.op_type)


def _find_cycle(graph: ir.Graph | ir.Function) -> list[str]:
    """Return the labels of the nodes of a cycle; the first label is repeated at the end."""
    needs: dict[ir.Node, set[ir.Node]] = {node: set(node.predecessors()) for node in graph}
    for node in graph:
        for _, inner in subgraphs_of(node):
            for nested in inner.all_nodes():
                needs[node] |= {source for source in nested.predecessors() if source.graph is graph}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return [node_label(node) for node in error.args[1]]
    return []


def _set_versions(graph: ir.Graph | ir.Function, opsets: dict[str, int]) -> None:
    versions = {normal_domain(domain): version for domain, version in opsets.items()}
    for node in graph.all_nodes():
        node.version = versions.get(normal_domain(node.domain))


def _check_depth(graph: ir.Graph) -> None:
    """Refuse subgraphs that are nested deeper than `MAX_DEPTH` after inlining."""
    pending = [(graph, 0)]
    while pending:
        graph, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ModelError(
                f"calls of local functions nest subgraphs deeper than {MAX_DEPTH} levels; write the model with fewer "
                "levels"
            )
        pending += [(inner, depth + 1) for node in graph for _, inner in subgraphs_of(node)]


def _check_expansion(model: ir.Model, allowed: int) -> None:
    """Refuse recursion and exponential expansion before functions are inlined."""
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size(nodes: Iterable[ir.Node], path: tuple[ir.OperatorIdentifier, ...]) -> int:
        total = 0
        for node in nodes:
            identifier = node.op_identifier()
            if identifier in path:
                names = " -> ".join(f"{name}" for _, name, _ in (*path, identifier))
                raise ModelError(
                    f"the local function {identifier[1]!r} calls itself ({names}); ONNX allows no recursion"
                )
            function = model.functions.get(identifier)
            if len(path) > MAX_CALLS:
                raise ModelError(
                    f"calls of local functions, from {path[0][1]!r} on, are nested deeper than {MAX_CALLS} levels"
                )
            if function is not None and identifier not in sizes:
                sizes[identifier] = size(function.all_nodes(), (*path, identifier))
            total += 1 if function is None else sizes[identifier]
        return total

    nodes = size(model.graph.all_nodes(), ())
    own = sum(1 for _ in model.graph.all_nodes())
    if nodes - own > allowed:
        raise LimitError(
            f"inlining the local functions makes {nodes:,} nodes from {own:,}, and the limit is {allowed:,} "
            f"additional nodes; {raised('nodes')}"
        )


def known_shape(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """Return the shape of a constant or declared value of the file; open dimensions are None."""
    if value is None:
        return None
    if value.is_graph_input() and value.shape is not None:
        return tuple(size if isinstance(size, int) else None for size in value.shape)
    tensor = value.const_value
    producer = value.producer()
    if producer is not None and is_of_onnx(producer, "Constant") and "value" in producer.attributes:
        tensor = producer.attributes["value"].as_tensor()
    return None if tensor is None else tuple(tensor.shape.numpy())


Address = tuple[tuple[int, int | None], ...]

_KEY = "jaxrnn.origin"


class Origin(NamedTuple):
    """The place of a constant in the file."""

    address: Address  # the address of the message with the elements
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
    # The last of several functions with equal identifiers counts.
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
    # The last of several attributes with equal names counts.
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


def spec_of(value: ir.Value) -> ArraySpec:
    """Return the declaration of a graph input or output; a nameless dimension becomes ``<name>_dim_<axis>``."""
    name = str(value.name)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return ArraySpec(name, None, None)
    dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else np.dtype(value.dtype.numpy())
    if value.shape is None:
        return ArraySpec(name, dtype, None)
    sizes = (size if isinstance(size, int) else str(size.value) for size in value.shape)
    shape = (_nameless(name, axis) if _NO_NAME.fullmatch(str(size)) else size for axis, size in enumerate(sizes))
    return ArraySpec(name, dtype, tuple(shape))


#: What exporters write in place of a name, also for sizes that have nothing to do with each other.
_NO_NAME = re.compile(r"-\d+|\W*|None")


def _nameless(name: str, axis: int) -> str:
    return f"{name}_dim_{axis}"


#: The name of a dimension, or a multiple such as ``4*U``.
_MULTIPLE = re.compile(r"(0*[1-9]\d*\s*\*\s*)?[A-Za-z_][\w.:/]*")


def name_dimensions(graph: ir.Graph, dims: Mapping[str, int | str]) -> None:
    """Rename, tie, fix or relate open dimensions of a graph's inputs and outputs, in place.

    A dimension has a name, and an axis of an array also the name ``<array>_dim_<axis>``, which has priority.
    """
    known = {size for value in graph.inputs for size in spec_of(value).shape or () if isinstance(size, str)}
    axes = {
        _nameless(str(value.name), axis)
        for value in (*graph.inputs, *graph.outputs)
        for axis, size in enumerate(spec_of(value).shape or ())
        if isinstance(size, str)
    }
    for name, given in dims.items():
        if name not in known | axes:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(
                f"`dims={ {name: given} }`: no input has an open dimension of this name; the open dimensions "
                f"are: {listed}"
            )
        if isinstance(given, str) and _MULTIPLE.fullmatch(given.strip()):
            continue
        if not is_count(given, 1):
            raise InputError(
                f"`dims={ {name: given} }`: expected a name, a size from 1 on, or a multiple such as '4*U'"
            )
    if not dims:
        return
    sizes = {name: given if isinstance(given, str) else int(given) for name, given in dims.items()}
    for value in (*graph.inputs, *graph.outputs):
        shape, name = spec_of(value).shape, str(value.name)
        if shape is not None:
            named = [sizes.get(str(size), size) for size in shape]
            value.shape = ir.Shape([sizes.get(_nameless(name, axis), size) for axis, size in enumerate(named)])


#: In a file without names of axes, the first axis is called ``..._dim_0``.
_BATCH = re.compile(r"n|bs?|.*batch.*|.*_dim_0", re.IGNORECASE)


def is_batch_name(dimension: str) -> bool:
    """Return True if the name of a dimension suggests a batch."""
    return _BATCH.fullmatch(dimension) is not None


def bind_inputs(specs: Sequence[ArraySpec], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind inputs like `jaxrnn.steps.specs.bind`, with strings, sequences and optionals."""
    return bind(specs, inputs, convert=_as_declared)


def _as_declared(spec: ArraySpec, value: Any) -> Any:
    if spec.is_text:
        return _strings(spec, value)
    if spec.dtype is not None:
        return converted(spec, value)

    def item(each: Any) -> Any:
        is_strings = isinstance(each, str) or (isinstance(each, np.ndarray) and each.dtype.kind in "OUT")
        return as_text(each) if is_strings else jnp.asarray(each)

    return jax.tree.map(item, tuple(value) if isinstance(value, list) else value)


def _strings(spec: ArraySpec, value: Any) -> np.ndarray:
    if isinstance(value, jax.Array):
        raise InputError(
            f"{spec.as_input} got {describe(value)}; JAX has no strings, so strings cannot be arguments of functions "
            "under jit, grad or vmap: pass NumPy arrays of strings to a plain call, or bind the input with "
            f"`jaxrnn.load(path, static={ {spec.name: VALUE} })`"
        )
    try:
        return as_text(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{spec.as_input} cannot be made from {type(value).__name__}: {error}") from error


def bind_static(declared: Sequence[ArraySpec], static: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return fixed values of inputs as arrays of the declared types.

    A number fills the declared shape, with 1 for the only open axis if its name is that of a batch, or if it is first.
    """
    try:
        check_names(declared, static)
    except InputError as error:
        raise InputError(f"static: {error}") from error
    by_name = {spec.name: spec for spec in declared}
    values = dict(static)
    for name, value in static.items():
        shape = by_name[name].shape
        if not shape or not (value is None or np.isscalar(value) or getattr(value, "ndim", None) == 0):
            continue
        is_number = not isinstance(value, str | bytes) and value is not None and by_name[name].dtype is not None
        is_open = [isinstance(size, str) for size in shape]
        only = shape[is_open.index(True)] if sum(is_open) == 1 else None
        if not is_number or (any(is_open) and not (only and (is_open[0] or is_batch_name(str(only))))):
            raise InputError(
                f"static: {by_name[name].as_input} needs an array of that shape, but got the single value {value!r}. "
                "A JSON list or a .npy file gives an array in a command."
            )
        sizes = [1 if isinstance(size, str) else size for size in shape]
        values[name] = np.broadcast_to(np.asarray(_as_declared(replace(by_name[name], shape=()), value)), sizes)
    bound = bind_inputs([by_name[name] for name in static], values)
    return {name: np.asarray(value) for name, value in bound.items()}
