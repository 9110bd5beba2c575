"""Matrix products and convolutions, transposed and causal convolutions included."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrnn.cells.convolution import convolve
from jaxrnn.cells.forms import is_plain, product, product_operands
from jaxrnn.onnx.operators.arithmetic import broadcast_sizes, combined, of_one_type, shapes_of
from jaxrnn.onnx.operators.pooling import Pads, WindowAttributes, kernel_of
from jaxrnn.onnx.operators.types import rounded, wide_type
from jaxrnn.onnx.registry import Carries, Pair, Versions, bounded, inherits, since
from jaxrnn.onnx.values import Value, check_choice, traced

#: The activations of CausalConvWithState.
ACTIVATIONS = ("none", "silu", "swish")


def _operands(x: Value, w: Value, b: Value) -> tuple[jax.Array, jax.Array]:
    """Return input and weight, which must have one type (as must the bias) and one rank."""
    of_one_type(x, w, b)
    x, w = traced(x), traced(w)
    if w.ndim != x.ndim or x.ndim < 3:
        raise ValueError(f"input and weight must have equal ranks of at least 3, not {x.ndim} and {w.ndim}")
    return x, w


def _biased(y: jax.Array, b: Value) -> jax.Array:
    """Add a bias to each channel."""
    return y if b is None else combined(operator.add, y, traced(b).reshape((-1,) + (1,) * (y.ndim - 2)))


def _convolve(x, w, strides, pads: Pads, dilations, group: int, input_dilation=None, *, numbers=None):
    """Convolve in the layout ``numbers``, by default NCHW and OIHW."""
    # Low-precision operands need a low-precision result: JAX cannot transpose a convolution of two types. With one
    # filter for each channel, operands keep their type, as in depthwise convolutions.
    left, right = (x, w) if group > 1 and w.shape[1] == 1 else product_operands(x, w)
    spread = input_dilation or (1,) * len(pads)
    return convolve(left, right, strides, pads, spread, dilations, group, numbers=numbers).astype(x.dtype)


def _pointwise(x, w):
    """Convolve with a kernel of size 1: ``[B, C, ...], [M, C] -> [B, M, ...]``."""
    contracted = (((1,), (1,)), ((), ()))
    x_first = all(isinstance(size, int) and size == 1 for size in x.shape[2:])
    # In both orders the channels of the result are its first or last axis; choose the order that needs no copy.
    left, right = product_operands(x, w) if x_first else product_operands(w, x)
    y = lax.dot_general(left, right, contracted, preferred_element_type=x.dtype)
    return jnp.moveaxis(y, -1, 1) if x_first else jnp.moveaxis(y, 0, 1)


@inherits(WindowAttributes)
def conv(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    **geometry: Any,
) -> Value:
    """Conv."""
    x, w = _operands(x, w, b)
    if x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"{x.shape[1]} input channels do not fit a weight with {w.shape[1]} channels in a group, {group} groups "
            f"and {w.shape[0]} outputs"
        )
    windows = WindowAttributes(x.shape[2:], kernel_of(w, kernel_shape), **geometry)
    is_padded = any(low or high for low, high in windows.pads)
    is_pointwise = set(windows.kernel) == set(windows.strides) == {1} and group == 1 and not is_padded
    if is_pointwise and not is_plain():
        # A matrix product, because XLA would transpose the weight of such a convolution in each call.
        return _biased(_pointwise(x, w.reshape(w.shape[:2])), b)
    return _biased(_convolve(x, w, windows.strides, windows.pads, windows.dilations, group), b)


@inherits(WindowAttributes)
def conv_transpose(
    x: Value,
    w: Value,
    b: Value = None,
    *,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    **geometry: Any,
) -> Value:
    """ConvTranspose: a convolution of the dilated input with the flipped kernel."""
    x, w = _operands(x, w, b)
    if x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(
            f"{x.shape[1]} input channels do not fit a weight with {w.shape[0]} channels and {group} groups"
        )
    windows = WindowAttributes(x.shape[2:], kernel_of(w, kernel_shape), **geometry)
    rank, strides, reach = len(windows.kernel), windows.strides, windows.reach
    extra = tuple(output_padding) if output_padding else (0,) * rank
    full = [stride * (n - 1) + r for n, stride, r in zip(x.shape[2:], strides, reach, strict=True)]
    if output_shape or windows.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        target = tuple(output_shape)[-rank:] if output_shape else [n * s for n, s in zip(x.shape[2:], strides)]  # noqa: B905
        crop = windows.halves([length + e - size for length, e, size in zip(full, extra, target, strict=True)])
        if windows.auto_pad in ("NOTSET", ""):  # a larger output gets all its zeros at the end, as in ONNX Runtime
            crop = [(0, low + high) if isinstance(low, int) and low < 0 else (low, high) for low, high in crop]
    else:
        crop = windows.pads
    padding = [(r - 1 - low, r - 1 - high + e) for r, (low, high), e in zip(reach, crop, extra, strict=True)]
    # [C, M / group, k...] becomes [M, C / group, k...], flipped along the kernel's axes.
    spatial, numbers = tuple(range(2, w.ndim)), None
    if group == 1 and is_plain():
        whole = tuple(range(w.ndim))
        numbers = lax.ConvDimensionNumbers(whole, (1, 0, *spatial), whole)
    else:
        blocks = w.reshape((group, w.shape[0] // group, *w.shape[1:])).swapaxes(1, 2)
        w = blocks.reshape((math.prod(blocks.shape[:2]), *blocks.shape[2:]))
    flipped = jnp.flip(w, spatial)
    y = _convolve(x, flipped, (1,) * rank, padding, windows.dilations, group, strides, numbers=numbers)
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
    of_one_type(input, weight, bias, past_state)
    check_choice("activation", activation, ACTIVATIONS)
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
    y = _convolve(frames.astype(wide), w.astype(wide), (1,), [(0, 0)], (1,), x.shape[1])
    if bias is not None:
        if tuple(bias.shape) != (x.shape[1],):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, but ({x.shape[1]},) is expected")
        y = y + traced(bias).astype(wide)[:, None]
    if activation != "none":
        y = jax.nn.silu(rounded(y, x.dtype))
    state = lax.slice_in_dim(frames, x.shape[2], None, axis=2) if kept else jnp.zeros(shape, x.dtype)
    return [y.astype(x.dtype), state]


def _equal_in_conv(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    x, weight = shapes_of(operands)[:2]
    if x and weight and len(x) > 1 and len(weight) > 1:
        yield x[1], weight[1] * attributes.get("group", 1)


def _equal_in_conv_transpose(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    x, weight = shapes_of(operands)[:2]
    if x and weight and len(x) > 1:
        yield x[1], weight[0]


def matmul(a: Value, b: Value) -> Value:
    """MatMul, as numpy.matmul."""
    of_one_type(a, b)
    return product(traced(a), traced(b))


def gemm(
    a: Value, b: Value, c: Value = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """Gemm: alpha A' B' + beta C."""
    of_one_type(a, b, c)
    a, b = traced(a), traced(b)
    result = product(a.T if transA else a, b.T if transB else b)
    if alpha != 1.0:
        result = _scaled(result, alpha)
    if c is None:
        return result
    return combined(operator.add, result, traced(c) if beta == 1.0 else _scaled(traced(c), beta))


def _scaled(x, factor: float):
    if jnp.issubdtype(x.dtype, jnp.integer):
        return (x * np.float64(factor)).astype(x.dtype)
    return x * x.dtype.type(factor)


def einsum(*inputs: Value, equation: str) -> Value:
    """Einsum."""
    of_one_type(*inputs)
    arrays = [traced(value) for value in inputs]
    return jnp.einsum(equation.replace(" ", ""), *product_operands(*arrays), preferred_element_type=arrays[0].dtype)


def determinant(x: Value) -> Value:
    """Det of square matrices."""
    return jnp.linalg.det(traced(x))


def _equal_in_matmul(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    first, second = shapes_of(operands)[:2]
    if first and second:
        yield first[-1], second[max(0, len(second) - 2)]
        if len(first) > 2 and len(second) > 2:
            yield from broadcast_sizes([first[:-2], second[:-2]])


def _equal_in_gemm(attributes: Mapping[str, Any], operands: Sequence[Any], open_sizes: Any) -> Iterator[Pair]:
    first, second, third = [*shapes_of(operands), None][:3]
    if first and second and len(first) == len(second) == 2:
        a = first[::-1] if attributes.get("transA") else first
        b = second[::-1] if attributes.get("transB") else second
        yield a[1], b[0]
        if third is not None:
            yield from broadcast_sizes([(a[0], b[1]), third])


OPERATORS: dict[str, Versions] = {
    "CausalConvWithState": since(
        causal_convolution, 27, carries=Carries({"state": (3, 1)}, time_axis=2, weights=(1, 2), features=(1, 0))
    ),
    "Conv": since(conv, 1, 11, 22, equal_sizes=_equal_in_conv),
    "ConvTranspose": since(conv_transpose, 1, 11, 22, equal_sizes=_equal_in_conv_transpose),
    "Det": since(determinant, 11, 22),
    "Einsum": since(einsum, 12, 28),
    "Gemm": bounded(gemm, 7, 9, 11, 13, equal_sizes=_equal_in_gemm),
    "MatMul": since(matmul, 1, 9, 13, equal_sizes=_equal_in_matmul),
}
