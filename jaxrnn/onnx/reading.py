"""Reading of a model from a path, bytes or a ``ModelProto``, and checks of the parsed file.

The checks need no operator: unique names, definition before use, valid attributes and types, complete tensors.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError, Message

from jaxrnn._files.messages import near
from jaxrnn._files.stores import check_regular
from jaxrnn.errors import JaxrnnError, ModelError, UnsupportedError
from jaxrnn.onnx.graph import is_of_onnx, normal_domain
from jaxrnn.onnx.limits import MAX_DEPTH, Limits
from jaxrnn.onnx.tensors import check_rank, check_tensor, graphs_in, proto_label, tensors_of, write_out_sparse
from jaxrnn.steps.schemas import COMPILED

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


def label_of(source: Source) -> str:
    """Return the name of the model in messages."""
    if isinstance(source, onnx.ModelProto):
        return f"model {source.graph.name!r}"
    if isinstance(source, bytes):
        return f"model of {len(source)} bytes"
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"


@contextlib.contextmanager
def labelled(label: str) -> Iterator[None]:
    """Prefix errors of the project inside the context with the label of a model or example."""
    try:
        yield
    except JaxrnnError as error:
        raise type(error)(f"{label}: {error}") from error


class SourceFile(NamedTuple):
    """A model file after reading."""

    proto: onnx.ModelProto
    data: bytes | None  # the bytes of the file; None for a proto that is too large for a file
    folder: Path | None  # the folder that must contain the external data; None for a model without a file


_TORCH = (
    "From PyTorch, build the module, load its weights, and call jaxrnn.from_torch(module, example, time=axis); see "
    "docs/pytorch.md"
)
_KERAS = "From Keras, call jaxrnn.from_keras(keras.models.load_model(path)); see docs/keras.md"
#: The way to a model from files of other formats, by suffix.
_OTHER_FORMATS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors", ".bin"), _TORCH),
    **dict.fromkeys((".keras", ".h5", ".hdf5"), _KERAS),
    ".pb": "Convert a SavedModel first: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
    ".tflite": "Convert it first: python -m tf2onnx.convert --tflite model.tflite --output model.onnx",
}


#: Protobuf messages have at most this size. Files with more data keep tensors in external data.
_MOST = 2**31 - 1


def read_source(source: Source, limits: Limits | None = None) -> SourceFile:
    """Read a model; sparse tensors become dense."""
    if isinstance(source, onnx.ModelProto):
        data = None
        with contextlib.suppress(EncodeError, ValueError, MemoryError):
            data = source.SerializeToString()
        file = SourceFile(source, data, None)
    elif isinstance(source, bytes):
        file = SourceFile(_parse(source), source, None)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            data = check_regular(path, _MOST).read_bytes()
        except OSError as error:
            raise ModelError(f"the file cannot be read: {error.strerror or error}") from error
        try:
            file = SourceFile(_parse(data), data, path.resolve().parent)
        except ModelError as error:
            if path.suffix.lower() in _OTHER_FORMATS:
                raise ModelError(f"this is not an ONNX file. {_OTHER_FORMATS[path.suffix.lower()]}") from error
            raise
    else:
        raise ModelError(f"expected a path, bytes or onnx.ModelProto, not {type(source).__name__}")
    if file.proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"IR version {file.proto.ir_version} is newer than the {onnx.IR_VERSION} that the installed onnx "
            f"{onnx.__version__} knows; upgrade jaxrnn and onnx"
        )
    if not file.proto.opset_import:
        raise ModelError(
            "the file imports no opset, so its operators are undefined; set opset_import and save the file again"
        )
    newest = onnx.defs.onnx_opset_version()
    owners = (file.proto, *file.proto.functions)
    for entry in itertools.chain.from_iterable(owner.opset_import for owner in owners):
        if not normal_domain(entry.domain) and entry.version > newest:
            raise ModelError(
                f"opset {entry.version} is newer than the {newest} that the installed onnx {onnx.__version__} knows; "
                "upgrade jaxrnn and onnx, or export with an older opset"
            )
    return file._replace(proto=write_out_sparse(file.proto, file.folder, limits or Limits()))


def _parse(data: bytes) -> onnx.ModelProto:
    if data.startswith(COMPILED):
        raise ModelError(
            "this is a compiled file, which runs with jaxrnn.load_compiled and 'jaxrnn stream'; here, give the ONNX "
            "file of the model"
        )
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            "the bytes are not an ONNX model, or the model is truncated; download or export the file again"
        ) from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(
            "not an ONNX model: it has no graph or no IR version; check that the file is ONNX and not some other "
            "protobuf message"
        )
    return proto


def check_proto(proto: onnx.ModelProto, folder: Path | None) -> None:
    """Run all checks that need no operator."""
    check_texts(entry.domain for entry in proto.opset_import)
    if not proto.graph.output:
        raise ModelError("the graph has no outputs")
    for graph in (proto.graph, *proto.functions):
        check_messages(graph)
        for label, tensor in tensors_of(graph):
            check_tensor(tensor, label, folder)
    _check_names(proto.graph, frozenset(), "")
    for function in proto.functions:
        whole = onnx.GraphProto(name=function.name, node=function.node)
        whole.input.extend(onnx.ValueInfoProto(name=name) for name in function.input)
        whole.output.extend(onnx.ValueInfoProto(name=name) for name in function.output)
        _check_names(whole, frozenset(), f"function {function.name!r}: ")


def _check_names(graph: onnx.GraphProto, outer: frozenset[str], where: str) -> None:
    """Check that names are defined once in a scope, and that used names are defined in this or an outer scope."""
    sources: dict[str, str] = {}

    def declare(name: str, by: str) -> None:
        if name and name in sources:
            raise ModelError(
                f"{where}the name {name!r} is defined twice: by {sources[name]} and by {by}; rename one of the values"
            )
        sources[name] = by

    for value in graph.input:
        declare(value.name, "a graph input")
    inputs = frozenset(sources)
    initializers: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in initializers:
            raise ModelError(
                f"{where}the initializer {tensor.name!r} is defined twice; rename or remove one of the two"
            )
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
        if value.name not in sources:
            raise ModelError(
                f"{where}the subgraph returns {value.name!r} of an outer graph; return an Identity of this value"
            )


def _check_defined(name: str, reach: frozenset[str], label: str) -> None:
    if name not in reach:
        raise ModelError(
            f"{label} uses {name!r}, which is neither an initializer, nor an input, nor a node's output"
            f"{near(name, reach)}"
        )


_Attribute = onnx.AttributeProto
#: The fields of attributes that are messages.
_MESSAGES = {_Attribute.TENSOR: "t", _Attribute.GRAPH: "g", _Attribute.TYPE_PROTO: "tp"}
_KINDS = frozenset(_Attribute.AttributeType.values()) - {_Attribute.UNDEFINED}


def check_messages(
    graph: onnx.GraphProto | onnx.FunctionProto,
    where: str = "",
    depth: int = 0,
    declared: Collection[str] | None = None,
) -> None:
    """Check the types of values and the attributes of a graph or function, subgraphs included."""
    if isinstance(graph, onnx.FunctionProto):
        declared = {*graph.attribute, *(default.name for default in graph.attribute_proto)}
        for default in graph.attribute_proto:
            label = f"function {graph.name!r}, attribute {default.name!r}"
            check_attribute(default, label)
            for inner in graphs_in(default):
                check_messages(inner, f"{label}: ", depth + 1)
    if depth > MAX_DEPTH:
        raise ModelError(
            f"{where}subgraphs are nested deeper than {MAX_DEPTH} levels; write the model with fewer levels"
        )
    # Descriptions of the whole graph need not be UTF-8.
    own = (graph.name,) if isinstance(graph, onnx.GraphProto) else _texts_of(graph, without=("node", "doc_string"))
    holders = itertools.chain(
        graph.node, _values(graph), graph.initializer if isinstance(graph, onnx.GraphProto) else ()
    )
    check_texts(itertools.chain(own, *map(_texts_of, holders)), where)
    for value in _values(graph):
        _check_type(value.type, f"{where}the declaration of {value.name!r}")
    if isinstance(graph, onnx.GraphProto):
        for kind, values in (("input", graph.input), ("output", graph.output), ("initializer", graph.initializer)):
            if any(not value.name for value in values):
                raise ModelError(f"{where}a graph {kind} has no name; every {kind} needs one")
    for node in graph.node:
        label = f"{where}{proto_label(node)}"
        if not node.op_type:
            raise ModelError(f"{label} has no operator; set op_type")
        if is_of_onnx(node, "Constant") and not node.output:
            raise ModelError(f"{label} has no output; remove the node")
        for attribute in node.attribute:
            try:
                check_attribute(attribute, f"{label}, attribute {attribute.name!r}", declared)
            except ModelError as error:
                if not is_of_onnx(node, node.op_type) or onnx.defs.has(node.op_type):
                    raise
                raise UnsupportedError(
                    f"{label}: ONNX has no operator {node.op_type}; the converter that wrote the file has left this "
                    f"operator of another format as it was. Convert the model without the operator ({error})"
                ) from error
            for inner in graphs_in(attribute):
                check_messages(inner, f"{label}, {attribute.name}: ", depth + 1, declared)


def check_texts(texts: Iterable[Any], where: str = "") -> None:
    """Refuse text that is not UTF-8, which protobuf returns as bytes."""
    for text in texts:
        if not isinstance(text, str):
            raise ModelError(f"{where}the name or text {text!r} is not valid UTF-8; the file is damaged")


def _texts_of(message: Any, without: Collection[str] = ()) -> Iterator[Any]:
    """Yield the texts of a message and its parts, except subgraphs, which are checked separately."""
    if isinstance(message, onnx.TensorProto):  # listing all fields would copy the data
        yield message.name
        for entry in (*message.metadata_props, *message.external_data):
            yield from (entry.key, entry.value)
        return
    for field, value in message.ListFields():
        if field.name in without or field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for each in [value] if isinstance(value, str | bytes | Message) else value:
            if field.type == field.TYPE_STRING:
                yield each
            elif not isinstance(each, onnx.GraphProto):
                yield from _texts_of(each)


def check_attribute(attribute: onnx.AttributeProto, label: str, declared: Collection[str] | None = None) -> None:
    """Check that an attribute has a valid type and value, or refers to an attribute of the enclosing function."""
    if not attribute.name:
        raise ModelError(f"{label} has no name")
    if attribute.type not in _KINDS:
        raise ModelError(f"{label}: unknown type {attribute.type}; the types are those of AttributeProto")
    if attribute.ref_attr_name and (declared is None or attribute.ref_attr_name not in declared):
        known = (
            "the node is not inside a function"
            if declared is None
            else f"the function declares {', '.join(declared) or 'none'}"
        )
        raise ModelError(
            f"{label} refers to the attribute {attribute.ref_attr_name!r} of the enclosing function, but {known}; "
            "write the value into the node"
        )
    if attribute.ref_attr_name and attribute.type in (_Attribute.GRAPH, _Attribute.GRAPHS):
        raise UnsupportedError(
            f"{label} refers to a graph attribute of the enclosing function, which is not supported; write the graph "
            "into the node"
        )
    if attribute.type in (_Attribute.SPARSE_TENSOR, _Attribute.SPARSE_TENSORS):
        raise UnsupportedError(f"{label} has sparse tensors, which are supported only as Constant's sparse_value")
    if attribute.ref_attr_name:
        return
    field = _MESSAGES.get(attribute.type)
    kind = _Attribute.AttributeType.Name(attribute.type)
    if field is not None and not attribute.HasField(field):
        raise ModelError(f"{label} has the type {kind}, but no value of this type")
    texts = [attribute.s] if attribute.type == _Attribute.STRING else attribute.strings
    for text in texts:
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{label}: {bytes(text[:20])!r} is not valid UTF-8") from error
    for kind_of in [attribute.tp] if attribute.HasField("tp") else attribute.type_protos:
        _check_type(kind_of, label)


def _values(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.ValueInfoProto]:
    if isinstance(graph, onnx.GraphProto):
        yield from graph.input
        yield from graph.output
    yield from graph.value_info


def _check_type(kind: onnx.TypeProto, label: str) -> None:
    """Refuse an element type that does not exist, and more axes than an array can have."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        code = getattr(kind, which).elem_type
        try:
            ir.DataType(code)
        except ValueError as error:
            raise ModelError(f"{label}: unknown element type {code}") from error
        check_rank(len(getattr(kind, which).shape.dim), label)
    elif which in ("sequence_type", "optional_type"):
        _check_type(getattr(kind, which).elem_type, label)
    elif which == "map_type":
        raise ModelError(f"{label}: maps are not supported; only tensors, sequences and optionals are")
