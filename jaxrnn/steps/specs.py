"""Arrays by name: one description of an array, and one check of arguments against it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxrnn._files.arguments import either
from jaxrnn._files.messages import brief, describe, near
from jaxrnn.errors import InputError

Dimension = int | str
"""A size of an array: a number, or the name of an open dimension."""

#: What JAX makes of 64-bit integers without ``jax_enable_x64``; widening them again loses nothing.
_WIDENED = {("int32", "int64"), ("uint32", "uint64")}


def widens(dtype: Any, declared: Any) -> bool:
    """Whether arrays of one element type serve as another, wider one: under ``jit`` or not, from JAX or NumPy."""
    return (np.dtype(dtype).name, np.dtype(declared).name) in _WIDENED


@brief
@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """One named array: an input, an output or an entry of a state.

    Attributes:
        name: what it goes by.
        dtype: its element type, ``object`` for strings; None for a sequence or an optional, whose items are checked
            where they are used.
        shape: ints and names of open dimensions; None where the rank is not known.
        time_axis: the axis that holds frames of time; None where there is none.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[Dimension, ...] | None
    time_axis: int | None = None

    def __post_init__(self) -> None:
        # Sizes and axes that a user computed may be NumPy's numbers, which JSON does not take.
        if self.shape is not None:
            sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in self.shape)
            object.__setattr__(self, "shape", sizes)
        if self.time_axis is not None:
            object.__setattr__(self, "time_axis", int(self.time_axis))

    def __str__(self) -> str:
        if self.dtype is None:
            return f"{self.name}: sequence or optional"
        shape = "..." if self.shape is None else ", ".join(map(str, self.shape))
        return f"{self.name}: {'string' if self.is_text else self.dtype.name}[{shape}]"

    @property
    def as_input(self) -> str:
        """It as an input in a message, ``input x: float32[2]``; one called ``input`` is not said to be one twice."""
        return str(self) if self.name == "input" else f"input {self}"

    @property
    def is_text(self) -> bool:
        """Whether it is an array of strings."""
        return self.dtype is not None and self.dtype.kind == "O"

    @property
    def is_wide(self) -> bool:
        """Whether JAX has its element type only where ``jax_enable_x64`` is set."""
        return self.dtype is not None and self.dtype.name in ("int64", "uint64", "float64", "complex128")

    @property
    def nbytes(self) -> int:
        """Its size in bytes, with 1 for every open dimension."""
        assert self.dtype is not None
        return math.prod(size for size in self.shape or () if isinstance(size, int)) * self.dtype.itemsize

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape, of which no dimension may be open."""
        sizes = tuple(size for size in self.shape or () if not isinstance(size, str))
        assert self.shape is not None
        assert len(sizes) == len(self.shape), f"{self} has open dimensions"
        return sizes

    @property
    def symbols(self) -> list[str]:
        """The names of its open dimensions."""
        return [size for size in self.shape or () if isinstance(size, str)]

    def sized(self, sizes: Mapping[str, Any]) -> Self:
        """The same with sizes for open dimensions by name."""
        if self.shape is None:
            return self
        shape = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in self.shape)
        return dataclasses.replace(self, shape=shape)

    def with_frames(self, frames: Any) -> Self:
        """The same with another number of frames, where it has a time axis."""
        if self.time_axis is None or self.shape is None:
            return self
        return dataclasses.replace(
            self, shape=tuple(frames if axis == self.time_axis else size for axis, size in enumerate(self.shape))
        )

    def batched(self, lead: Sequence[Any]) -> Self:
        """The same with axes in front."""
        if self.shape is None or not lead:
            return self
        time_axis = None if self.time_axis is None else self.time_axis + len(lead)
        return dataclasses.replace(self, shape=(*lead, *self.shape), time_axis=time_axis)

    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and element type, for ``jax.eval_shape`` and ``jax.export``; as in `sizes`."""
        assert self.dtype is not None
        return jax.ShapeDtypeStruct(self.sizes, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Its fields in JSON's types."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        dtype = None if self.dtype is None else self.dtype.name
        return fields | {"dtype": dtype, "shape": None if self.shape is None else list(self.shape)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The array that `to_json` described."""
        dtype, shape = fields["dtype"], fields["shape"]
        return cls(
            **{
                **fields,
                "dtype": None if dtype is None else dtype_named(dtype),
                "shape": None if shape is None else tuple(shape),
            }
        )


def dtype_named(name: str) -> np.dtype:
    """An element type by its name, those that NumPy does not have itself included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def converted(spec: ArraySpec, value: Any) -> Any:
    """A value as a JAX array of the declared element type.

    Python's numbers and lists take on the type if they keep their value. Arrays must have it, but int32 serves as
    int64, because that is what JAX makes of int64 without ``jax_enable_x64``.

    Raises:
        InputError: it has another type, or no array of JAX can hold what is declared.
    """
    if spec.dtype is None or spec.is_text:
        raise InputError(
            f"{spec.as_input} is no array of numbers: such a model runs with apply, or with step of one stream"
        )
    if not hasattr(value, "dtype"):
        return jnp.asarray(_from_python(spec, spec.dtype, value))
    if value.dtype == spec.dtype:
        return jnp.asarray(value)
    if widens(value.dtype, spec.dtype):
        return jnp.asarray(value).astype(spec.dtype)
    if not isinstance(value, jax.Array) and value.dtype.kind in "iufc":
        array = jnp.asarray(value)  # narrower where JAX has no types of 64 bits
        if array.dtype == spec.dtype:
            if value.dtype.kind in "iu" and not np.array_equal(np.asarray(array), value):
                raise InputError(f"{spec.as_input} got {describe(value)} with values that do not fit {spec.dtype.name}")
            return array
    if spec.dtype == np.float64 and isinstance(value, jax.Array):
        mend = "JAX makes float32 of float64 unless jax_enable_x64 is on: call inside 'with jax.enable_x64(True):'"
    else:
        mend = f"convert it with .astype({spec.dtype.name!r})"
    raise InputError(f"{spec.as_input} got {describe(value)}; {mend}")


def taken(spec: ArraySpec, value: Any) -> Any:
    """As `converted`, for what is compiled: a NumPy array of the declared type is only copied.

    JAX would compile a program to convert it. It is copied because on the CPU JAX reads it where it lies, perhaps after
    the call.

    Raises:
        InputError: as `converted`.
    """
    if isinstance(value, np.ndarray) and not spec.is_text and value.dtype == spec.dtype:
        return value.copy()
    return converted(spec, value)


def _from_python(spec: ArraySpec, dtype: np.dtype, value: Any) -> np.ndarray:
    """Python numbers or nested lists in the declared type; floats may round, integers must keep their value."""
    try:
        plain = np.asarray(value)
        if plain.dtype.kind == "c" and not jnp.issubdtype(dtype, jnp.complexfloating):
            raise TypeError(f"complex numbers do not fit the type {dtype.name}")
        array = plain.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{spec.as_input} cannot be made from {type(value).__name__}: {error}") from error
    rounds = jnp.issubdtype(dtype, jnp.inexact) and plain.dtype.kind in "fc"
    if not rounds and not np.array_equal(array.astype(plain.dtype), plain):
        raise InputError(f"{spec.as_input}: the value {value!r} does not fit the type {dtype.name}")
    return array


def bind(
    specs: Sequence[ArraySpec],
    arrays: Mapping[str, Any],
    *,
    convert: Callable[[ArraySpec, Any], Any] = converted,
    note: str = "",
    otherwise: str = "",
) -> dict[str, Any]:
    """Arguments by name, in the order of their descriptions, as arrays of the declared types.

    Args:
        specs: what is expected.
        arrays: what came.
        convert: makes a value an array of the declared type.
        note: what an error about a shape says besides.
        otherwise: what it says without that, of an array that is no batch of those described.

    Raises:
        InputError: names the input, what was expected and what came.
    """
    if not isinstance(arrays, Mapping):
        raise InputError(f"inputs must be a dict of arrays by name, not {type(arrays).__name__}")
    check_names(specs, arrays)
    missing = [str(spec) for spec in specs if spec.name not in arrays]
    if missing:
        raise InputError(f"missing input(s): {', '.join(missing)}")
    sizes: dict[str, tuple[Any, str]] = {}
    values = {}
    for spec in specs:
        value = values[spec.name] = convert(spec, arrays[spec.name])
        if spec.dtype is not None:
            _check_shape(spec, value, sizes, note or _batch_note(spec, value) or otherwise)
    return values


def check_names(specs: Sequence[ArraySpec], names: Collection[Any]) -> None:
    """Refuse names that nothing goes by.

    Raises:
        InputError: names the nearest input.
    """
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            listed = ", ".join(map(str, specs)) or "none"
            raise InputError(f"there is no input {name!r}{near(name, known)}; the inputs are: {listed}")


def _batch_note(spec: ArraySpec, value: Any) -> str:
    """What an error says of an array that is a batch of those described, or has one where they have an axis of 1."""
    if spec.shape is None or not spec.shape or not value.shape:
        return ""

    def fits(shape: Sequence[Any], core: Sequence[Any]) -> bool:
        pairs = zip(shape, core, strict=False)
        return len(shape) == len(core) and all(isinstance(a, str) or a == b for a, b in pairs)

    if fits(spec.shape, value.shape[1:]):
        form = ""
    elif spec.shape[0] == 1 and fits(spec.shape[1:], value.shape[1:]):
        form = ", as array[:, None],"
    else:
        return ""
    batch = f"a batch of {value.shape[0]}{form}"
    return either(f"; {batch} is mapped by jax.vmap, or in steps begins with init(batch=n)", "")


def _check_shape(spec: ArraySpec, value: Any, sizes: dict[str, tuple[Any, str]], note: str) -> None:
    if spec.shape is None:
        return
    if len(value.shape) != len(spec.shape):
        raise InputError(
            f"{spec.as_input} has rank {len(spec.shape)}, but got {describe(value)} of rank {len(value.shape)}{note}"
        )
    for axis, (expected, size) in enumerate(zip(spec.shape, value.shape, strict=True)):
        if not isinstance(expected, str):
            if size != expected:
                raise InputError(
                    f"{spec.as_input} got {describe(value)}: axis {axis} must be {expected}, not {size}{note}"
                )
        elif sizes.setdefault(expected, (size, spec.name))[0] != size:
            other, where = sizes[expected]
            raise InputError(
                f"{spec.as_input} got {describe(value)}: dimension {expected!r} is {size} here, but {other} in "
                f"{where!r}"
            )
