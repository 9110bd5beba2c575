"""What every loss does first: find its arrays, put time in front, and leave out frames that do not exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import describe, near
from jaxrnn.errors import InputError

Arrays = Mapping[str, Any]
Loss = Callable[[Arrays, Arrays, Any], jax.Array]
"""A loss or a metric of one example: outputs by name, the example's arrays by name, and which frames exist."""
Output = str | Callable[[Arrays, Arrays], Any]
"""An output by name, or a function of the outputs and the example that computes what to judge from them."""
TimeAxis = int | Literal["auto"] | None
"""Which axis of an output is time: its number, None for none, "auto" for the only axis longer than 1."""


Options = ParamSpec("Options")


def named_by_call(make: Callable[Options, Loss]) -> Callable[Options, Loss]:
    """Make a function name the losses that it makes: ``mse(output='mask', target='clean')``.

    A checkpoint tells one loss from another by that.
    """
    signature = inspect.signature(make)

    @functools.wraps(make)
    def named(*args: Options.args, **options: Options.kwargs) -> Loss:
        loss = make(*args, **options)
        given = signature.bind(*args, **options).arguments
        written = (f"{name}={getattr(value, '__qualname__', repr(value))}" for name, value in given.items())
        loss.__qualname__ = f"{make.__name__}({', '.join(written)})"
        return loss

    return named


def comparison(
    judge: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    output: Output,
    target: str,
    *,
    times: str | None = None,
    time_axis: TimeAxis = "auto",
    parts_axis: int | None = None,
) -> Loss:
    """A loss or metric that compares an output with an array of the example, number by number.

    Args:
        judge: ``(estimate, reference, exists) -> scalar``, of arrays ``[time, ...]`` of one type, which are zero in
            frames that do not exist, and ``bool[time]``.
        output: the estimate.
        target: the reference, of the output's shape but for axes of size 1.
        times: an array of the example that the output is a mask for: the product is judged.
        time_axis: which axis of the output is time.
        parts_axis: an axis of size 2 of real arrays that holds the real and the imaginary part.
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
    """Real and imaginary parts along an axis as complex numbers, the axis kept with size 1."""
    if not -array.ndim <= axis < array.ndim or array.shape[axis] != 2 or jnp.iscomplexobj(array):
        raise InputError(f"parts_axis={axis}: {describe(array)} has no real parts of complex numbers there")
    real, imaginary = jnp.split(array, 2, axis)
    return jax.lax.complex(real, imaginary)


def read_output(outputs: Arrays, example: Arrays, output: Output) -> jax.Array:
    """What a loss judges: an output, or a function of outputs and example; in floats of at least 32 bits."""
    if callable(output):
        return wide(jnp.asarray(output(outputs, example)))
    return wide(jnp.asarray(_named(outputs, output, "the model gives no output")))


def read_target(example: Arrays, name: str) -> jax.Array:
    """An array of the example."""
    return jnp.asarray(_named(example, name, "the example has no array"))


def _named(arrays: Arrays, name: str, lacking: str) -> Any:
    if name not in arrays:
        raise InputError(f"{lacking} {name!r}{near(name, arrays)}; there are: {', '.join(map(str, arrays)) or 'none'}")
    return arrays[name]


def wide(array: jax.Array) -> jax.Array:
    """Floats of at least 32 bits, in which a loss is summed; integers and truth values become float32."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return array.astype(jnp.float32)
    return array.astype(_common(array.dtype, jnp.float32))


def of_one_type(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays in the type that holds all of their values."""
    dtype = functools.reduce(_common, (array.dtype for array in arrays))
    return tuple(array.astype(dtype) for array in arrays)


def _common(x: Any, y: Any) -> Any:
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(x, y)


def like(array: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """The array in a shape that differs from its own in axes of size 1 only.

    Raises:
        InputError: it differs in more.
    """
    if tuple(s for s in array.shape if s != 1) != tuple(s for s in shape if s != 1):
        raise InputError(
            f"{name!r} is {describe(array)}, but what it is compared with has the shape {list(shape)}: they may differ "
            "in axes of size 1 only"
        )
    return array.reshape(shape)


def frames_first(array: jax.Array, time_axis: TimeAxis, mask: Any) -> tuple[jax.Array, jax.Array]:
    """Time as the first axis, and which frames exist: ``[time, ...]`` and ``bool[time]``.

    A mask of another rate is converted to that of the array: a frame of a lower rate exists if all of its parts do.

    Args:
        array: any array.
        time_axis: which of its axes is time. Without one, the array is one frame, which exists.
        mask: ``bool[frames]``.

    Raises:
        InputError: there is no such axis, it must be named, or its frames are no multiple or part of the mask's.
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
    """The number of the time axis, counted from the front; None where there is none.

    Raises:
        InputError: there is no such axis, or several may be it.
    """
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
    """``[time, ...]`` with a harmless value in frames that do not exist: whatever is there, no gradient comes back."""
    return jnp.where(_columns(mask, array), array, jnp.asarray(value, array.dtype))


def masked_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of ``[time, ...]`` over frames that exist, and 0 where none does."""
    total = jnp.sum(present(values, mask))
    count = jnp.sum(mask, dtype=jnp.finfo(total.dtype).dtype) * (values.size // max(1, len(values)))
    return total / jnp.maximum(count, 1).astype(total.dtype)


def _columns(mask: jax.Array, array: jax.Array) -> jax.Array:
    return mask.reshape(-1, *(1,) * (array.ndim - 1))
