"""Convolution and transposed convolution, in any number of spatial dimensions, and a causal one with a state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells import depthwise, is_depthwise, product_operands
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.operators.rounding import rounded, wide_type
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced

Pads = list[tuple[Any, Any]]

#: The activations of CausalConvWithState.
ACTIVATIONS = ("none", "silu", "swish")


def window_pads(
    auto_pad: str,
    pads: Sequence[int] | None,
    sizes: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pads:
    """The padding before and after each spatial axis, from ``pads`` or by the rule that ``auto_pad`` names."""
    rank = len(kernel)
    if auto_pad in ("NOTSET", ""):
        flat = tuple(pads) if pads else (0,) * (2 * rank)
        if len(flat) != 2 * rank:
            raise ValueError(f"pads has {len(flat)} entries; two for each of the {rank} spatial axes are expected")
        return list(zip(flat[:rank], flat[rank:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not {auto_pad!r}")
    result: Pads = []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        needed = (-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size
        total = max(needed, 0)
        small = total // 2
        result.append((small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small))
    return result


def per_axis(values: Sequence[int] | None, rank: int, name: str) -> tuple[int, ...]:
    """An attribute with one entry for each spatial axis; ones where it is absent."""
    if not values:
        return (1,) * rank
    if len(values) != rank:
        raise ValueError(f"{name} has {len(values)} entries for {rank} spatial axes")
    return tuple(values)


def kernel_sizes(kernel_shape: Sequence[int] | None, w: Any) -> tuple[int, ...]:
    """The spatial sizes of a weight, which an attribute ``kernel_shape`` may repeat."""
    kernel = tuple(w.shape[2:])
    if kernel_shape and tuple(kernel_shape) != kernel:
        raise ValueError(f"kernel_shape {list(kernel_shape)} does not match the weight's {list(kernel)}")
    return kernel


def window_counts(
    sizes: Sequence[Any], padding: Pads, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Any, ...]:
    """How many windows lie on each spatial axis."""
    return tuple(
        (size + low + high - (length - 1) * dilation - 1) // stride + 1
        for size, (low, high), length, stride, dilation in zip(sizes, padding, kernel, strides, dilations, strict=True)
    )


def _operands(x: Value, w: Value, b: Value) -> tuple[jax.Array, jax.Array]:
    """Input and weight, which have one type (the bias too) and one rank."""
    alike(x, w, b)
    x, w = traced(x), traced(w)
    if w.ndim != x.ndim or x.ndim < 3:
        raise ValueError(f"input and weight must have one rank of at least 3, not {x.ndim} and {w.ndim}")
    return x, w


def _biased(y: jax.Array, b: Value) -> jax.Array:
    """The result with a bias for each channel."""
    return y if b is None else y + traced(b).reshape((-1,) + (1,) * (y.ndim - 2))


def convolve(x, w, strides, pads: Pads, dilations, group: int, input_dilation=None):
    """The convolution that all operators use, in NCHW and OIHW layout."""
    rank = x.ndim - 2
    if is_depthwise(x.shape, w.shape, group):
        return depthwise(x, w, strides, pads, input_dilation or (1,) * rank, dilations)
    spatial = "DHW"[-rank:] if rank <= 3 else "".join(map(str, range(rank)))
    # Low-precision operands give a low-precision result: JAX cannot transpose a convolution of two types.
    left, right = product_operands(x, w)
    return lax.conv_general_dilated(
        left,
        right,
        strides,
        pads,
        lhs_dilation=input_dilation,
        rhs_dilation=dilations,
        dimension_numbers=("NC" + spatial, "OI" + spatial, "NC" + spatial),
        feature_group_count=group,
    ).astype(x.dtype)


def _pointwise(x, w):
    """A convolution whose kernel has one element: ``[B, C, ...]`` and ``[M, C]`` give ``[B, M, ...]``."""
    contracted = (((1,), (1,)), ((), ()))
    x_first = math.prod(size for size in x.shape[2:] if size != 1) == 1
    # In either order the channels of the result are its first or last axis; choose the one that needs no copy.
    left, right = product_operands(x, w) if x_first else product_operands(w, x)
    y = lax.dot_general(left, right, contracted, preferred_element_type=x.dtype)
    return jnp.moveaxis(y, -1, 1) if x_first else jnp.moveaxis(y, 0, 1)


def conv(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """Conv."""
    x, w = _operands(x, w, b)
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"{x.shape[1]} input channels do not fit a weight for {w.shape[1]} a group, {group} groups and "
            f"{w.shape[0]} outputs"
        )
    kernel = kernel_sizes(kernel_shape, w)
    rank = len(kernel)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    padding = window_pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
    if set(kernel) == set(strides) == {1} and group == 1 and not any(low or high for low, high in padding):
        # A matrix product: XLA would transpose the weight of such a convolution in every call.
        y = _pointwise(x, w.reshape(w.shape[:2]))
    else:
        y = convolve(x, w, strides, padding, dilations, group)
    return _biased(y, b)


def conv_transpose(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """ConvTranspose: a convolution of the dilated input with the flipped kernel."""
    x, w = _operands(x, w, b)
    if x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(f"{x.shape[1]} input channels do not fit a weight for {w.shape[0]} and {group} groups")
    kernel = kernel_sizes(kernel_shape, w)
    rank = len(kernel)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    extra = tuple(output_padding) if output_padding else (0,) * rank
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    full = [stride * (n - 1) + r for n, stride, r in zip(x.shape[2:], strides, reach, strict=True)]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        target = tuple(output_shape)[-rank:] if output_shape else [n * s for n, s in zip(x.shape[2:], strides)]  # noqa: B905
        totals = [length + e - size for length, e, size in zip(full, extra, target, strict=True)]
        halves = [total // 2 for total in totals]
        crop = [(h, t - h) if auto_pad == "SAME_UPPER" else (t - h, h) for h, t in zip(halves, totals, strict=True)]
    else:
        crop = window_pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
    padding = [(r - 1 - low, r - 1 - high + e) for r, (low, high), e in zip(reach, crop, extra, strict=True)]
    # [C, M / group, k...] becomes [M, C / group, k...], flipped along the kernel's axes.
    blocks = w.reshape((group, w.shape[0] // group, *w.shape[1:])).swapaxes(1, 2)
    flipped = jnp.flip(blocks.reshape((math.prod(blocks.shape[:2]), *blocks.shape[2:])), tuple(range(2, w.ndim)))
    y = convolve(x, flipped, (1,) * rank, padding, dilations, group, input_dilation=strides)
    return _biased(y, b)


def causal_convolution(
    input: Value,
    weight: Value,
    bias: Value = None,
    past_state: Value = None,
    *,
    activation: str = "none",
) -> list[Value]:
    """CausalConvWithState: the output, and the last input frames as state. 16-bit products are summed in 32 bits."""
    alike(input, weight, bias, past_state)
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


OPERATORS = {
    "CausalConvWithState": since(causal_convolution, 27),
    "Conv": since(conv, 1, 11, 22),
    "ConvTranspose": since(conv_transpose, 1, 11, 22),
}
