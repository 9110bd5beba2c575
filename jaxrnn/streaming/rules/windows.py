"""Windows over time: which frames a pass needs for them, and how they are padded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrnn.streaming.passes import Pass
from jaxrnn.streaming.rules.time import check_pads
from jaxrnn.streaming.values import Chunk


@dataclass(frozen=True)
class Window:
    """A window along time, in the terms of ``lax.conv_general_dilated``.

    The operand is spread by `spacing` and padded by `low` in front; output frame j sees `length` of its frames, from
    ``j * stride`` on, `dilation` apart.
    """

    length: int
    stride: int
    dilation: int
    spacing: int
    low: int

    @property
    def extent(self) -> int:
        """How far the window's last frame is from its first."""
        return (self.length - 1) * self.dilation


@dataclass(frozen=True)
class Framed:
    """The frames that a chunk of output needs, and how they are to be padded for a window without pads of its own.

    Attributes:
        frames: with time on the axis `axis`, the others in their order.
        axis: the axis of time.
        pads: positions without a frame in front and after, in the frames of the spread operand.
        delay, reach: those of the output.
    """

    frames: Any
    axis: int
    pads: tuple[int, int]
    delay: int
    reach: Any


def framed(run: Pass, x: Chunk, window: Window, high: Any, value: Any, size: Any, kind: str) -> Framed:
    """The frames under the windows of a pass, past ones from a buffer.

    In the frames of the spread and padded operand (``m = i * spacing + low`` for frame i), a pass of q frames in gives
    ``q * spacing / stride`` frames out, the last of which must see nothing after the last frame of the chunk.
    """
    x, padded = whole_frames(run, x, window, high, value, size)
    assert x.delay is not None
    spacing, low = window.spacing, int(window.low)
    delay = (x.delay * spacing - low + window.extent) // window.stride
    timeline = run.clock.timeline(size)
    delay = max(delay, timeline.certain)
    # All below in frames of the padded operand, from its frame n * q * spacing on, n being the pass.
    first = -delay * window.stride
    frames = run.frames_of(timeline)
    end = first + (frames - 1) * window.stride + window.extent + 1
    latest, earliest = (end - 1 - low) // spacing, -((low - first) // spacing)
    # The history is one of the function, whatever the pulse: that of a short one may have no frame under its windows.
    under, axis = run.windowed(x, -x.delay - earliest, kind, jnp.asarray(value, x.array.dtype) if padded else None)
    if latest < earliest:
        earliest, under = latest, jnp.zeros_like(under, shape=_with_size(under.shape, axis, 1))  # in front of them all
    else:
        under = lax.slice_in_dim(under, 0, latest - earliest + 1, axis=axis)
    pads = (earliest * spacing + low - first, end - 1 - low - latest * spacing)
    reach = x.reach and x.reach.under(timeline, window.length, window.stride, window.dilation, spacing, low)
    return Framed(under, axis, pads, delay, reach)


def _with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def whole_frames(run: Pass, x: Chunk, window: Window, high: Any, value: Any, size: Any) -> tuple[Chunk, bool]:
    """A chunk with frames of its own that windows may run over, and whether it is padded.

    It then has the value in every frame that does not exist.
    """
    check_pads(run, window.low, high)
    if run.clock.timeline(size).per_unit * window.stride != x.timeline.per_unit * window.spacing:
        run.refuse(
            f"its result has {size} frames, but its windows advance at another rate than this length grows",
            "use windows at a fixed stride, and cut off a fixed number of frames",
        )
    if x.outer != 1:
        run.refuse("its windows run over an axis that merges time with another axis", "split the axes first")
    x = run.spread(x)
    if x.late is not None:
        # Window 0 may see late frames, so it must not leave before these are known.
        assert x.delay is not None
        least = x.late.first_pass * run.clock.timeline(size).per_unit * window.stride - window.extent + int(window.low)
        x = run.delayed(x, max(x.delay, -(-least // window.spacing)))
    padded = window.low != 0 or high != 0 or window.spacing > 1
    return (run.fill(x, value) if padded else x), padded
