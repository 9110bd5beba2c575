"""Rules for matrix products (``MatMul``) and convolutions (``Conv``, ``ConvTranspose``, ``ConvInteger``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.cells.convolution import Windows, windows_of
from jaxrnn.export.lowering import RULES, Lowering
from jaxrnn.export.reshaping import cut, flip, pad, reshape, source_of, transpose
from jaxrnn.export.rules.elementwise import cast
from jaxrnn.export.rules.windows import gathered
from jaxrnn.export.small.convolutions import without_zeros
from jaxrnn.export.writer import Operand, Writer, constant_of, dtype_of, maker_of, shape_of
from jaxrnn.jaxprs.casts import kept
from jaxrnn.jaxprs.equations import free_axes, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom


@RULES.add("dot_general")
def contract(lowering: Lowering, equation: JaxprEqn, x: Operand, y: Operand) -> Operand:
    """Write ``[..., rows, contracted] @ [..., contracted, columns]``."""
    (contract_x, contract_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    dtype, types, writer = type_of(equation.outvars[0]), [dtype_of(x), dtype_of(y)], lowering.writer
    # Sums of floats in a type that lacks values of the operands are rounded once, at the end.
    rounds = any(jnp.issubdtype(each, jnp.floating) and not kept(each, dtype).all for each in types)
    wide = np.dtype(np.float64 if np.float64 in types else np.float32) if rounds else dtype
    rows, columns = free_axes(equation)
    batch = [shape_of(x)[axis] for axis in batch_x]
    inner = math.prod(shape_of(x)[axis] for axis in contract_x)
    of_rows, of_columns = ([shape_of(each)[axis] for axis in axes] for each, axes in ((x, rows), (y, columns)))
    x, y = (each if dtype_of(each) == wide else cast(lowering, each, wide) for each in (x, y))
    left = transpose(writer, x, (*batch_x, *rows, *contract_x))
    right = transpose(writer, y, (*batch_y, *contract_y, *columns))
    # MatMul treats further axes of rows as a batch if the other operand has no batch.
    front = [*batch, *(of_rows if not batch and of_rows else [math.prod(of_rows)])]
    left = reshape(writer, left, (*front, inner))
    right = reshape(writer, right, (*batch, inner, math.prod(of_columns)))
    product = writer.node("MatMul", left, right, shape=(*front, math.prod(of_columns)), dtype=wide)
    product = product if wide == dtype else cast(lowering, product, dtype)
    return reshape(writer, product, shape_of_atom(equation.outvars[0]))


#: The types of convolutions in engines.
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32))
#: The types that `ConvInteger` multiplies.
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


@RULES.add("conv_general_dilated")
def convolve(lowering: Lowering, equation: JaxprEqn, x: Operand, kernel: Operand) -> Operand:
    """Write a convolution with channels first."""
    params, writer, dtype = equation.params, lowering.writer, np.dtype(type_of(equation.outvars[0]))
    types = dtype_of(x), dtype_of(kernel)
    program = without_zeros(equation, transposes=_wide(*types, dtype) in _FLOATS)
    if program is not None:
        return lowering.evaluate(program, [x, kernel])[0]
    numbers, groups = params["dimension_numbers"], params["feature_group_count"]
    x, kernel = transpose(writer, x, numbers.lhs_spec), transpose(writer, kernel, numbers.rhs_spec)
    windows = windows_of(
        shape_of(x)[2:],
        shape_of(kernel)[2:],
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
    )
    y = _convolution(lowering, x, kernel, windows, groups, dtype)
    result = shape_of_atom(equation.outvars[0])
    y = reshape(writer, y, [result[axis] for axis in numbers.out_spec])
    return transpose(writer, y, [numbers.out_spec.index(axis) for axis in range(len(result))])


def _convolution(
    lowering: Lowering, x: Operand, kernel: Operand, windows: Sequence[Windows], groups: int, dtype: np.dtype
) -> Operand:
    """Write ``[batch, channels, ...]`` with ``[out, channels / groups, ...]`` for these types and windows."""
    types, spread = (dtype_of(x), dtype_of(kernel)), any(each.spacing > 1 for each in windows)
    x, windows = _with_pad(x, windows)
    if dtype == np.int32 and all(each in _BYTES for each in types) and not spread:
        return _conv(lowering.writer, "ConvInteger", x, kernel, windows, groups, dtype)
    wide = _wide(*types, dtype)
    x, kernel = cast(lowering, x, wide), cast(lowering, kernel, wide)
    if wide not in _FLOATS:
        (y,) = lowering.trace(lambda x, kernel: _window_product(x, kernel, windows, groups), x, kernel)
    elif spread:
        y = _conv_transpose(lowering.writer, x, kernel, windows, groups)
    else:
        y = _conv(lowering.writer, "Conv", x, kernel, windows, groups, wide)
    return cast(lowering, y, dtype)


def _wide(*types: np.dtype) -> np.dtype:
    """Return the dtype that products are computed in: a dtype with kernels that represents these dtypes.

    Integer sums that overflow are correct after the cast back.
    """
    wide = max(types, key=lambda each: each.itemsize)
    if wide.kind in "iu":
        return wide if wide.itemsize >= 4 else np.dtype(np.int32)
    return wide if wide in (*_FLOATS, np.dtype(np.float64)) else np.dtype(np.float32)


def _with_pad(x: Operand, windows: Sequence[Windows]) -> tuple[Operand, list[Windows]]:
    """Merge a ``Pad`` with zeros into the windows."""
    node = maker_of(x, "Pad")
    if node is None or "mode" in node.attributes:
        return x, list(windows)
    source, widths, value = source_of(node), constant_of(node.inputs[1]), constant_of(node.inputs[2])
    if widths is None or value is None or value != 0:
        return x, list(windows)
    lows, highs = widths.reshape(2, -1).tolist()
    if any((*lows[:2], *highs[:2])):
        return x, list(windows)
    merged = [
        replace(each, size=size, low=each.low + low * each.spacing, high=each.high + high * each.spacing)
        for each, size, low, high in zip(windows, shape_of(source)[2:], lows[2:], highs[2:], strict=True)
    ]
    return (source, merged) if all(shape_of(source)) else (x, list(windows))


def _window_product(x: Any, kernel: Any, windows: Sequence[Windows], groups: int) -> Any:
    """Convolve ``[batch, channels, ...]`` as a single product of the elements under windows."""
    rank, (batch, _, *_), (out, channels, *taps) = len(windows), x.shape, kernel.shape
    x = gathered(x, {axis + 2: each for axis, each in enumerate(windows)}, 0)
    x = x.reshape(batch, groups, channels, *x.shape[2:])  # and windows, taps, windows, taps, ...
    contracted = (2, *range(3, 3 + rank)), (2, *range(4, 4 + 2 * rank, 2))
    kernel = kernel.reshape(groups, out // groups, channels, *taps)
    y = lax.dot_general(kernel, x, (contracted, ((0,), (1,))))
    return jnp.swapaxes(y.reshape(out, batch, *y.shape[3:]), 0, 1)


def _conv(
    writer: Writer, operator: str, x: Operand, kernel: Operand, windows: Sequence[Windows], groups: int, dtype: np.dtype
) -> Operand:
    """Write a convolution; negative padding becomes a ``Slice``."""
    low, high = [each.low for each in windows], [each.high for each in windows]
    starts = [0, 0, *(max(-before, 0) for before in low)]
    ends = [*shape_of(x)[:2], *(size - max(-after, 0) for size, after in zip(shape_of(x)[2:], high, strict=True))]
    shape = (shape_of(x)[0], shape_of(kernel)[0], *(each.count for each in windows))
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        return np.zeros(shape, dtype)
    return writer.node(
        operator,
        cut(writer, x, starts, ends),
        kernel,
        shape=shape,
        dtype=dtype,
        kernel_shape=[each.taps for each in windows],
        strides=[each.stride for each in windows],
        dilations=[each.dilation for each in windows],
        pads=[max(width, 0) for width in (*low, *high)],
        group=groups,
    )


def _conv_transpose(writer: Writer, x: Operand, kernel: Operand, windows: Sequence[Windows], groups: int) -> Operand:
    """Write ``ConvTranspose``: each element times the kernel, summed at overlaps.

    The operator computes windows at all places. Strides become a ``Slice`` of the result; windows beyond all elements
    are zeros.
    """
    batch, out, dtype = shape_of(x)[0], shape_of(kernel)[0], dtype_of(x)
    every = [replace(each, stride=1) for each in windows]
    crops = [(each.extent - each.low, each.extent - each.high) for each in every]
    widths = [(max(-low, 0), max(-high, 0)) for low, high in crops]
    counts = [each.count - sum(width) for each, width in zip(every, widths, strict=True)]
    if min(counts) <= 0:
        return np.zeros((batch, out, *(each.count for each in windows)), dtype)
    # Missing elements at the end are output_padding if the operator allows that.
    own = all(high < each.spacing for each, (_, high) in zip(every, widths, strict=True))
    after = [high if own else 0 for _, high in widths]
    y = writer.node(
        "ConvTranspose",
        x,
        _transposed_kernel(writer, kernel, groups),
        shape=(batch, out, *(count + more for count, more in zip(counts, after, strict=True))),
        dtype=dtype,
        kernel_shape=[each.taps for each in windows],
        strides=[each.spacing for each in windows],
        dilations=[each.dilation for each in windows],
        pads=[*(max(low, 0) for low, _ in crops), *(max(high, 0) for _, high in crops)],
        output_padding=after if any(after) else None,
        group=groups,
    )
    rest = [(low, high - more) for (low, high), more in zip(widths, after, strict=True)]
    y = pad(writer, y, [(0, 0), (0, 0), *rest], np.zeros((), dtype))
    return cut(writer, y, [0] * (2 + len(every)), shape_of(y), [1, 1, *(each.stride for each in windows)])


def _transposed_kernel(writer: Writer, kernel: Operand, groups: int) -> Operand:
    """Return ``[out, channels / groups, ...]`` as ``[channels, out / groups, ...]`` with reversed taps."""
    out, channels, *taps = shape_of(kernel)
    kernel = reshape(writer, kernel, (groups, out // groups, channels, *taps))
    kernel = transpose(writer, kernel, (0, 2, 1, *range(3, 3 + len(taps))))
    kernel = reshape(writer, kernel, (groups * channels, out // groups, *taps))
    return flip(writer, kernel, range(2, 2 + len(taps)))
