"""Convolutions over time, transposed ones too."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.cells import by_platform, depthwise, is_depthwise
from jaxrnn.streaming.access import in_shape, out_shape
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.elementwise import refuse_final_values
from jaxrnn.streaming.rules.overlap import overlap_add, overlaps
from jaxrnn.streaming.rules.windows import Framed, Window, framed
from jaxrnn.streaming.values import Chunk

#: On CPUs, up to so many frames of output are a matrix product each. XLA takes up to sixteen times longer there for a
#: convolution over time alone, and it moves channels after all other axes and back for every other one.
PRODUCT = 4


def convolution(run: Pass, equation: JaxprEqn, x: Any, kernel: Any) -> Chunk | list[Chunk]:
    """Convolution over time, or over other axes with time among the batch."""
    refuse_final_values(run, [x, kernel])
    if isinstance(kernel, Chunk) or not isinstance(x, Chunk):
        run.refuse("its kernel changes with time", "use a kernel that does not depend on the streamed input")
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    if x.axis == numbers.lhs_spec[0] and parameters["batch_group_count"] == 1:
        return run.frame_by_frame(equation, x, kernel, axis=numbers.out_spec[0])
    if x.axis not in numbers.lhs_spec[2:]:
        run.refuse("time is its channel axis, so every output sees all of time", "convolve along time instead")
    place = numbers.lhs_spec[2:].index(x.axis)
    axis = numbers.out_spec[2 + place]
    low, high = parameters["padding"][place]
    window = Window(
        length=kernel.shape[numbers.rhs_spec[2 + place]],
        stride=int(parameters["window_strides"][place]),
        dilation=int(parameters["rhs_dilation"][place]),
        spacing=int(parameters["lhs_dilation"][place]),
        low=low,
    )
    size = out_shape(equation)[axis]
    alone = _is_over_time_alone(equation, place)
    if alone and overlaps(equation, x, window):
        return overlap_add(run, equation, x, kernel, window, high, place)
    part = framed(run, x, window, high, 0, size, "history")
    timeline = run.clock.timeline(size)
    frames = run.frames_of(timeline)
    padding = tuple(
        part.pads if index == place else (int(entry[0]), int(entry[1]))
        for index, entry in enumerate(parameters["padding"])
    )
    if window.spacing == 1 and frames <= PRODUCT and _is_plain_elsewhere(equation, place):

        def products(under: Any, taps: Any) -> Any:
            return _products(equation, dataclasses.replace(part, frames=under), taps, window, place, frames)

        def whole(under: Any, taps: Any) -> Any:
            return _convolution_with_taps(run, equation, jnp.moveaxis(under, 0, x.axis), taps, place, padding)

        # Both read the taps, so that a packed kernel is one array, in the order in which products take it.
        array = by_platform(products, whole, part.frames, _taps(equation, kernel, place))
    elif window.spacing > 1 and frames <= window.spacing and alone:
        # Each frame of output meets taps of its own: a convolution would multiply the others with zeros.
        array = _products(equation, part, _taps(equation, kernel, place), window, place, frames)
    else:
        array = _convolve(run, equation, jnp.moveaxis(part.frames, 0, x.axis), kernel, padding)
    return run.make(array, axis, timeline, part.delay, part.reach)


def _convolve(run: Pass, equation: JaxprEqn, x: Any, kernel: Any, padding: tuple[tuple[int, int], ...]) -> Any:
    """The equation's convolution of the frames at hand."""
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    plain, taps = jnp.transpose(x, numbers.lhs_spec), jnp.transpose(kernel, numbers.rhs_spec)
    if parameters["batch_group_count"] == 1 and is_depthwise(
        plain.shape, taps.shape, parameters["feature_group_count"]
    ):
        distances = parameters["window_strides"], padding, parameters["lhs_dilation"], parameters["rhs_dilation"]
        return jnp.transpose(depthwise(plain, taps, *distances), _inverse(numbers.out_spec))
    return run.bind(equation, [x, kernel], padding=padding)[0]


def _is_plain_elsewhere(equation: JaxprEqn, place: int) -> bool:
    """Whether a convolution, over axes other than time, has one group of channels, no pads and no input dilation."""
    parameters = equation.params
    others = [index for index in range(len(parameters["window_strides"])) if index != place]
    return (
        parameters["feature_group_count"] == parameters["batch_group_count"] == 1
        and all(parameters["lhs_dilation"][index] == 1 for index in others)
        and all(tuple(parameters["padding"][index]) == (0, 0) for index in others)
    )


def _is_over_time_alone(equation: JaxprEqn, place: int) -> bool:
    """Whether a convolution has windows over time only, in one group of channels."""
    kernel, strides = in_shape(equation, 1), equation.params["window_strides"]
    axes = equation.params["dimension_numbers"].rhs_spec[2:]
    return _is_plain_elsewhere(equation, place) and all(
        kernel[axis] == strides[index] == 1 for index, axis in enumerate(axes) if index != place
    )


def _order(equation: JaxprEqn, place: int) -> list[int]:
    """The spatial axes by number, time last."""
    return [*(index for index in range(len(equation.params["window_strides"])) if index != place), place]


def _taps(equation: JaxprEqn, kernel: Any, place: int) -> Any:
    """The kernel as ``[taps, channels, out]``, those of one place in time side by side."""
    spec = equation.params["dimension_numbers"].rhs_spec
    taps = jnp.transpose(kernel, (*(spec[2 + index] for index in _order(equation, place)), spec[1], spec[0]))
    return taps.reshape(-1, *taps.shape[-2:])


def _convolution_with_taps(run: Pass, equation: JaxprEqn, x: Any, taps: Any, place: int, padding: Any) -> Any:
    """The equation's convolution of the frames at hand, with its kernel as `_taps` gives it."""
    numbers, order = equation.params["dimension_numbers"], _order(equation, place)
    sizes = [in_shape(equation, 1)[numbers.rhs_spec[2 + index]] for index in order]
    rank = len(order)
    spec = (rank + 1, rank, *(order.index(index) for index in range(rank)))
    numbers = lax.ConvDimensionNumbers(numbers.lhs_spec, spec, numbers.out_spec)
    kernel = taps.reshape(*sizes, *taps.shape[1:])
    return run.bind(equation, [x, kernel], padding=padding, dimension_numbers=numbers)[0]


def _products(equation: JaxprEqn, part: Framed, taps: Any, window: Window, place: int, frames: int) -> Any:
    """The convolution as a matrix product for each frame of output: what lies under its window, and the taps."""
    numbers = equation.params["dimension_numbers"]
    time = numbers.lhs_spec[2 + place]
    channels = numbers.lhs_spec[1] + (numbers.lhs_spec[1] < time)
    elsewhere = _order(equation, place)[:-1]
    if window.spacing == 1:
        begins = [frame * window.stride for frame in range(frames)]
        under = [part.frames[begin : begin + window.extent + 1 : window.dilation] for begin in begins]
        under = [_under_windows(equation, frame, elsewhere) for frame in under]
        results = [_contract(taps, each, channels, equation) for each in under]
    else:
        met = [_met(part, window, index) for index in range(frames)]
        results = [_contract(taps[each], part.frames[those], channels, equation) for those, each in met]
    result = results[0][:, None] if frames == 1 else jnp.stack(results, 1)  # [out, frames, other axes...]
    # The other axes are the batch and those of the result, in the operand's order.
    others = [d for d in range(len(numbers.lhs_spec)) if d not in (time, numbers.lhs_spec[1])]
    places = [numbers.out_spec[numbers.lhs_spec.index(d)] for d in others]
    return jnp.transpose(result, _inverse([numbers.out_spec[1], numbers.out_spec[2 + place], *places]))


def _under_windows(equation: JaxprEqn, frames: Any, elsewhere: list[int]) -> Any:
    """What each tap of windows over axes other than time meets: ``[taps * time, ...]`` of ``[time, ...]``."""
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    axes = [numbers.lhs_spec[2 + index] for index in elsewhere]
    time = next(axis for index, axis in enumerate(numbers.lhs_spec[2:]) if index not in elsewhere)
    met = []
    for offsets in itertools.product(*(range(in_shape(equation, 1)[numbers.rhs_spec[2 + i]]) for i in elsewhere)):
        slices = [slice(None)] * frames.ndim
        for index, axis, offset in zip(elsewhere, axes, offsets, strict=True):
            begin, stride = offset * parameters["rhs_dilation"][index], parameters["window_strides"][index]
            count = out_shape(equation)[numbers.out_spec[2 + index]]
            slices[axis + (axis < time)] = slice(begin, begin + (count - 1) * stride + 1, stride)
        met.append(frames[tuple(slices)])
    return met[0] if len(met) == 1 else jnp.concatenate(met)


def _inverse(places: Sequence[int]) -> list[int]:
    return [list(places).index(axis) for axis in range(len(places))]


def _met(part: Framed, window: Window, index: int) -> tuple[slice, slice]:
    """Which frames an output of a transposed convolution sees, and with which taps.

    A frame that it does not see is no operand with a weight of zero: it may be infinite.
    """
    # Frame i meets the tap at (first + i * spacing) / dilation, if that is a whole number and there is such a tap.
    first, step = part.pads[0] - index * window.stride, window.dilation // math.gcd(window.dilation, window.spacing)
    places = [(i, first + i * window.spacing) for i in range(part.frames.shape[0])]
    met = [(i, at // window.dilation) for i, at in places if at % window.dilation == 0 and 0 <= at <= window.extent]
    if not met:
        return slice(0, 0), slice(0, 0)
    (frame, tap), (last_frame, last_tap) = met[0], met[-1]
    return slice(frame, last_frame + 1, step), slice(tap, last_tap + 1, step * window.spacing // window.dilation)


def _contract(taps: Any, x: Any, channels: int, equation: JaxprEqn) -> Any:
    """``[time, channels, more...] x [time, ..., channels, ...] -> [more..., ..., ...]``.

    With the taps first, frames of channels by frequency are read as they lie.
    """
    return lax.dot_general(
        taps,
        x,
        (((0, 1), (0, channels)), ((), ())),
        precision=equation.params["precision"],
        preferred_element_type=equation.params["preferred_element_type"],
    )


RULES: dict[str, Any] = {"conv_general_dilated": convolution}
