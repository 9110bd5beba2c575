"""Reading of a model from a path, bytes or a ``ModelProto``, with its bytes and folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError, EncodeError

from jaxrnn._files.files import check_regular
from jaxrnn.errors import JaxrnnError, ModelError
from jaxrnn.onnx.graph import normal_domain
from jaxrnn.onnx.limits import Limits
from jaxrnn.onnx.tensors import write_out_sparse

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


def label_of(source: Source) -> str:
    """Return the name of the model in messages."""
    if isinstance(source, onnx.ModelProto):
        return f"model {source.graph.name!r}"
    if isinstance(source, bytes):
        return f"model of {len(source)} bytes"
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else repr(source)


@contextlib.contextmanager
def labelled(label: str) -> Iterator[None]:
    """Prefix every error of the project inside the context with the label of the model."""
    try:
        yield
    except JaxrnnError as error:
        raise type(error)(f"{label}: {error}") from error


class SourceFile(NamedTuple):
    """A model file after reading."""

    proto: onnx.ModelProto
    data: bytes | None  # the bytes of the file; None for a proto that is too large for a file
    folder: Path | None  # the folder that must hold the external data; None for a model without a file


def read_source(source: Source, limits: Limits | None = None) -> SourceFile:
    """Read a model; its sparse tensors become dense."""
    if isinstance(source, onnx.ModelProto):
        file = SourceFile(source, _serialized(source), None)
    elif isinstance(source, bytes):
        file = SourceFile(_parse(source), source, None)
    elif isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            data = check_regular(path).read_bytes()
        except OSError as error:
            raise ModelError(f"the file cannot be read: {error.strerror or error}") from error
        file = SourceFile(_parse(data), data, path.resolve().parent)
    else:
        raise ModelError(f"expected a path, bytes or onnx.ModelProto, not {type(source).__name__}")
    _check_versions(file.proto)
    return file._replace(proto=write_out_sparse(file.proto, file.folder, limits or Limits()))


def _serialized(proto: onnx.ModelProto) -> bytes | None:
    try:
        return proto.SerializeToString()
    except (EncodeError, ValueError, MemoryError):
        return None


def _parse(data: bytes) -> onnx.ModelProto:
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


def _check_versions(proto: onnx.ModelProto) -> None:
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"IR version {proto.ir_version} is newer than the {onnx.IR_VERSION} that the installed onnx "
            f"{onnx.__version__} knows; upgrade jaxrnn and onnx"
        )
    if not proto.opset_import:
        raise ModelError(
            "the file imports no opset, so its operators are undefined; set opset_import and save the file again"
        )
    newest = onnx.defs.onnx_opset_version()
    opsets = [*proto.opset_import, *(entry for function in proto.functions for entry in function.opset_import)]
    for entry in opsets:
        if normal_domain(entry.domain):
            continue
        if entry.version > newest:
            raise ModelError(
                f"opset {entry.version} is newer than the {newest} that the installed onnx {onnx.__version__} knows; "
                "upgrade jaxrnn and onnx, or export with an older opset"
            )
