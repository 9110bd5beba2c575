"""What a caller sees of a graph: the inputs and outputs with dtype and shape, and whether arguments fit them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn.errors import InputError
from jaxrnn.onnx.text import as_text
from jaxrnn.onnx.values import describe

Dimension = int | str


@dataclass(frozen=True)
class TensorInfo:
    """One input or output of a model.

    Attributes:
        name: its name in the file.
        dtype: its element type, ``object`` for strings; None for a sequence or an optional, whose items are checked
            where they are used.
        shape: ints and symbol names; None where the file gives no rank. A dimension that the file leaves open is
            called ``<name>_dim_<axis>``.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[Dimension, ...] | None

    def __str__(self) -> str:
        if self.dtype is None:
            return f"{self.name}: sequence or optional"
        shape = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.name}: {'string' if self.is_text else self.dtype.name}[{shape}]"

    @property
    def is_text(self) -> bool:
        """Whether it is an array of strings."""
        return self.dtype is not None and self.dtype.kind == "O"


def tensor_info(value: ir.Value) -> TensorInfo:
    """The declaration of a graph input or output."""
    name = str(value.name)
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return TensorInfo(name, None, None)
    dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else np.dtype(value.dtype.numpy())
    if value.shape is None:
        return TensorInfo(name, dtype, None)
    return TensorInfo(
        name, dtype, tuple(_dimension(size, f"{name}_dim_{axis}") for axis, size in enumerate(value.shape))
    )


def _dimension(size: int | ir.SymbolicDim, unnamed: str) -> Dimension:
    """A size, or the name of an open dimension; some exporters write a negative size for one."""
    if isinstance(size, int):
        return size if size >= 0 else unnamed
    return size.value or unnamed


def bind_inputs(infos: Sequence[TensorInfo], inputs: Mapping[str, Any]) -> list[Any]:
    """The arguments in the order of the declarations, as arrays of the declared types.

    Python numbers and lists take the declared type if they keep their value; arrays must have it, but an int32 JAX
    array serves as int64, because that is what JAX makes of int64 without ``jax_enable_x64``.

    Raises:
        InputError: names the input, what was expected and what came.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(f"inputs must be a dict of arrays by name, not {type(inputs).__name__}")
    known = [info.name for info in infos]
    for name in inputs:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            listed = ", ".join(map(str, infos)) or "none"
            raise InputError(f"there is no input {name!r}{hint}; the inputs are: {listed}")
    missing = [str(info) for info in infos if info.name not in inputs]
    if missing:
        raise InputError(f"missing input(s): {', '.join(missing)}")
    sizes: dict[str, tuple[Any, str]] = {}
    values = []
    for info in infos:
        value = _as_declared(info, inputs[info.name])
        if info.dtype is not None:
            _check_shape(info, value, sizes)
        values.append(value)
    return values


def _as_declared(info: TensorInfo, value: Any) -> Any:
    if info.is_text:
        return _strings(info, value)
    if info.dtype is None:
        item = lambda each: as_text(each) if _looks_like_text(each) else jnp.asarray(each)  # noqa: E731
        return jax.tree.map(item, tuple(value) if isinstance(value, list) else value)
    if not hasattr(value, "dtype"):
        return jnp.asarray(_from_python(info, info.dtype, value))
    if value.dtype == info.dtype:
        return jnp.asarray(value)
    if isinstance(value, jax.Array) and (value.dtype.name, info.dtype.name) in _WIDENED:
        return value.astype(info.dtype)
    if info.dtype == np.float64 and isinstance(value, jax.Array):
        mend = "JAX makes float32 of float64 unless jax_enable_x64 is on: call inside 'with jax.enable_x64(True):'"
    else:
        mend = f"convert it with .astype({info.dtype.name!r})"
    raise InputError(f"input {info} got {value.dtype}[{', '.join(map(str, value.shape))}]; {mend}")


def _looks_like_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "OUT")


def _strings(info: TensorInfo, value: Any) -> np.ndarray:
    if isinstance(value, jax.Array):
        raise InputError(
            f"input {info} got {describe(value)}; JAX has no strings, so they are no arguments of jit, grad or vmap: "
            "pass NumPy arrays of them to a plain call, or bind them with jaxrnn.load(..., static={name: strings})"
        )
    try:
        return as_text(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"input {info} cannot be made from {type(value).__name__}: {error}") from error


#: What JAX makes of 64-bit integers without ``jax_enable_x64``; widening them again loses nothing.
_WIDENED = {("int32", "int64"), ("uint32", "uint64")}


def _from_python(info: TensorInfo, dtype: np.dtype, value: Any) -> np.ndarray:
    """Python numbers or nested lists in the declared type; floats may round, integers must keep their value."""
    try:
        plain = np.asarray(value)
        array = plain.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"input {info} cannot be made from {type(value).__name__}: {error}") from error
    rounds = jnp.issubdtype(dtype, jnp.inexact) and plain.dtype.kind in "fc"
    if not rounds and not np.array_equal(array.astype(plain.dtype), plain):
        raise InputError(f"input {info}: the value {value!r} does not fit the type {dtype.name}")
    return array


def _check_shape(info: TensorInfo, value: Any, sizes: dict[str, tuple[Any, str]]) -> None:
    if info.shape is None:
        return
    if len(value.shape) != len(info.shape):
        raise InputError(
            f"input {info} has rank {len(info.shape)}, but got {describe(value)} of rank {len(value.shape)}"
        )
    for axis, (expected, size) in enumerate(zip(info.shape, value.shape, strict=True)):
        if isinstance(expected, int):
            if size != expected:
                raise InputError(f"input {info} got {describe(value)}: axis {axis} must be {expected}, not {size}")
        elif sizes.setdefault(expected, (size, info.name))[0] != size:
            other, where = sizes[expected]
            raise InputError(
                f"input {info} got {describe(value)}: dimension {expected!r} is {size} here, but {other} in {where!r}"
            )


def bind_static(declared: Sequence[TensorInfo], static: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values for some of the inputs, which are fixed from here on, as arrays of the declared types.

    Raises:
        InputError: there is no such input, or a value does not fit it.
    """
    by_name = {info.name: info for info in declared}
    unknown = [name for name in static if name not in by_name]
    if unknown:
        raise InputError(f"static: there is no input {unknown[0]!r}; the inputs are: {', '.join(map(str, declared))}")
    chosen = [by_name[name] for name in static]
    return {info.name: np.asarray(value) for info, value in zip(chosen, bind_inputs(chosen, static), strict=True)}
