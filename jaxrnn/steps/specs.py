"""`ArraySpec`, the description of a named array, and checks of arguments against these descriptions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxrnn._files.messages import describe, near, short_repr
from jaxrnn.errors import InputError

Dimension = int | str
"""A size of an array: a number, or the name of an open dimension."""

#: Arrays by name.
Arrays = Mapping[str, Any]

#: The dtypes to which JAX narrows 64-bit integers without ``jax_enable_x64``, and the dtypes of the integers.
_WIDENED = {("int32", "int64"), ("uint32", "uint64")}


def widens(dtype: Any, declared: Any) -> bool:
    """Return True if an array of ``dtype`` is accepted as the wider type ``declared`` and converted."""
    return (np.dtype(dtype).name, np.dtype(declared).name) in _WIDENED


@short_repr
@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """A named array: an input, an output or an entry of a state.

    Attributes:
        name: the name.
        dtype: the element type, ``object`` for strings; None if the value is an ONNX sequence or optional.
        shape: sizes, and names of open dimensions; None if the rank is unknown.
        time_axis: the axis of the frames; None if the array has no frames.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[Dimension, ...] | None
    time_axis: int | None = None

    def __post_init__(self) -> None:
        # Users compute sizes and axes with NumPy, and JSON does not accept NumPy integers.
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
        """The text ``input x: float32[2]`` for messages, without the prefix if the array is called ``input``."""
        return str(self) if self.name == "input" else f"input {self}"

    @property
    def is_text(self) -> bool:
        """True for an array of strings."""
        return self.dtype is not None and self.dtype.kind == "O"

    @property
    def is_wide(self) -> bool:
        """True if JAX supports the dtype only with ``jax_enable_x64``."""
        return self.dtype is not None and self.dtype.name in ("int64", "uint64", "float64", "complex128")

    @property
    def nbytes(self) -> int:
        """The size in bytes, with size 1 for open dimensions."""
        assert self.dtype is not None
        return math.prod(size for size in self.shape or () if isinstance(size, int)) * self.dtype.itemsize

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of an array without open dimensions."""
        sizes = tuple(size for size in self.shape or () if not isinstance(size, str))
        assert self.shape is not None
        assert len(sizes) == len(self.shape), f"{self} has open dimensions"
        return sizes

    @property
    def symbols(self) -> list[str]:
        """The names of the open dimensions."""
        return [size for size in self.shape or () if isinstance(size, str)]

    def sized(self, sizes: Mapping[str, Any]) -> Self:
        """Return the spec with these sizes of open dimensions."""
        if self.shape is None:
            return self
        shape = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in self.shape)
        return dataclasses.replace(self, shape=shape)

    def with_frames(self, frames: Any) -> Self:
        """Return the spec with this number of frames, if the array has a time axis."""
        if self.time_axis is None or self.shape is None:
            return self
        return dataclasses.replace(
            self, shape=tuple(frames if axis == self.time_axis else size for axis, size in enumerate(self.shape))
        )

    def batched(self, lead: Sequence[Any]) -> Self:
        """Return the spec with leading axes."""
        if self.shape is None or not lead:
            return self
        time_axis = None if self.time_axis is None else self.time_axis + len(lead)
        return dataclasses.replace(self, shape=(*lead, *self.shape), time_axis=time_axis)

    def struct(self) -> jax.ShapeDtypeStruct:
        """Return shape and dtype for ``jax.eval_shape`` and ``jax.export``; no dimension can be open."""
        assert self.dtype is not None
        return jax.ShapeDtypeStruct(self.sizes, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        dtype = None if self.dtype is None else self.dtype.name
        return fields | {"dtype": dtype, "shape": None if self.shape is None else list(self.shape)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the spec from the values of `to_json`."""
        dtype, shape = fields["dtype"], fields["shape"]
        return cls(
            **{
                **fields,
                "dtype": None if dtype is None else dtype_named(dtype),
                "shape": None if shape is None else tuple(shape),
            }
        )


def dtype_named(name: str) -> np.dtype:
    """Return the dtype of this name; names such as ``bfloat16`` are allowed."""
    return np.dtype(getattr(ml_dtypes, name, name))


def converted(spec: ArraySpec, value: Any) -> Any:
    """Return a value as a JAX array of the declared dtype.

    Python numbers and lists are converted if they keep their value. An array must have the declared dtype, but int32 is
    accepted as int64, because JAX narrows int64 to int32 without ``jax_enable_x64``. Other values raise InputError.
    """
    if spec.dtype is None or spec.is_text:
        raise InputError(
            f"{spec.as_input} is not an array of numbers: such a model runs with apply, or with step of one stream"
        )
    if not hasattr(value, "dtype"):
        return jnp.asarray(from_python(spec.as_input, spec.dtype, value))
    if isinstance(value, jax.ShapeDtypeStruct):
        raise InputError(f"{spec.as_input} got a ShapeDtypeStruct, which has no values; give an array")
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{spec.as_input} got a masked array; give its masked elements a value with .filled(value)")
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))  # JAX arrays are always in native byte order
    if value.dtype == spec.dtype:
        return jnp.asarray(value)
    if not hasattr(value.dtype, "name"):  # a tensor of PyTorch
        raise InputError(f"{spec.as_input} got {describe(value)}; convert it with numpy.asarray")
    if widens(value.dtype, spec.dtype):
        return jnp.asarray(value).astype(spec.dtype)
    if not isinstance(value, jax.Array) and value.dtype.kind in "iufc":
        array = jnp.asarray(value)  # narrower if JAX has no 64-bit dtypes
        if array.dtype == spec.dtype:
            if value.dtype.kind in "iu" and not np.array_equal(np.asarray(array), value):
                raise InputError(f"{spec.as_input} got {describe(value)} with values that do not fit {spec.dtype.name}")
            return array
    if spec.dtype == np.float64 and isinstance(value, jax.Array):
        fix = "float64 needs jax_enable_x64: call inside 'with jax.enable_x64(True):'"
    else:
        fix = f"convert it with .astype({spec.dtype.name!r})"
    raise InputError(f"{spec.as_input} got {describe(value)}; {fix}")


def taken(spec: ArraySpec, value: Any) -> Any:
    """Convert a value as `converted` does, but only copy NumPy arrays of the declared dtype.

    A conversion by JAX would compile a program. The copy is needed because on CPU JAX can read the memory of a NumPy
    array after the call.
    """
    if isinstance(value, np.ndarray) and not spec.is_text and value.dtype == spec.dtype:
        return value.copy()
    return converted(spec, value)


def from_python(label: str, dtype: np.dtype, value: Any) -> np.ndarray:
    """Convert Python numbers or nested lists; floats may round, integers must keep their value.

    ``label`` is the name in an InputError.
    """
    try:
        plain = np.asarray(value)
        if plain.dtype.kind == "c" and not jnp.issubdtype(dtype, jnp.complexfloating):
            raise TypeError(f"complex numbers do not fit the type {dtype.name}")
        array = plain.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{label} cannot be made from {type(value).__name__}: {error}") from error
    rounds = jnp.issubdtype(dtype, jnp.inexact) and plain.dtype.kind in "fc"
    if not rounds and not np.array_equal(array.astype(plain.dtype), plain):
        raise InputError(f"{label}: the value {value!r} does not fit the type {dtype.name}")
    return array


def bind(
    specs: Sequence[ArraySpec],
    arrays: Mapping[str, Any],
    *,
    convert: Callable[[ArraySpec, Any], Any] = converted,
    note: str = "",
    otherwise: str = "",
) -> dict[str, Any]:
    """Return arguments as arrays of the declared dtypes, in the order of the specs.

    ``convert`` converts a value to the declared dtype. ``note`` is a suffix for errors about shapes; ``otherwise`` is
    the suffix without a note, for an array that is not a batch of the described arrays. Raises InputError if an
    argument is missing or unknown, or does not fit.
    """
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


def check_names(specs: Sequence[ArraySpec], arrays: Any, what: str = "inputs") -> None:
    """Check that arrays come in a dict by the names of inputs; an InputError suggests the nearest name."""
    known = [spec.name for spec in specs]
    if not isinstance(arrays, Mapping):
        example = ", ".join(f"{name!r}: array" for name in known)
        raise InputError(f"{what} must be a dict of arrays by name, as {{{example}}}, not {describe(arrays)}")
    for name in arrays:
        if name not in known:
            listed = ", ".join(map(str, specs)) or "none"
            raise InputError(f"there is no input {name!r}{near(name, known)}; the inputs are: {listed}")


def _batch_note(spec: ArraySpec, value: Any) -> str:
    """Return a hint for errors about an array that is a batch of the described arrays, or an empty string."""
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
    return f"; {batch} is mapped by jax.vmap, or in steps begins with `init(batch=n)`"


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
            apart = f"; if the axes are not related, give `jaxrnn.load(path, dims={{'{where}_dim_{axis}': 'B'}})`"
            raise InputError(
                f"{spec.as_input} got {describe(value)}: dimension {expected!r} is {size} here, but {other} in "
                f"{where!r}{apart if where == spec.name else ''}"
            )
