"""A model as a static attribute of a module: compared by identity, never copied, and pickled as its file."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx

from jaxrnn.errors import InputError, ModelError
from jaxrnn.loading import load
from jaxrnn.model import Model
from jaxrnn.onnx.blocks import Block
from jaxrnn.onnx.reading import SourceFile
from jaxrnn.onnx.tensors import tensors_of


class Held:
    """What a module's graph definition holds of its model.

    A model is functions, which cannot be pickled, and weights, which the module has as parameters: a copy of the module
    shares the model, and a pickle carries the file that it was read from.
    """

    __slots__ = ("model",)

    def __init__(self, model: Model):
        if not isinstance(model, Model):
            raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.model is other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __copy__(self) -> Held:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return self

    def __reduce__(self) -> tuple[Callable[..., Held], tuple[Any, ...]]:
        model = self.model
        arguments = {
            "static": model.static,
            "state": model.declared_state,
            "max_trip_count": dict(_loop_bounds(model.program.block)),
        }
        return _reload, (_whole(model._file, model.label), arguments, model.label)

    def __repr__(self) -> str:
        return self.model.label


def _reload(data: bytes, arguments: Mapping[str, Any], label: str) -> Held:
    model = load(data, **arguments)
    model.label = label
    return Held(model)


def _loop_bounds(block: Block) -> Iterator[tuple[str, int]]:
    """The bounds that loops were given when the model was loaded, by node name."""
    for node in block.nodes:
        match node.operator.function:
            case functools.partial(args=(_, int(bound))) if node.operator.name == "Loop":
                yield node.name, bound
        for value in node.attributes.values():
            if isinstance(value, Block):
                yield from _loop_bounds(value)


def _whole(file: SourceFile, label: str) -> bytes:
    """A file with all of its tensors inside."""
    proto = file.proto
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for _, tensor in tensors_of(proto.graph)):
        proto = copy.deepcopy(proto)
        try:
            onnx.load_external_data_for_model(proto, str(file.folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(f"{label} cannot be pickled, because its external data cannot be read: {error}") from error
    elif file.data is not None:
        return file.data
    try:
        return proto.SerializeToString()
    except (ValueError, MemoryError) as error:
        raise ModelError(f"{label} cannot be pickled, because it is too large for one file: {error}") from error
