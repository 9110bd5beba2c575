"""Convolution and transposed convolution, in any number of spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxrnn.cells import depthwise, is_depthwise, product_operands
from jaxrnn.onnx.operators.arithmetic import alike
from jaxrnn.onnx.registry import since
from jaxrnn.onnx.values import Value, traced

Pads = list[tuple[Any, Any]]


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


def _kernel_sizes(kernel_shape: Sequence[int] | None, w: Any) -> tuple[int, ...]:
    kernel = tuple(w.shape[2:])
    if kernel_shape and tuple(kernel_shape) != kernel:
        raise ValueError(f"kernel_shape {list(kernel_shape)} does not match the weight's {list(kernel)}")
    return kernel


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
    alike(*(value for value in (x, w, b) if value is not None))
    x, w = traced(x), traced(w)
    if w.ndim != x.ndim or x.ndim < 3:
        raise ValueError(f"input and weight must have one rank of at least 3, not {x.ndim} and {w.ndim}")
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"{x.shape[1]} input channels do not fit a weight for {w.shape[1]} a group, {group} groups and "
            f"{w.shape[0]} outputs"
        )
    kernel = _kernel_sizes(kernel_shape, w)
    rank = len(kernel)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    padding = window_pads(auto_pad, pads, x.shape[2:], kernel, strides, dilations)
    if set(kernel) == set(strides) == {1} and group == 1 and not any(low or high for low, high in padding):
        # A matrix product: XLA would transpose the weight of such a convolution in every call.
        y = _pointwise(x, w.reshape(w.shape[:2]))
    else:
        y = convolve(x, w, strides, padding, dilations, group)
    return y if b is None else y + traced(b).reshape((-1,) + (1,) * rank)


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
    alike(*(value for value in (x, w, b) if value is not None))
    x, w = traced(x), traced(w)
    if w.ndim != x.ndim or x.ndim < 3:
        raise ValueError(f"input and weight must have one rank of at least 3, not {x.ndim} and {w.ndim}")
    if x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(f"{x.shape[1]} input channels do not fit a weight for {w.shape[0]} and {group} groups")
    kernel = _kernel_sizes(kernel_shape, w)
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
    return y if b is None else y + traced(b).reshape((-1,) + (1,) * rank)


OPERATORS = {
    "Conv": since(conv, 1, 11, 22),
    "ConvTranspose": since(conv_transpose, 1, 11, 22),
}
