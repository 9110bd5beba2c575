"""Quantised constants: float arrays that remember their integers, so that a file stores the integers.

Moves of elements keep the integers. Any other arithmetic returns an ordinary array. Each use of a large array of bytes
becomes a DequantizeLinear node. Other arrays, such as an int32 bias, are constants for all rewrites, and become nodes
at the end if the reader computes between DequantizeLinear and QuantizeLinear: engines fuse such a group into a single
operator on integers only if all operands are dequantised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: The types of integers that engines fuse. Blocks and integers of 4 bits need `BLOCKS_SINCE`.
_TYPES = ("int4", "int8", "int32", "uint4", "uint8")
BLOCKS_SINCE = 21

#: Below this size, 8-bit arrays may become wider.
FEW = 64


class Quantized(np.ndarray):
    """Float32 elements ``(steps - zero) * scale``; `steps` is None after arithmetic that loses the integers."""

    steps: np.ndarray | None = None
    scale: np.ndarray
    zero: np.ndarray

    @property
    def is_large(self) -> bool:
        """True if the integers take much less memory than the elements."""
        return self.steps is not None and self.steps.dtype.itemsize == 1 and self.size >= FEW

    def _moved(self, function: Callable[[np.ndarray], np.ndarray]) -> Any:
        result = function(self.view(np.ndarray))
        if self.steps is None or not isinstance(result, np.ndarray):
            return result
        return _made(result, *map(function, (self.steps, self.scale, self.zero)))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """Reshape elements and integers."""
        return self._moved(lambda x: x.reshape(*shape, **options))

    def transpose(self, *axes: Any) -> Any:
        """Reorder the axes of elements and integers."""
        return self._moved(lambda x: x.transpose(*axes))

    def squeeze(self, axis: Any = None) -> Any:
        """Remove axes of size 1 from elements and integers."""
        return self._moved(lambda x: x.squeeze(axis))

    def __array_function__(self, function: Any, types: Any, operands: Any, options: Any) -> Any:
        if function is np.broadcast_to:
            return self._moved(lambda x: function(x, *operands[1:], **options))
        return super().__array_function__(function, types, operands, options)

    def __getitem__(self, index: Any) -> Any:
        return self._moved(lambda x: x[index])

    def operands(self) -> tuple[list[np.ndarray | None], dict[str, int]] | None:
        """Return the operands and attributes of DequantizeLinear, or None if scales vary otherwise."""
        if self.steps is None:
            return None
        for axis in (None, *range(self.ndim)):
            places = tuple(slice(None) if d == axis else slice(0, 1) for d in range(self.ndim))
            scale, zero = self.scale[places], self.zero[places]
            if np.all(scale == self.scale) and np.all(zero == self.zero):
                shape = () if axis is None else (-1,)
                is_wide = self.steps.dtype.itemsize > 1  # an int32 zero point is always 0
                operands = [self.steps, scale.reshape(shape), None if is_wide else zero.reshape(shape)]
                return operands, {} if axis is None else {"axis": axis}
        for axis, size in enumerate(self.shape):
            blocks = (each for each in range(2, size + 1) if self._is_blocked(axis, each))
            if (block := max(blocks, default=None)) is not None:
                first = tuple(slice(None, None, block if d == axis else None) for d in range(self.ndim))
                return [self.steps, self.scale[first], self.zero[first]], {"axis": axis, "block_size": block}
        return None

    def _is_blocked(self, axis: int, block: int) -> bool:
        """Return True if scales and zero points are equal within blocks along an axis."""
        starts = np.arange(self.shape[axis]) // block * block
        return all(bool(np.all(np.take(each, starts, axis) == each)) for each in (self.scale, self.zero))


def dequantized(operands: Sequence[np.ndarray], axis: int, block: int) -> Quantized | None:
    """Return the result of DequantizeLinear, or None if engines do not fuse these types; ``block`` 0 for no blocks."""
    steps, scale, zero = (*operands, None)[:3]
    assert steps is not None
    assert scale is not None
    is_known = steps.dtype.name in _TYPES and scale.dtype == np.float32 and steps.size > 0
    if not is_known or (zero is not None and steps.dtype == np.int32 and zero.any()):
        return None
    along = axis % max(steps.ndim, 1)

    def spread(each: np.ndarray) -> np.ndarray:
        if block and each.ndim:
            return np.take(each, np.arange(steps.shape[along]) // block, along)
        shape = [-1 if d == along and each.size > 1 else 1 for d in range(steps.ndim)]
        return np.broadcast_to(each.reshape(shape), steps.shape)

    scale, zero = map(spread, (scale, np.zeros((), steps.dtype) if zero is None else zero))
    elements = (steps.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale
    return _made(elements, steps, scale, zero)


def _made(elements: np.ndarray, steps: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> Quantized:
    result = np.asarray(elements).view(Quantized)  # NumPy computes numbers from arrays without axes
    result.steps, result.scale, result.zero = steps, scale, zero
    return result
