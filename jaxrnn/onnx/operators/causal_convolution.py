"""CausalConvWithState: a causal depthwise convolution whose state is its last input frames."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.convolution import convolve
from jaxrnn.onnx.operators.rounding import rounded, wide_type
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced

ACTIVATIONS = ("none", "silu", "swish")


def causal_convolution(
    input: Value,
    weight: Value,
    bias: Value = None,
    past_state: Value = None,
    *,
    activation: str = "none",
) -> list[Value]:
    """CausalConvWithState: the output, and the last input frames as state. 16-bit products are summed in 32 bits."""
    alike(*(value for value in (input, weight, bias, past_state) if value is not None))
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    x, w = traced(input), traced(weight)
    if x.ndim != 3 or w.ndim != 3 or w.shape[:2] != (x.shape[1], 1) or w.shape[2] < 1:
        raise ValueError(
            f"input and weight must have the shapes [batch, channels, length] and [channels, 1, k], not {x.shape} and "
            f"{w.shape}"
        )
    kept = w.shape[2] - 1
    shape = (x.shape[0], x.shape[1], kept)
    if past_state is not None and tuple(past_state.shape) != shape:
        raise ValueError(f"past_state has shape {tuple(past_state.shape)}, but {shape} is expected")
    past = jnp.zeros(shape, x.dtype) if past_state is None else traced(past_state)
    frames = jnp.concatenate([past, x], 2) if kept else x
    wide = wide_type(x.dtype)
    y = convolve(frames.astype(wide), w.astype(wide), (1,), [(0, 0)], (1,), x.shape[1])
    if bias is not None:
        if tuple(bias.shape) != (x.shape[1],):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, but ({x.shape[1]},) is expected")
        y = y + traced(bias).astype(wide)[:, None]
    if activation != "none":
        y = jax.nn.silu(rounded(y, x.dtype))
    return [y.astype(x.dtype), lax.slice_in_dim(frames, x.shape[2], None, axis=2)]


OPERATORS = {"CausalConvWithState": since(causal_convolution, 27)}
