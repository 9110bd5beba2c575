"""What a caller sees of a graph: its inputs and outputs as arrays by name, strings and sequences included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn._files.arguments import static_argument
from jaxrnn._files.messages import describe
from jaxrnn.errors import InputError
from jaxrnn.onnx.text import as_text
from jaxrnn.steps.specs import ArraySpec, Dimension, bind, check_names, converted


def spec_of(value: ir.Value) -> ArraySpec:
    """The declaration of a graph input or output; a dimension without a name is called ``<name>_dim_<axis>``."""
    name = str(value.name)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return ArraySpec(name, None, None)
    dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else np.dtype(value.dtype.numpy())
    if value.shape is None:
        return ArraySpec(name, dtype, None)
    return ArraySpec(
        name, dtype, tuple(_dimension(size, f"{name}_dim_{axis}") for axis, size in enumerate(value.shape))
    )


#: A file without names for its axes calls the first ``..._dim_0``.
_BATCH = re.compile(r"n|bs?|.*batch.*|.*_dim_0", re.IGNORECASE)


def name_dimensions(graph: ir.Graph, dims: Mapping[str, int | str]) -> None:
    """Rename, tie, fix or relate open dimensions of a graph's inputs and outputs, in place.

    Args:
        graph: the graph.
        dims: by the name of a dimension, as `spec_of` gives it, another name, a size, or a multiple such as ``"4*U"``.

    Raises:
        InputError: a key is no open dimension of an input, or a value is neither a name nor a size.
    """
    known = {size for value in graph.inputs for size in spec_of(value).shape or () if isinstance(size, str)}
    for name, given in dims.items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(f"dims={{{name!r}: {given!r}}}: no input has such an open dimension; there are: {listed}")
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


#: A name of a dimension, or a multiple of one.
_MULTIPLE = re.compile(r"(\d+\s*\*\s*)?[A-Za-z_][\w.:/]*")


def is_batch_name(dimension: str) -> bool:
    """Whether a dimension's name is one of a batch, and so neither time nor a number of features."""
    return _BATCH.fullmatch(dimension) is not None


def _dimension(size: int | ir.SymbolicDim, unnamed: str) -> Dimension:
    """A size, or the name of an open dimension; some exporters write a negative size for one."""
    if isinstance(size, int):
        return size if size >= 0 else unnamed
    return size.value or unnamed


def bind_inputs(specs: Sequence[ArraySpec], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`jaxrnn.steps.specs.bind` with strings, sequences and optionals.

    Raises:
        InputError: names the input, what was expected and what came.
    """
    return bind(specs, inputs, convert=_as_declared)


def _as_declared(spec: ArraySpec, value: Any) -> Any:
    if spec.is_text:
        return _strings(spec, value)
    if spec.dtype is None:
        item = lambda each: as_text(each) if _looks_like_text(each) else jnp.asarray(each)  # noqa: E731
        return jax.tree.map(item, tuple(value) if isinstance(value, list) else value)
    return converted(spec, value)


def _looks_like_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "OUT")


def _strings(spec: ArraySpec, value: Any) -> np.ndarray:
    if isinstance(value, jax.Array):
        raise InputError(
            f"{spec.as_input} got {describe(value)}; JAX has no strings, so they are no arguments of jit, grad or "
            f"vmap: pass NumPy arrays of them to a plain call, or bind them with {static_argument(spec.name)}"
        )
    try:
        return as_text(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{spec.as_input} cannot be made from {type(value).__name__}: {error}") from error


def bind_static(declared: Sequence[ArraySpec], static: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values for some of the inputs, which are fixed from here on, as arrays of the declared types.

    Raises:
        InputError: there is no such input, or a value does not fit it.
    """
    try:
        check_names(declared, static)
    except InputError as error:
        raise InputError(f"static: {error}") from error
    by_name = {spec.name: spec for spec in declared}
    bound = bind_inputs([by_name[name] for name in static], static)
    return {name: np.asarray(value) for name, value in bound.items()}
