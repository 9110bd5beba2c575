"""A model as a pickle: its file, and the options of `load`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx

from jaxrnn.errors import JaxrnnError, ModelError
from jaxrnn.onnx.tensors import tensors_of

if TYPE_CHECKING:
    from jaxrnn.model import Model


def contents_of(model: Model) -> tuple[bytes, dict[str, Any], str]:
    """What `reloaded` makes the model of again: its file, with all of its tensors inside, and arguments.

    Raises:
        ModelError: its external data is gone or has changed, it is too large for one file, or one of its own operators
            is no function of a module.
    """
    arguments = {**model._load_options, "static": model.static, "state": model.declared_state}
    try:
        pickle.dumps(arguments.get("operators"))
    except Exception as error:  # what pickle raises has many types
        reason = f"one of its own operators cannot be: {error}; give functions that a module defines"
        raise _refused(model, reason) from error
    file, proto = model._file, model.proto
    outside = any(tensor.data_location == onnx.TensorProto.EXTERNAL for _, tensor in tensors_of(proto.graph))
    if file.data is not None and not outside:
        return file.data, arguments, model.label
    proto = copy.deepcopy(proto)
    try:
        if outside:
            onnx.load_external_data_for_model(proto, str(file.folder))
        data = proto.SerializeToString()
    except (OSError, onnx.checker.ValidationError) as error:
        raise _refused(model, f"its external data cannot be read: {error}") from error
    except (ValueError, MemoryError) as error:
        raise _refused(model, f"it is too large for one file: {error}") from error
    if outside and not _is_same_model(model, data, arguments):
        raise _refused(model, "its external data is no longer what it was when the model was loaded")
    return data, arguments, model.label


def reloaded(data: bytes, arguments: Mapping[str, Any], label: str) -> Model:
    """The model of `contents_of`."""
    from jaxrnn.model.loading import load  # stands on `Model`

    model = load(data, **arguments)
    model.label = label
    return model


def _is_same_model(model: Model, data: bytes, arguments: Mapping[str, Any]) -> bool:
    try:
        again = reloaded(data, arguments, model.label)
    except JaxrnnError:
        return False
    arrays, others = model.program.parameters, again.program.parameters
    return model.fingerprint == again.fingerprint and all(
        array.tobytes() == others[name].tobytes() for name, array in arrays.items()
    )


def _refused(model: Model, reason: str) -> ModelError:
    return ModelError(f"{model.label} cannot be pickled, because {reason}")
