"""Overlap-add: a convolution over time that keeps what past frames give to later outputs, not the frames.

A step then reads no past frame: it multiplies the new one by all taps at once, and the buffer moves on by an addition,
which XLA's CPU backend does at the speed of memory. Sums are state, and so the same on all platforms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn._jax.context import unmapped
from jaxrnn.cells import convolve, is_plain
from jaxrnn.streaming.access import in_shape, out_shape
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.windows import Window, whole_frames
from jaxrnn.streaming.values import Chunk

#: Elements of past frames from which on sums pay: joining fewer of them to a pulse costs next to nothing.
LARGE = 2048


def convolved(
    run: Pass, equation: JaxprEqn, x: Any, kernel: Any, pads: Mapping[int, tuple[int, int]], order: Sequence[int] = ()
) -> Any:
    """An equation's convolution of the frames at hand.

    Args:
        run: the pass.
        equation: the equation.
        x: frames.
        kernel: that of the equation.
        pads: other ones, for some of the spatial axes by number.
        order: where the operand's axes are in x, if not in their order.
    """
    parameters = equation.params
    padding = tuple(pads.get(index, pair) for index, pair in enumerate(parameters["padding"]))
    numbers = parameters["dimension_numbers"]
    if order:
        numbers = numbers._replace(lhs_spec=tuple(order[axis] for axis in numbers.lhs_spec))
    if parameters["batch_group_count"] > 1:
        return run.bind(equation, [x, kernel], padding=padding, dimension_numbers=numbers)[0]
    with unmapped():
        return convolve(
            x,
            kernel,
            parameters["window_strides"],
            padding,
            parameters["lhs_dilation"],
            parameters["rhs_dilation"],
            parameters["feature_group_count"],
            numbers=numbers,
            precision=parameters["precision"],
            dtype=parameters["preferred_element_type"],
        )


def overlaps(equation: JaxprEqn, x: Chunk, window: Window, place: int) -> bool:
    """Whether a convolution over time is better done by sums.

    A transposed one is. In plain forms no other is: engines convolve. Otherwise another one is if it is dense and over
    time alone, has no more channels out than in, so that sums take no more room than frames, and its past is large. The
    pulse has no say in it, as one state serves every pulse.
    """
    if window.stride > 1 or x.outer > 1:
        return False
    if window.spacing > 1 or is_plain():
        return window.spacing > 1
    out, channels = (in_shape(equation, 1)[axis] for axis in equation.params["dimension_numbers"].rhs_spec[:2])
    alone = window.dilation == 1 and _is_over_time_alone(equation, place)
    return alone and out <= channels and window.extent * (x.array.size // x.array.shape[x.axis]) >= LARGE


def _is_over_time_alone(equation: JaxprEqn, place: int) -> bool:
    """Whether a convolution has windows over time only, without pads elsewhere, in one group of channels."""
    parameters, kernel = equation.params, in_shape(equation, 1)
    axes = parameters["dimension_numbers"].rhs_spec[2:]
    return parameters["feature_group_count"] == parameters["batch_group_count"] == 1 and all(
        kernel[axis] == parameters["window_strides"][index] == parameters["lhs_dilation"][index] == 1
        and tuple(parameters["padding"][index]) == (0, 0)
        for index, axis in enumerate(axes)
        if index != place
    )


def overlap_add(run: Pass, equation: JaxprEqn, x: Chunk, kernel: Any, window: Window, high: Any, place: int) -> Chunk:
    """The convolution, with the sums that later outputs begin with as its state."""
    axis = equation.params["dimension_numbers"].out_spec[2 + place]
    extent, spacing = window.extent, window.spacing
    timeline = run.clock.timeline(out_shape(equation)[axis])
    x, padded = whole_frames(run, x, window, high, 0, timeline.size)
    assert x.delay is not None
    low = int(window.low)
    # All outputs that the frames at hand have a part in; at least those before the next frame's first.
    after = extent + max(spacing - 1 - extent, 0)
    parts = convolved(run, equation, x.array, kernel, {place: (extent, after)})
    time = axis if is_plain() else 0
    parts, ready = jnp.moveaxis(parts, axis, time), x.frames * spacing
    waiting = parts.shape[time] - ready
    if waiting > 0:
        shape = (*parts.shape[:time], waiting, *parts.shape[time + 1 :])
        value = 0 if padded else run.absent.of(parts.dtype)
        name, old = run.carry("sums", lambda: lax.full(shape, value, parts.dtype))
        if is_plain() and waiting <= ready:  # what is ready takes all of them
            later = lax.slice_in_dim(parts, ready, None, axis=time)
            parts = _sum_in_front(lax.slice_in_dim(parts, 0, ready, axis=time), old, time)
        else:
            parts = _sum_in_front(parts, old, time)
            later = lax.slice_in_dim(parts, ready, None, axis=time)
        run.store(name, later, x.timeline, x.delay)
    reach = x.reach and x.reach.under(timeline, window.length, window.stride, window.dilation, spacing, low)
    done = jnp.moveaxis(lax.slice_in_dim(parts, 0, ready, axis=time), time, axis)
    return run.make(done, axis, timeline, x.delay * spacing - low + extent, reach)


def _sum_in_front(parts: Any, old: Any, axis: int) -> Any:
    """Parts with others added to their first frames."""
    if not is_plain():  # time is in front
        flat = parts.reshape(-1) + jnp.pad(old.reshape(-1), (0, parts.size - old.size))
        return flat.reshape(parts.shape)
    rest = parts.shape[axis] - old.shape[axis]
    return parts + (jnp.pad(old, [(0, rest if d == axis else 0) for d in range(parts.ndim)]) if rest else old)
