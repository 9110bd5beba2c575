"""The inputs and outputs of a graph for callers: dicts of arrays, strings and sequences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn._files.arguments import either, static_argument
from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError
from jaxrnn.onnx.values import as_text
from jaxrnn.steps.specs import ArraySpec, bind, check_names, converted


def spec_of(value: ir.Value) -> ArraySpec:
    """Return the declaration of a graph input or output; a nameless dimension becomes ``<name>_dim_<axis>``."""
    name = str(value.name)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return ArraySpec(name, None, None)
    dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else np.dtype(value.dtype.numpy())
    if value.shape is None:
        return ArraySpec(name, dtype, None)
    # Some exporters write a negative size in place of a name.
    sizes = enumerate(size if isinstance(size, int) else size.value or -1 for size in value.shape)
    shape = (f"{name}_dim_{axis}" if isinstance(size, int) and size < 0 else size for axis, size in sizes)
    return ArraySpec(name, dtype, tuple(shape))


#: In a file without names of axes, the first axis is called ``..._dim_0``.
_BATCH = re.compile(r"n|bs?|.*batch.*|.*_dim_0", re.IGNORECASE)


def name_dimensions(graph: ir.Graph, dims: Mapping[str, int | str]) -> None:
    """Rename, tie, fix or relate open dimensions of a graph's inputs and outputs, in place."""
    known = {size for value in graph.inputs for size in spec_of(value).shape or () if isinstance(size, str)}
    for name, given in dims.items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(
                f"dims={{{name!r}: {given!r}}}: no input has an open dimension of this name; the open dimensions are: "
                f"{listed}"
            )
        if isinstance(given, str) and _MULTIPLE.fullmatch(given.strip()):
            continue
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError(
                f"dims={{{name!r}: {given!r}}}: expected a name, a size from 1 on, or a multiple such as '4*U'"
            )
    if not dims:
        return
    for value in (*graph.inputs, *graph.outputs):
        shape = spec_of(value).shape
        if shape is not None and any(size in dims for size in shape):
            value.shape = ir.Shape([dims.get(str(size), size) for size in shape])


#: The name of a dimension, or a multiple such as ``4*U``.
_MULTIPLE = re.compile(r"(\d+\s*\*\s*)?[A-Za-z_][\w.:/]*")


def is_batch_name(dimension: str) -> bool:
    """Return True if the name of a dimension is one for a batch."""
    return _BATCH.fullmatch(dimension) is not None


def bind_inputs(specs: Sequence[ArraySpec], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind inputs as `jaxrnn.steps.specs.bind` does, with strings, sequences and optionals."""
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
            f"{static_argument(spec.name)}"
        )
    try:
        return as_text(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{spec.as_input} cannot be made from {type(value).__name__}: {error}") from error


def bind_static(declared: Sequence[ArraySpec], static: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return fixed values of inputs as arrays of the declared types."""
    try:
        check_names(declared, static)
    except InputError as error:
        raise InputError(f"static: {error}") from error
    by_name = {spec.name: spec for spec in declared}
    for name, value in static.items():
        if by_name[name].shape and np.ndim(value) == 0 and not isinstance(value, dict):
            given = either("", " A JSON list or a .npy file gives an array.")
            raise InputError(
                f"static: {by_name[name].as_input} needs an array of that shape, but got the single value {value!r}."
                f"{given}"
            )
    bound = bind_inputs([by_name[name] for name in static], static)
    return {name: np.asarray(value) for name, value in bound.items()}
