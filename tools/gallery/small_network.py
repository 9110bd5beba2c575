"""A small network over time, plain JAX, that two entries of the gallery stream."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

#: Weights of a window over five frames, two of them ahead, and of a dilated one over three.
CENTRED = jnp.array([0.1, 0.2, 0.4, 0.2, 0.1])
DILATED = jnp.array([0.3, 0.3, 0.4])


def convolved(x: jax.Array) -> jax.Array:
    """Two convolutions, ``float32[time]`` to ``float32[time / 2]``, the second dilated and causal."""
    half = convolution(x, CENTRED, (2, 2), stride=2)
    return convolution(jnp.tanh(half), DILATED, (4, 0), dilation=2)


def recurrent(x: jax.Array) -> jax.Array:
    """Return the network followed by a recurrence with a carry that decays by a third in each frame."""
    return lax.scan(lambda h, frame: (0.67 * h + frame, 0.67 * h + frame), 0.0, convolved(x))[1]


def convolution(
    x: jax.Array, weights: jax.Array, pads: tuple[int, int], *, stride: int = 1, dilation: int = 1
) -> jax.Array:
    """Convolve ``float32[time]`` with ``float32[width]``."""
    result = lax.conv_general_dilated(
        x[None, :, None],
        weights[:, None, None],
        (stride,),
        (pads,),
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    return result[0, :, 0]
