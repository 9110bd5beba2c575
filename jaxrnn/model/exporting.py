"""The file that a model was loaded from, with other parameters: what `jaxrnn.export_onnx` writes of a whole graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrnn._files.files import check_writable
from jaxrnn._files.messages import describe
from jaxrnn._jax.precision import check_names
from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.model import Model
from jaxrnn.onnx.reading import labelled
from jaxrnn.onnx.writing import write_model


def write_graph(model: Model, params: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the ONNX file that a model was loaded from, with these parameters in it.

    Each parameter goes where the file has it and is stored as it is there: as raw bytes, in a typed field, in a file of
    external data, in an initializer or a ``Constant`` node, in subgraphs and local functions. Every other byte of the
    file stays as it was, so that unchanged parameters give an identical file. A model loaded from a ``ModelProto`` is
    written as that was when it was loaded.

    External data is written beside the new file under its old name, or under ``<name>.data`` where the folder has
    another file of that name; then the file says so. What was there before is not touched, and everything in the data
    but the parameters is copied. The file appears whole or not at all, and may take the place of the one that the model
    was loaded from.

    Args:
        model: as `jaxrnn.load` gives it, also with ``static`` and ``state``.
        params: arrays of JAX or NumPy by name, as in `Model.params`. Another float type than the file's is cast.
        path: the file to write.

    Raises:
        InputError: a name is missing or unknown, a shape or type does not fit, a value is beyond what the file's type
            can hold or not a number where the file has one, or parameters that share bytes differ in them.
        UnsupportedError: not a model but something made of one, or a tensor that cannot be told in the file.
        ModelError: the file of external data is not there any more, or has become too short.
    """
    _check_model(model)
    path = Path(path)
    check_writable(path)
    with labelled(model.label):
        arrays = stored_params(model, params)
        changed = frozenset(
            name for name, array in arrays.items() if not _has_same_bits(array, model.program.parameters[name])
        )
        origins = {name: origin for name, origin in model.program.origins.items() if origin is not None}
        for name in sorted(changed - origins.keys()):
            raise UnsupportedError(
                f"params[{name!r}] has changed, but its floats are an attribute that a local function gets from its "
                "caller, or a sparse tensor, which cannot be written; give it the values of model.params"
            )
        known = {name: array for name, array in arrays.items() if name in origins}
        write_model(model._file, known, changed, origins, path)


def stored_params(model: Model, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters in the element types of the file, by name, in its order.

    Raises:
        InputError: as `write_graph` says.
    """
    if isinstance(params, Packed):
        raise InputError("params are packed: pass the plain ones that were given to pack, packed.params")
    expected = model.program.parameters
    check_names(params, expected)
    return {name: _stored(name, params[name], old) for name, old in expected.items()}


def _stored(name: str, value: Any, old: np.ndarray) -> np.ndarray:
    where = f"params[{name!r}]"
    if isinstance(value, Tracer):
        raise InputError(f"{where} is being traced and has no values; call export_onnx outside of jit")
    if not hasattr(value, "shape") or np.asarray(value).dtype == object:
        raise InputError(f"{where} must be an array of JAX or NumPy, not {type(value).__name__}")
    given = np.asarray(value)
    if not jnp.issubdtype(given.dtype, jnp.floating):
        raise InputError(f"{where} is {given.dtype}, but the file has {old.dtype}: float arrays are expected")
    if given.shape != old.shape:
        raise InputError(f"{where} must be {describe(old)}, not {describe(given)}")
    with np.errstate(all="ignore"):
        array = given if given.dtype == old.dtype else given.astype(old.dtype)
        _refuse(name, given, np.isinf(array) & ~np.isinf(given), f"is beyond what the file's {old.dtype} can hold")
        _refuse(name, given, np.isnan(array) & ~np.isnan(old), "is not a number, but the file has one there")
    return array


def _refuse(name: str, given: np.ndarray, wrong: np.ndarray, reason: str) -> None:
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        count = f", and {int(wrong.sum()) - 1:,} more" if wrong.sum() > 1 else ""
        raise InputError(f"params[{name!r}]{list(index)} = {given[index]} {reason}{count}; nothing was written")


def _has_same_bits(array: np.ndarray, old: np.ndarray) -> bool:
    """Whether all bits are the same: -0 is not 0, and NaNs may differ."""
    return array.tobytes() == old.tobytes()


def _check_model(model: Any) -> None:
    if isinstance(model, Model):
        return
    if hasattr(model, "step"):
        raise UnsupportedError(
            f"a {type(model).__name__} cannot be written as ONNX yet: only the graph of a file, with other parameters. "
            "Export the model that it was made of"
        )
    raise InputError(f"expected a model as jaxrnn.load gives it, not {type(model).__name__}")
