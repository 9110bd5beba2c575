"""A convolution as one matrix product.

Along each axis, the taps are on one of two sides of the product. *Gathered*, they are summed over: the product takes
what lies under the windows. *Scattered*, they are results: the product gives what each element has for each tap, and
`overlap_add` sums that up. Along the axis of a dilated operand they are scattered, so that nothing is multiplied with
the zeros in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrnn.cells.geometry import Windows, overlap_add

#: A product multiplies so often while an element is moved.
MULTIPLICATIONS = 32

#: Few windows are a product each, up to so many multiplications: the first product of matrices of a program, other than
#: with a vector, takes longer.
SMALL = 2**15


@dataclass(frozen=True)
class WindowProduct:
    """A convolution as a matrix product.

    Attributes:
        windows: along each spatial axis.
        scattered: whether the taps of an axis are results; they are else gathered.
        batch, channels, out, groups: sizes.
    """

    windows: tuple[Windows, ...]
    scattered: tuple[bool, ...]
    batch: int
    channels: int
    out: int
    groups: int

    # -- sizes

    def _axes(self, *, scattered: bool) -> list[int]:
        return [axis for axis, each in enumerate(self.scattered) if each == scattered]

    @property
    def _gathered(self) -> list[Windows]:
        return [self.windows[axis] for axis in self._axes(scattered=False)]

    @property
    def kernel_order(self) -> list[int]:
        """The axes of the kernel as the product takes them: out, scattered taps, gathered taps, channels.

        What is summed over lies side by side: with few windows, a product with the transpose takes four times as long.
        """
        gathered, scattered = (self._axes(scattered=side) for side in (False, True))
        return [0, *(2 + axis for axis in scattered), *(2 + axis for axis in gathered), 1]

    @property
    def slices(self) -> int:
        """What lies under the windows is so many slices of the operand: one for each tap, or one for each window."""
        return math.prod(min(each.taps, each.count) for each in self._gathered)

    @property
    def _places(self) -> list[int]:
        """Where results are along each axis: one for each window, or for each element if its taps are scattered."""
        pairs = zip(self.windows, self.scattered, strict=True)
        return [each.size if scattered else each.count for each, scattered in pairs]

    @property
    def operand(self) -> int:
        """The elements under the windows."""
        return self.batch * self.channels * math.prod(self._places) * math.prod(each.taps for each in self._gathered)

    @property
    def results(self) -> int:
        """The elements of the product."""
        taps = math.prod(self.windows[axis].taps for axis in self._axes(scattered=True))
        return self.batch * self.out * taps * math.prod(self._places)

    @property
    def cost(self) -> float:
        """What takes time, in elements that are moved before and after the product."""
        depth = self.operand // (self.batch * math.prod(self._places) * self.groups)
        moved = self.operand * (self.slices > 1) + self.results * any(self.scattered)
        return moved + self.results * depth / MULTIPLICATIONS

    # -- computing

    def __call__(self, x: jax.Array, spec: Sequence[int], kernel: jax.Array, precision: Any) -> jax.Array:
        """The convolution ``[batch, out, *spatial]``; low-precision products are summed, and given, in float32.

        Args:
            x: the operand.
            spec: its batch axis, its channel axis, and its spatial ones. What it holds is taken as it lies in memory.
            kernel: in the order of the product.
            precision: of the product.
        """
        pieces = self._pieces(x, spec)
        by_window = all(each.count <= each.taps for each in self._gathered)
        if by_window and len(pieces) == self.batch * math.prod(self._places) and len(pieces) * kernel.size <= SMALL:
            products = [self._product(kernel, self._joined([piece], spec), precision) for piece in pieces]
            y = jnp.concatenate(products, -1)
        else:
            y = self._product(kernel, self._joined(pieces, spec), precision)
        scattered = self._axes(scattered=True)
        y = y.reshape(self.out, *(self.windows[axis].taps for axis in scattered), self.batch, *self._places)
        for index, axis in enumerate(scattered):
            y = overlap_add(y, self.windows[axis], 1, 2 + len(scattered) - index + axis)
        return jnp.swapaxes(y, 0, 1)

    def _pieces(self, x: jax.Array, spec: Sequence[int]) -> list[jax.Array]:
        """What lies under the windows: of every gathered axis all windows for each tap, or all taps for each window."""
        pieces = [x]
        for axis in self._axes(scattered=False):
            each, place = self.windows[axis], spec[2 + axis]
            take, count = (each.under_window, each.count) if each.count <= each.taps else (each.under_tap, each.taps)
            pieces = [take(piece, index, place) for piece in pieces for index in range(count)]
        return pieces

    def _joined(self, pieces: Sequence[jax.Array], spec: Sequence[int]) -> jax.Array:
        """Pieces, one or all, as ``[gathered taps, channels, batch, places]``."""
        steps = [min(each.taps, each.count) if len(pieces) > 1 else 1 for each in self._gathered]
        under = jnp.stack(pieces).reshape(*steps, *pieces[0].shape)
        batch, channels, *own = (len(steps) + axis for axis in spec)
        taps, places = [], list(own)
        for step, axis in enumerate(self._axes(scattered=False)):
            by_window = self.windows[axis].count <= self.windows[axis].taps
            taps.append(own[axis] if by_window else step)
            places[axis] = step if by_window else own[axis]
        return jnp.transpose(under, [*taps, channels, batch, *places])

    def _product(self, kernel: jax.Array, under: jax.Array, precision: Any) -> jax.Array:
        """The product ``[groups, out and scattered taps, windows]``, without the first axis for one group."""
        depth, groups = len(self._gathered) + 1, [self.groups] if self.groups > 1 else []
        if groups:
            under = under.reshape(*under.shape[: depth - 1], self.groups, -1, *under.shape[depth:])
            under = jnp.moveaxis(under, depth - 1, 0)
        # As matrices: with several axes that are summed over, XLA on CPUs refuses low precision.
        summed = math.prod(under.shape[len(groups) : len(groups) + depth])
        wide = jnp.float32 if under.dtype.itemsize < 4 else under.dtype
        kernel, under = kernel.reshape(*groups, -1, summed), under.reshape(*groups, summed, -1)
        lead = len(groups)
        same = tuple(range(lead))
        # Of many streams, the windows come first in the result, and it is moved once.
        y = lax.dot_general(
            under, kernel, (((lead,), (lead + 1,)), (same, same)), precision=precision, preferred_element_type=wide
        )
        return jnp.swapaxes(y, lead, lead + 1)
