"""Rules for windows along time: convolution, transposed convolution and pooling.

Example: a convolution with a kernel of 5 frames, stride 2 and no padding, with a pulse of 4. Output frame j reads input
frames 2j to 2j + 4, so a step with input frames 4n to 4n + 3 completes output frames 2n - 2 and 2n - 1: the output has
a delay of 2 frames. Frame 2n - 2 reads input frames from 4n - 4 on, so the buffer keeps 4 past frames.

A convolution keeps past input frames in a buffer, or adds the contributions of past frames in advance (overlap-add). In
the second case, a step reads no past frame: the step multiplies the new frames by all taps at once, and the buffer
advances by an addition, which XLA's CPU backend does at memory speed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn._jax.context import unmapped
from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.forms import is_plain
from jaxrnn.jaxprs.equations import evaluate
from jaxrnn.jaxprs.primitives import entry_of
from jaxrnn.streaming.dimensions import UndecidedError, in_shape, is_symbolic, out_shape
from jaxrnn.streaming.interpreter import RULES
from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.reductions import within_frames
from jaxrnn.streaming.totals import identity_of
from jaxrnn.streaming.values import Chunk, Late, is_static


@dataclass(frozen=True)
class Window:
    """The geometry of a window along time, in the terms of ``lax.conv_general_dilated``.

    The operand is dilated by `spacing` and padded by `low` frames at the start. Output frame j reads `length` frames of
    this operand, from ``j * stride`` on, with a step of `dilation`.
    """

    length: int
    stride: int
    dilation: int
    spacing: int
    low: int

    @property
    def extent(self) -> int:
        """The distance between the first and the last frame of a window."""
        return (self.length - 1) * self.dilation


@dataclass(frozen=True)
class FramedWindows:
    """The frames under the windows of a pass, ready for a window operation with explicit padding."""

    frames: Any  # the operand; time is on axis `axis`, and the other axes keep their order
    axis: int  # the time axis
    pads: tuple[int, int]  # padding before and after, in frames of the dilated operand
    delay: int  # delay of the output
    reach: Any  # reach of the output


def check_pads(run: Pass, low: Any, high: Any) -> None:
    """Refuse padding before the stream that depends on the length; padding after the end may have any size."""
    if is_symbolic(low):
        why = f"its padding ({low} in front, {high} after) depends on the length of the stream"
        raise run.refusal(why, "pad by a fixed number of frames", UndecidedError)


def framed(run: Pass, x: Chunk, window: Window, high: Any, value: Any, size: Any) -> FramedWindows:
    """Return the frames under the windows of a pass, with past frames from a buffer.

    In the dilated and padded operand, input frame i is frame ``i * spacing + low``. A pass of q input frames has
    ``q * spacing / stride`` output frames. The last window must end at or before the last frame of the chunk.
    """
    x, _ = whole_frames(run, x, window, high, value, size)
    assert x.delay is not None
    spacing, low = window.spacing, int(window.low)
    delay = (x.delay * spacing - low + window.extent) // window.stride
    timeline = run.clock.timeline(size)
    delay = max(delay, timeline.certain)
    # Frames below are frames of the padded operand, relative to frame n * q * spacing in pass n.
    first = -delay * window.stride
    frames = run.frames_of(timeline)
    end = first + (frames - 1) * window.stride + window.extent + 1
    latest, earliest = (end - 1 - low) // spacing, -((low - first) // spacing)
    # The history does not depend on the pulse. With a short pulse, no frame of the buffer may be under a window.
    under, axis = run.windowed(x, -x.delay - earliest, "history")
    if latest < earliest:  # the windows lie before all frames
        one_frame = (*under.shape[:axis], 1, *under.shape[axis + 1 :])
        earliest, under = latest, jnp.zeros_like(under, shape=one_frame)
    else:
        under = lax.slice_in_dim(under, 0, latest - earliest + 1, axis=axis)
    pads = (earliest * spacing + low - first, end - 1 - low - latest * spacing)
    reach = x.reach and x.reach.under(timeline, window.length, window.stride, window.dilation, spacing, low)
    return FramedWindows(under, axis, pads, delay, reach)


def whole_frames(run: Pass, x: Chunk, window: Window, high: Any, value: Any, size: Any) -> tuple[Chunk, bool]:
    """Return a chunk that is ready for windows, and True if the windows are padded.

    If the windows are padded, frames that do not exist contain the padding value.
    """
    check_pads(run, window.low, high)
    if run.clock.timeline(size).per_unit * window.stride != x.timeline.per_unit * window.spacing:
        run.refuse(
            f"its result has {size} frames, but its windows advance at a rate that differs from this length",
            "use windows at a fixed stride, and cut off a fixed number of frames",
        )
    if x.outer != 1:
        run.refuse("its windows run over an axis that merges time with another axis", "split the axes first")
    x = run.spread(x)
    if x.late is not None:
        # Windows that read late frames must wait until these frames are known.
        lead, stride = window.extent - int(window.low), window.stride
        reader = lambda frame: max(0, -((lead - frame * window.spacing) // stride))  # noqa: E731
        least = x.late.least_delay(run.clock.timeline(size).per_unit, reader) * stride - lead
        x = run.delayed(x, -(-least // window.spacing))
    padded = window.low != 0 or high != 0 or window.spacing > 1
    return (run.fill(x, value) if padded else x), padded


@RULES.add("conv_general_dilated", takes=(Late,))
def convolution(run: Pass, equation: JaxprEqn, x: Any, kernel: Any) -> Chunk | list[Chunk]:
    """Stream a convolution over time, or over other axes with time as the batch axis."""
    run.refuse_final_values([x, kernel])
    if isinstance(kernel, Chunk) or not isinstance(x, Chunk):
        run.refuse("its kernel changes with time", "use a kernel that does not depend on the streamed input")
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    if x.axis == numbers.lhs_spec[0] and parameters["batch_group_count"] == 1:
        x = run.on_time(x)
        return run.same(x, convolved(run, equation, x.array, kernel, {}), numbers.out_spec[0])
    if x.axis not in numbers.lhs_spec[2:]:
        run.refuse("time is its channel axis, so every output depends on all frames", "convolve along time instead")
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
    if x.late is None and overlaps(equation, x, window, place):  # a sum cannot include late frames
        return overlap_add(run, equation, x, kernel, window, high, place)
    part = framed(run, x, window, high, 0, size)
    layout = [d for d in range(x.array.ndim) if d != x.axis]
    layout.insert(part.axis, x.axis)
    order = [layout.index(d) for d in range(x.array.ndim)]
    array = convolved(run, equation, part.frames, kernel, {place: part.pads}, order)
    return run.make(array, axis, run.clock.timeline(size), part.delay, part.reach)


def whole_convolution(run: Pass, equation: JaxprEqn, x: Chunk, others: Sequence[Any]) -> Chunk | None:
    """Stream a quantised convolution of ONNX as a single equation, so that an exported step contains the operator.

    Return None if the padding is not static, or if time is the axis of batches or channels.
    """
    params, rank = equation.params, x.array.ndim
    attributes, names = dict(params["attributes"]), list(inspect.signature(params["function"]).parameters)
    given = iter((None, *others))
    operands: dict[str, Any] = {
        name: next(given) for name, there in zip(names, params["present"], strict=False) if there
    }
    shape, zero = np.shape(operands["w"]), operands.get("x_zero_point")
    place, axes = x.axis - 2, rank - 2
    known = zero is None or (is_static(zero) and np.size(zero) == 1)
    if place < 0 or not known or attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = list(attributes.get("pads") or [0] * 2 * axes)
    window = Window(
        length=shape[x.axis],
        stride=(attributes.get("strides") or [1] * axes)[place],
        dilation=(attributes.get("dilations") or [1] * axes)[place],
        spacing=1,
        low=pads[place],
    )
    value = 0 if zero is None else np.asarray(zero).reshape(())
    size = out_shape(equation)[x.axis]
    part = framed(run, run.on_time(x), window, pads[place + axes], value, size)
    pads[place], pads[place + axes] = part.pads
    changed = tuple(sorted({**attributes, "pads": tuple(pads)}.items()))
    (array,) = run.bind(equation, [jnp.moveaxis(part.frames, part.axis, x.axis), *others], attributes=changed)
    return run.make(array, x.axis, run.clock.timeline(size), part.delay, part.reach)


#: Overlap-add pays for at least this many elements of past frames; concatenating fewer elements is almost free.
LARGE = 2048


def convolved(
    run: Pass, equation: JaxprEqn, x: Any, kernel: Any, pads: Mapping[int, tuple[int, int]], order: Sequence[int] = ()
) -> Any:
    """Apply the convolution of an equation to the frames of a pass.

    `pads` replaces the padding of some spatial axes, by number. `order` is the position of each operand axis in `x`, or
    empty if the axes are in order.
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
    """Return True if overlap-add is better for a convolution over time than a buffer of past frames.

    A transposed convolution always uses overlap-add. In plain forms, no other convolution does, because inference
    engines convolve faster. Elsewhere, a dense convolution with windows over only the time axis uses overlap-add if
    there are at most as many output channels as input channels and the history is large. The pulse has no influence,
    because the state is the same for all pulses.
    """
    if window.stride > 1 or x.outer > 1:
        return False
    if window.spacing > 1 or is_plain():
        return window.spacing > 1
    out, channels = (in_shape(equation, 1)[axis] for axis in equation.params["dimension_numbers"].rhs_spec[:2])
    alone = window.dilation == 1 and _is_over_time_alone(equation, place)
    return alone and out <= channels and window.extent * (x.array.size // x.array.shape[x.axis]) >= LARGE


def _is_over_time_alone(equation: JaxprEqn, place: int) -> bool:
    """Return True if a convolution has windows over time only, no padding on other axes, and one group of channels."""
    parameters, kernel = equation.params, in_shape(equation, 1)
    axes = parameters["dimension_numbers"].rhs_spec[2:]
    return parameters["feature_group_count"] == parameters["batch_group_count"] == 1 and all(
        kernel[axis] == parameters["window_strides"][index] == parameters["lhs_dilation"][index] == 1
        and tuple(parameters["padding"][index]) == (0, 0)
        for index, axis in enumerate(axes)
        if index != place
    )


def overlap_add(run: Pass, equation: JaxprEqn, x: Chunk, kernel: Any, window: Window, high: Any, place: int) -> Chunk:
    """Stream a convolution by overlap-add; the state contains partial sums of future output frames."""
    axis = equation.params["dimension_numbers"].out_spec[2 + place]
    extent, spacing = window.extent, window.spacing
    timeline = run.clock.timeline(out_shape(equation)[axis])
    x, padded = whole_frames(run, x, window, high, 0, timeline.size)
    assert x.delay is not None
    low = int(window.low)
    # All output frames to which the frames contribute, and at least all frames before the next pass.
    after = extent + max(spacing - 1 - extent, 0)
    parts = convolved(run, equation, x.array, kernel, {place: (extent, after)})
    time = axis if is_plain() else 0
    parts, ready = jnp.moveaxis(parts, axis, time), x.frames * spacing
    waiting = parts.shape[time] - ready
    if waiting > 0:
        shape = (*parts.shape[:time], waiting, *parts.shape[time + 1 :])
        value = 0 if padded else run.placeholder.of(parts.dtype)
        name, old = run.carry("sums", lambda: lax.full(shape, value, parts.dtype))
        if is_plain() and waiting <= ready:  # the completed frames take all partial sums
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
    """Add `old` to the first frames of `parts`."""
    if not is_plain():  # time is the first axis
        flat = parts.reshape(-1) + jnp.pad(old.reshape(-1), (0, parts.size - old.size))
        return flat.reshape(parts.shape)
    rest = parts.shape[axis] - old.shape[axis]
    return parts + (jnp.pad(old, [(0, rest if d == axis else 0) for d in range(parts.ndim)]) if rest else old)


@RULES.add(kind="window", takes=(Late,))
def pooling(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Stream pooling: a sum, a maximum, a minimum, or a different reduction over windows."""
    run.refuse_final_values(operands)
    count = len(equation.outvars)
    parameters, chunks, starts = equation.params, operands[:count], operands[count:]
    x = next(value for value in chunks if isinstance(value, Chunk))
    if count > 1 or any(isinstance(value, Chunk) for value in starts):
        run.refuse("it pools several operands, or starts from a value that changes with time", "pool one operand")
    axis = x.axis
    low, high = parameters["padding"][axis]
    ones = (1,) * x.array.ndim
    window = Window(
        length=int(parameters["window_dimensions"][axis]),
        stride=int(parameters["window_strides"][axis]),
        dilation=int((parameters.get("window_dilation") or ones)[axis]),
        spacing=int((parameters.get("base_dilation") or ones)[axis]),
        low=low,
    )
    size = out_shape(equation)[axis]
    value = starts[0] if starts else identity_of(entry_of(equation).monoid, x.array.dtype)
    if starts and not _may_repeat(equation, starts[0]):
        run.refuse("its windows start from a value that is not neutral", "start from the neutral value, 0 for a sum")
    if (window.length, window.stride, window.spacing, low) == (1, 1, 1, 0) and not is_symbolic(high) and high == 0:
        return run.frame_by_frame(equation, run.on_time(x), *starts)
    part = framed(run, x, window, high, value, size)
    padding = tuple(
        part.pads if index == axis else (int(entry[0]), int(entry[1]))
        for index, entry in enumerate(parameters["padding"])
    )
    (array,) = run.bind(equation, [jnp.moveaxis(part.frames, part.axis, axis), *starts], padding=padding)
    return [run.make(array, axis, run.clock.timeline(size), part.delay, part.reach)]


@RULES.add("select_and_scatter", "select_and_scatter_add", "select_and_gather_add")
def derivative_of_pooling(run: Pass, equation: JaxprEqn, *operands: Any) -> list[Chunk]:
    """Stream the derivative of pooling over other axes than time."""
    axis = next(value.axis for value in operands if isinstance(value, Chunk))
    each = [equation.params[key][axis] for key in ("window_dimensions", "window_strides", "padding")]
    if each != [1, 1, (0, 0)]:
        run.refuse(
            "it is the derivative of pooling over time, which writes to frames that are already known",
            "stream the function, and differentiate its run method",
        )
    return within_frames(run, equation, *operands)


def _may_repeat(equation: JaxprEqn, start: Any) -> bool:
    """Return True if a start value combined with itself is the same value, as for a neutral value."""
    if not is_static(start):
        return False
    with jax.ensure_compile_time_eval():
        start = jnp.asarray(start)
        (both,) = evaluate(ClosedJaxpr(equation.params["jaxpr"], equation.params["consts"]), [start, start])
        return np.array_equal(both, start)
