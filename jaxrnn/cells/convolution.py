"""Convolutions in the form that CPUs are fast with: as one matrix product, where it is no larger than it needs to be.

XLA has a fast kernel for some convolutions on CPUs: those of one group of channels, whose operand is not dilated, and
which are in no loop. The others, and derivatives of dilated ones, take up to fifty times as long as a product. Of few
frames alone, a product is mostly faster in any case; where many streams or frames are mapped over them, it is so if the
operand is dilated, or there is one window. Other platforms convolve, and so do plain forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn._jax.context import is_unmapped
from jaxrnn.cells.depthwise import depthwise, is_depthwise
from jaxrnn.cells.geometry import Windows, windows_of
from jaxrnn.cells.platforms import by_platform, is_plain
from jaxrnn.cells.window_products import WindowProduct

#: The elements of either side of the product of a dense convolution, at most.
ELEMENTS = 2**17

#: The same of one with groups or with a dilated operand: 64 MiB of float32.
MOST = 2**24

#: An operand is gathered in so many slices at most, as each is compiled.
SLICES = 64


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[Any, Any]],
    input_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    groups: int = 1,
    *,
    numbers: lax.ConvDimensionNumbers | None = None,
    precision: Any = None,
    dtype: Any = None,
) -> jax.Array:
    """``lax.conv_general_dilated``, in the form that is fast where all sizes are known.

    Args:
        x: ``[batch, channels, *spatial]``.
        kernel: ``[out, channels / groups, *spatial]``.
        strides: distance between windows.
        padding: before and after each axis of the dilated operand; negative entries crop.
        input_dilation: distance between the operand's elements, with zeros between them.
        kernel_dilation: distance between the kernel's taps.
        groups: of channels.
        numbers: the axes of the operand, the kernel and the result, if they come in another order.
        precision: of products.
        dtype: of the result; by default that of the operands. Low-precision products are summed in float32.

    Returns:
        ``[batch, out, *spatial]``.
    """
    rank = x.ndim
    numbers = numbers or lax.ConvDimensionNumbers(*[tuple(range(rank))] * 3)
    distances: Any = tuple(strides), tuple(padding), tuple(input_dilation), tuple(kernel_dilation)
    sizes = [x.shape[axis] for axis in numbers.lhs_spec]
    taps = [kernel.shape[axis] for axis in numbers.rhs_spec]
    if not is_plain() and dtype in (None, x.dtype) and is_depthwise(sizes, taps, groups):
        in_order = jnp.transpose(x, numbers.lhs_spec), jnp.transpose(kernel, numbers.rhs_spec)
        return jnp.transpose(depthwise(*in_order, *distances), _inverse(numbers.out_spec))

    def convolution(x: jax.Array, kernel: jax.Array, rhs_spec: Sequence[int]) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            kernel,
            *distances,
            dimension_numbers=lax.ConvDimensionNumbers(numbers.lhs_spec, tuple(rhs_spec), numbers.out_spec),
            feature_group_count=groups,
            precision=precision,
            preferred_element_type=dtype,
        )

    symbolic = any(not isinstance(size, int) for size in (*sizes, *taps, *itertools.chain(*distances[1])))
    if is_plain() or symbolic or not jnp.issubdtype(x.dtype, jnp.floating):
        return convolution(x, kernel, numbers.rhs_spec)
    product = _product(sizes, taps, windows_of(sizes[2:], taps[2:], *distances), groups)
    if product is None:
        return convolution(x, kernel, numbers.rhs_spec)
    order = product.kernel_order

    def products(x: jax.Array, taps: jax.Array) -> jax.Array:
        y = product(x, numbers.lhs_spec, taps, precision).astype(dtype or x.dtype)
        return jnp.transpose(y, _inverse(numbers.out_spec))

    def plain(x: jax.Array, taps: jax.Array) -> jax.Array:
        return convolution(x, taps, _inverse(order))

    # Both take the kernel in the order of the product, so that a packed one is one array, and no step reorders it.
    return by_platform(products, plain, x, jnp.transpose(kernel, [numbers.rhs_spec[axis] for axis in order]))


def _inverse(places: Sequence[int]) -> tuple[int, ...]:
    return tuple(places.index(axis) for axis in range(len(places)))


def _product(sizes: list[int], taps: list[int], windows: list[Windows], groups: int) -> WindowProduct | None:
    """The product that moves the fewest elements; None where a convolution is better."""
    if 0 in sizes or 0 in taps or any(each.count == 0 for each in windows):
        return None
    dilated = any(each.spacing > 1 for each in windows)
    if not (dilated or is_unmapped() or all(each.count == 1 for each in windows)):
        return None
    sides = [(True,) if each.spacing > 1 else (False, True) if each.taps > 1 else (False,) for each in windows]
    products = [
        WindowProduct(tuple(windows), scattered, sizes[0], sizes[1], taps[0], groups)
        for scattered in itertools.product(*sides)
    ]
    product = min(products, key=lambda product: product.cost)
    most = MOST if groups > 1 or dilated else ELEMENTS
    return product if product.slices <= SLICES and max(product.operand, product.results) <= most else None
