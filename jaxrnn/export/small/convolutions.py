"""Convolutions without zeros: taps, elements and windows that meet nothing are left out, and taps become channels.

An engine multiplies the zeros of padding, and without an operator for transposed convolutions the zeros between
elements. A transposed convolution of a frame would be a convolution over hundreds of rows of which one is not zero.
Instead, each element is multiplied by the kernel, which is a product of a vector and a matrix, and the products of
several elements are shifted and summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn

from jaxrnn.cells.convolution import Windows, overlap_add, windows_of
from jaxrnn.jaxprs.equations import shape_of, trace, type_of

#: A convolution is rewritten if it multiplies this many times as often as the rewritten form.
_WASTE = 1.25

#: The most pairs of windows and taps that are compared. A larger convolution keeps all of them.
_PAIRS = 2**22


@dataclass(frozen=True)
class _Met:
    """The elements, taps and windows along an axis that meet others, and the windows of these elements and taps."""

    elements: range
    taps: range
    places: range
    windows: Windows

    @classmethod
    def of(cls, given: Windows) -> _Met | None:
        """Leave out what meets nothing; return None if nothing meets."""
        whole = cls(range(given.size), range(given.taps), range(given.count), given)
        if given.count * given.taps > _PAIRS:
            return whole
        at = np.arange(given.count)[:, None] * given.stride + np.arange(given.taps) * given.dilation - given.low
        element, between = np.divmod(at, given.spacing)
        window, tap = np.nonzero((between == 0) & (element >= 0) & (element < given.size))
        if not window.size:
            return None
        elements, taps, places = _range_of(element[window, tap]), _range_of(tap), _range_of(window)
        low = given.low - places.start * given.stride - taps.start * given.dilation + elements.start * given.spacing
        distances = [
            step * each.step if len(each) > 1 else 0
            for step, each in ((given.stride, places), (given.spacing, elements), (given.dilation, taps))
        ]
        unit = math.gcd(*distances, low) or 1
        stride, spacing, dilation = (max(each // unit, 1) for each in distances)
        last = (len(places) - 1) * stride + (len(taps) - 1) * dilation
        high = last - (len(elements) - 1) * spacing - low // unit
        return cls(
            elements,
            taps,
            places,
            Windows(len(elements), len(taps), stride, low // unit, high, spacing, dilation),
        )

    @property
    def scatters(self) -> bool:
        """Return True if each element times all taps is less than each window times all taps, or the only way."""
        return self.windows.spacing > 1 or self.windows.size < self.windows.count

    def cost(self, by_element: bool) -> int:
        """Return the multiplications along the axis: of each element, or of each window, with all taps."""
        return self.windows.taps * (self.windows.size if by_element else self.windows.count)


def _range_of(numbers: np.ndarray) -> range:
    """Return the shortest range that has these numbers."""
    found = np.unique(numbers)
    step = int(np.gcd.reduce(np.diff(found))) if found.size > 1 else 1
    return range(int(found[0]), int(found[-1]) + 1, step)


def without_zeros(equation: JaxprEqn, *, transposes: bool) -> ClosedJaxpr | None:
    """Return a convolution as a program that multiplies fewer zeros, or None if the convolution multiplies few.

    Args:
        equation: a ``conv_general_dilated``. The program has convolutions with one group of batches and at least
            one spatial axis, and unless ``transposes`` of undilated operands.
        transposes: True if the engine has transposed convolutions, which multiply no zeros between elements.
    """
    params, numbers = equation.params, equation.params["dimension_numbers"]
    structs = [jax.ShapeDtypeStruct(shape_of(each), type_of(each)) for each in equation.invars]
    shape = shape_of(equation.outvars[0])
    sizes, taps = ([struct.shape[axis] for axis in spec[2:]] for struct, spec in zip(structs, numbers, strict=False))
    distances = [params[each] for each in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")]
    given = windows_of(sizes, taps, *distances)
    spaced = any(each.spacing > 1 for each in given)
    kept = bool(given) and params["batch_group_count"] == 1 and (transposes or not spaced)
    is_empty = 0 in (*shape, *structs[0].shape, *structs[1].shape)
    axes = [] if is_empty else [_Met.of(each) for each in given]
    if is_empty or any(each is None for each in axes):
        return trace(lambda x, kernel: jnp.zeros(shape, type_of(equation.outvars[0])), *structs)[0]
    met = [each for each in axes if each is not None]
    moved = [axis for axis, each in enumerate(met) if each.scatters]
    is_product = bool(moved) and all(each.windows.size == 1 for each in met)
    if transposes and spaced and not is_product:
        moved = []  # one operator, of fewer taps
    by_element = [spaced if not moved else axis in moved for axis in range(len(met))]
    best = math.prod(each.cost(side) for each, side in zip(met, by_element, strict=True))
    own = math.prod((each.size if spaced else each.count) * each.taps for each in given)
    if kept and not is_product and own <= _WASTE * best:
        return None
    return trace(lambda x, kernel: _convolved(equation, met, moved, x, kernel), *structs)[0]


def _convolved(equation: JaxprEqn, met: Sequence[_Met], moved: Sequence[int], x: Any, kernel: Any) -> Any:
    """Convolve with the taps of some axes as channels, and sum at overlaps."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    dtype, groups = np.dtype(type_of(equation.outvars[0])), params["feature_group_count"]
    # Sums of several products of low precision are rounded once, at the end.
    x, kernel = (each.astype(_wide(each.dtype)) for each in (x, kernel))
    wide = _wide(dtype)
    x, kernel = jnp.transpose(x, numbers.lhs_spec), jnp.transpose(kernel, numbers.rhs_spec)
    if params["batch_group_count"] > 1:  # groups of the batch become groups of channels
        groups = params["batch_group_count"]
        x = jnp.swapaxes(x.reshape(groups, -1, *x.shape[1:]), 0, 1)
        x = x.reshape(x.shape[0], -1, *x.shape[3:])
    for axis, each in enumerate(met, 2):
        x, kernel = _taken(x, each.elements, axis), _taken(kernel, each.taps, axis)
    out, channels, *taps = kernel.shape
    # The last tap meets an element first.
    own = [axis for axis in range(len(met)) if axis not in moved]
    kernel = lax.rev(kernel, [2 + axis for axis in moved])
    kernel = jnp.transpose(kernel, [0, *(2 + axis for axis in moved), 1, *(2 + axis for axis in own)])
    rest = [met[axis].windows for axis in own]
    if groups == 1 and moved and all(each.taps == each.stride == 1 and not (each.low or each.high) for each in rest):
        y = _product(x, kernel.reshape(-1, channels), params["precision"], wide)
    else:
        windows = [each.windows if axis in own else None for axis, each in enumerate(met)] or [None]
        y = lax.conv_general_dilated(
            x.reshape(*x.shape[:2], *(x.shape[2:] or (1,))),
            kernel.reshape(-1, channels, *(1 if each is None else each.taps for each in windows)),
            [1 if each is None else each.stride for each in windows],
            [(0, 0) if each is None else (each.low, each.high) for each in windows],
            lhs_dilation=[1 if each is None else each.spacing for each in windows],
            rhs_dilation=[1 if each is None else each.dilation for each in windows],
            feature_group_count=groups,
            precision=params["precision"],
            preferred_element_type=wide,
        )
    places = [each.windows.size if axis in moved else each.windows.count for axis, each in enumerate(met)]
    y = y.reshape(x.shape[0], out, *(taps[axis] for axis in moved), *places)
    for index, axis in enumerate(moved):
        y = overlap_add(y, met[axis].windows, 2, 2 + len(moved) - index + axis)
    ends = [shape_of(equation.outvars[0])[axis] for axis in numbers.out_spec[2:]]
    config = [
        (each.places.start, end - each.places[-1] - 1, each.places.step - 1)
        for each, end in zip(met, ends, strict=True)
    ]
    y = lax.pad(y, np.zeros((), wide), [(0, 0, 0), (0, 0, 0), *config])
    return jnp.transpose(y, [numbers.out_spec.index(axis) for axis in range(y.ndim)]).astype(dtype)


def _wide(dtype: np.dtype) -> np.dtype:
    narrow = dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.floating)
    return np.dtype(np.float32) if narrow else dtype


def _taken(x: Any, places: range, axis: int) -> Any:
    if len(places) == x.shape[axis]:
        return x
    return lax.slice_in_dim(x, places.start, places.stop, places.step, axis)


def _product(x: Any, kernel: Any, precision: Any, dtype: np.dtype) -> Any:
    """Multiply the channels of each element: ``[batch, channels, ...], [out, channels] -> [batch, out, ...]``."""
    contracted = (((1,), (1,)), ((), ()))
    y = lax.dot_general(x, kernel, contracted, precision=precision, preferred_element_type=dtype)
    return jnp.moveaxis(y, -1, 1)
