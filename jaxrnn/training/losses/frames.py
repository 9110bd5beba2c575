"""Common parts of losses: find arrays, move time to the front, and ignore frames that do not exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import describe, near
from jaxrnn.errors import InputError
from jaxrnn.steps.specs import Arrays

Loss = Callable[[Arrays, Arrays, Any], jax.Array]
"""A loss or metric of an example: a function of the dict of outputs, the arrays of the example, and the mask."""
Output = str | Callable[[Arrays, Arrays], Any]
"""The name of an output, or a function of outputs and example that computes the array to judge."""
TimeAxis = int | Literal["auto"] | None
"""The time axis of an output: a number, None without a time axis, or "auto" for the only axis longer than 1."""


Options = ParamSpec("Options")


def named_by_call(make: Callable[Options, Loss]) -> Callable[Options, Loss]:
    """Name losses after the call, such as ``mse(output='mask', target='clean')``; checkpoints record the name."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def named(*args: Options.args, **options: Options.kwargs) -> Loss:
        loss = make(*args, **options)
        given = signature.bind(*args, **options).arguments
        written = (f"{name}={getattr(value, '__qualname__', repr(value))}" for name, value in given.items())
        loss.__qualname__ = f"{make.__name__}({', '.join(written)})"
        return loss

    return named


def weighted_sum(parts: Sequence[tuple[float, Loss]]) -> Loss:
    """Build the weighted sum of losses.

    Args:
        parts: Weights with losses, such as ``[(1, losses.si_sdr(...)), (0.5, losses.mse(...))]``.

    Raises:
        InputError: There is no loss, or a weight is not a finite number.
    """
    parts = list(parts)
    if not parts or not all(np.isfinite(weight) for weight, _ in parts):
        raise InputError(f"a sum needs losses with finite weights, not {[weight for weight, _ in parts]}")
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]

    def loss(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        return jnp.sum(jnp.stack([weight * part(outputs, example, mask) for weight, part in parts]))

    names = (f"{weight:g} * {getattr(part, '__qualname__', type(part).__name__)}" for weight, part in parts)
    loss.__qualname__ = " + ".join(names)
    return loss


def comparison(
    judge: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    output: Output,
    target: str,
    *,
    times: str | None = None,
    time_axis: TimeAxis = "auto",
    parts_axis: int | None = None,
) -> Loss:
    """Return a loss or metric that compares an output with an array of the example, element by element.

    ``judge(estimate, reference, exists)`` takes arrays ``[time, ...]`` of equal dtype, zero in missing frames, and
    ``bool[time]``. With ``times``, the output is a mask for that array of the example. With ``parts_axis``, an axis of
    size 2 of real arrays holds real and imaginary parts.
    """

    def compared(outputs: Arrays, example: Arrays, mask: jax.Array) -> jax.Array:
        estimate = read_output(outputs, example, output)
        others = [like(wide(read_target(example, name)), estimate.shape, name) for name in (target, times) if name]
        arrays = [estimate, *others]
        if parts_axis is not None:
            arrays = [_joined(array, parts_axis) for array in arrays]
        _, exists = frames_first(arrays[0], time_axis, mask)
        # Before they are multiplied: zero times NaN is NaN, in the gradient too.
        estimate, reference, *masked = of_one_type(
            *(present(frames_first(array, time_axis, mask)[0], exists) for array in arrays)
        )
        return judge(estimate * masked[0] if masked else estimate, reference, exists)

    return compared


def _joined(array: jax.Array, axis: int) -> jax.Array:
    if not -array.ndim <= axis < array.ndim or array.shape[axis] != 2 or jnp.iscomplexobj(array):
        raise InputError(f"parts_axis={axis}: {describe(array)} has no real parts of complex numbers there")
    real, imaginary = jnp.split(array, 2, axis)
    return jax.lax.complex(real, imaginary)


def read_output(outputs: Arrays, example: Arrays, output: Output) -> jax.Array:
    """Return the output to judge, in floats of at least 32 bits."""
    if callable(output):
        return wide(jnp.asarray(output(outputs, example)))
    return wide(jnp.asarray(_named(outputs, output, "the model gives no output")))


def read_target(example: Arrays, name: str) -> jax.Array:
    """Return an array of the example."""
    return jnp.asarray(_named(example, name, "the example has no array"))


def _named(arrays: Arrays, name: str, lacking: str) -> Any:
    if name not in arrays:
        raise InputError(f"{lacking} {name!r}{near(name, arrays)}; there are: {', '.join(map(str, arrays)) or 'none'}")
    return arrays[name]


def wide(array: jax.Array) -> jax.Array:
    """Cast to a float type of at least 32 bits, in which losses are summed."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.astype(jnp.float32)
    return array.astype(_common(array.dtype, jnp.float32))


def of_one_type(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Cast arrays to their common dtype."""
    dtype = functools.reduce(_common, (array.dtype for array in arrays))
    return tuple(array.astype(dtype) for array in arrays)


def _common(x: Any, y: Any) -> Any:
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(x, y)


def like(array: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """Reshape an array to a shape that differs only in axes of size 1, or raise an InputError."""
    if tuple(s for s in array.shape if s != 1) != tuple(s for s in shape if s != 1):
        raise InputError(
            f"{name!r} is {describe(array)}, but what it is compared with has the shape {list(shape)}: they may differ "
            "in axes of size 1 only"
        )
    return array.reshape(shape)


def frames_first(array: jax.Array, time_axis: TimeAxis, mask: Any) -> tuple[jax.Array, jax.Array]:
    """Return the array as ``[time, ...]``, and ``bool[time]`` for frames that exist.

    A mask of a different rate is converted: a frame of a lower rate exists if all its parts exist. Without a time axis,
    the array is one existing frame. An InputError reports a missing or ambiguous axis, or rates without a common
    multiple.
    """
    axis = find_time_axis(array, time_axis)
    if axis is None:
        return array[None], jnp.ones(1, bool)
    array, exists = jnp.moveaxis(array, axis, 0), jnp.asarray(mask, bool).reshape(-1)
    length, frames = len(array), len(exists)
    if length == frames:
        return array, exists
    if frames and length % frames == 0:
        return array, jnp.repeat(exists, length // frames, total_repeat_length=length)
    if length and frames % length == 0:
        return array, jnp.all(exists.reshape(length, -1), axis=1)
    raise InputError(
        f"{describe(array)} has {length} frames (its axis {axis}, put first), the mask {frames}: neither is a multiple "
        "of the other, so that it is not known which of them exist; check time_axis, or write a loss of your own"
    )


def find_time_axis(array: jax.Array, time_axis: TimeAxis) -> int | None:
    """Return the time axis counted from the front, or None; an InputError reports a missing or ambiguous axis."""
    if time_axis is None:
        return None
    if time_axis == "auto":
        longer = [axis for axis, size in enumerate(array.shape) if size != 1]
        if len(longer) > 1:
            raise InputError(
                f"which axis of {describe(array)} is time? Say it to the loss, such as time_axis={longer[0]}; "
                "time_axis=None where it has none"
            )
        return longer[0] if longer else None
    if not -array.ndim <= time_axis < array.ndim:
        raise InputError(f"time_axis={time_axis}: {describe(array)} has {array.ndim} axes")
    return time_axis % array.ndim


def present(array: jax.Array, mask: jax.Array, value: Any = 0) -> jax.Array:
    """Replace missing frames of ``[time, ...]`` by a harmless value, which also stops their gradient."""
    exists = mask.reshape(-1, *(1,) * (array.ndim - 1))
    return jnp.where(exists, array, jnp.asarray(value, array.dtype))


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean of ``[time, ...]`` over existing frames, or 0 without existing frames."""
    total = jnp.sum(present(values, mask))
    count = jnp.sum(mask, dtype=jnp.finfo(total.dtype).dtype) * (values.size // max(1, len(values)))
    return total / jnp.maximum(count, 1).astype(total.dtype)
