"""Overlap-add: a dense convolution over time that keeps what past frames give to later outputs, not the frames.

A step then reads no past frame: it multiplies the new one by all taps at once, and the buffer moves on by an addition,
which XLA's CPU backend does at the speed of memory. Sums are state, and so the same on all platforms.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.streaming.access import in_shape, out_shape
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.windows import Window, whole_frames
from jaxrnn.streaming.values import Chunk

#: Elements of past frames from which on sums pay: joining fewer of them to a pulse costs next to nothing.
LARGE = 2048


def overlaps(equation: JaxprEqn, x: Chunk, window: Window) -> bool:
    """Whether a convolution over time alone is better done by sums.

    It is if it is dense, has no more channels out than in, so that sums take no more room than frames, and its past is
    large. The pulse has no say in it, as one state serves every pulse.
    """
    numbers = equation.params["dimension_numbers"]
    out, channels = (in_shape(equation, 1)[axis] for axis in numbers.rhs_spec[:2])
    dense = window.stride == window.dilation == window.spacing == 1 and x.outer == 1
    return dense and out <= channels and window.extent * (x.array.size // x.array.shape[x.axis]) >= LARGE


def overlap_add(run: Pass, equation: JaxprEqn, x: Chunk, kernel: Any, window: Window, high: Any, place: int) -> Chunk:
    """The convolution, with the sums that later outputs begin with as its state."""
    numbers = equation.params["dimension_numbers"]
    axis, past, low = numbers.out_spec[2 + place], window.extent, int(window.low)
    timeline = run.clock.timeline(out_shape(equation)[axis])
    x, padded = whole_frames(run, x, window, high, 0, timeline.size)
    assert x.delay is not None
    if x.frames == 1:
        parts = _one_frame(equation, x.array, kernel, place)
    else:
        padding = list(equation.params["padding"])
        padding[place] = (past, past)
        (parts,) = run.bind(equation, [x.array, kernel], padding=tuple(padding))
        parts = jnp.moveaxis(parts, axis, 0)
    frame = parts.shape[1:]
    name, old = run.carry(
        "sums", lambda: jnp.full((past, *frame), 0 if padded else run.absent.of(parts.dtype), parts.dtype)
    )
    sums = parts.reshape(-1) + jnp.pad(old.reshape(-1), (0, parts.size - old.size))
    ready = parts.size - old.size
    run.store(name, sums[ready:].reshape(old.shape), x.timeline, x.delay)
    array = jnp.moveaxis(sums[:ready].reshape(x.frames, *frame), 0, axis)
    reach = x.reach and x.reach.shifted(-low / x.timeline.rate, (past - low) / x.timeline.rate)
    return run.make(array, axis, timeline, x.delay - low + past, reach)


def _one_frame(equation: JaxprEqn, frame: Any, kernel: Any, place: int) -> Any:
    """What one frame gives to the outputs from its own on, by one matrix product.

    Time is in front, the other axes of the result follow in their order.
    """
    numbers = equation.params["dimension_numbers"]
    time, channels = numbers.lhs_spec[2 + place], numbers.lhs_spec[1]
    taps = jnp.moveaxis(kernel, (numbers.rhs_spec[2 + place], *numbers.rhs_spec[:2]), (0, 1, 2))
    taps = taps.reshape(taps.shape[:3])[::-1]  # [time, out, channels]
    parts = lax.dot_general(
        taps,
        jnp.squeeze(frame, time),
        (((2,), (channels - (channels > time),)), ((), ())),
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )  # [time, out, other axes...]
    others = [axis for axis in range(len(numbers.lhs_spec)) if axis not in (time, channels)]
    axes = [numbers.out_spec[2 + place], numbers.out_spec[1]]
    axes += [numbers.out_spec[numbers.lhs_spec.index(axis)] for axis in others]
    in_order = jnp.transpose(parts, [axes.index(axis) for axis in range(len(axes))])
    return jnp.moveaxis(in_order, axes[0], 0)
