"""Convolutions over the time of frames ``[time, channels]``, as the tests of streams write them."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    pad: tuple[Any, Any],
    stride: int = 1,
    dilation: int = 1,
    spacing: int = 1,
    groups: int = 1,
) -> jax.Array:
    """A convolution with a kernel ``[time, in / groups, out]``.

    Args:
        x: ``[time, in]``.
        kernel: its taps.
        pad: frames in front and after the end.
        stride: of the windows.
        dilation: frames from one tap to the next.
        spacing: frames from one frame of the input to the next; the ones between are zeros.
        groups: of channels.
    """
    return lax.conv_general_dilated(
        x[None],
        kernel,
        (stride,),
        [pad],
        lhs_dilation=(spacing,),
        rhs_dilation=(dilation,),
        dimension_numbers=("NTC", "TIO", "NTC"),
        feature_group_count=groups,
    )[0]
