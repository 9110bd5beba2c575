"""The windows that convolutions and poolings move over an image, in any number of spatial dimensions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

Pads = list[tuple[Any, Any]]


class Windows:
    """Kernel, strides, dilations and padding of each spatial axis.

    Attributes:
        sizes: the sizes of the image.
        kernel: those of a window.
        strides: the steps between windows, 1 where the attribute is absent.
        dilations: the steps between elements of a window, the same.
        auto_pad: the attribute.
    """

    def __init__(
        self,
        sizes: Sequence[Any],
        kernel: Sequence[Any],
        *,
        auto_pad: str = "NOTSET",
        dilations: tuple[int, ...] | None = None,
        pads: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
    ):
        self.sizes, self.kernel, self.auto_pad, self._pads = tuple(sizes), tuple(kernel), auto_pad, pads
        self.strides = per_axis(strides, len(self.kernel), "strides")
        self.dilations = per_axis(dilations, len(self.kernel), "dilations")

    @property
    def reach(self) -> tuple[Any, ...]:
        """The elements from the first to the last of a window."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True))

    @functools.cached_property
    def pads(self) -> Pads:
        """The padding before and after each axis, from the attribute or by the rule that ``auto_pad`` names."""
        rank = len(self.kernel)
        if self.auto_pad in ("NOTSET", ""):
            flat = tuple(self._pads) if self._pads else (0,) * (2 * rank)
            if len(flat) != 2 * rank:
                raise ValueError(f"pads has {len(flat)} entries; two for each of the {rank} spatial axes are expected")
            return list(zip(flat[:rank], flat[rank:], strict=True))
        if self.auto_pad == "VALID":
            return [(0, 0)] * rank
        if self.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            raise ValueError(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, not {self.auto_pad!r}")
        rows = zip(self.sizes, self.strides, self.reach, strict=True)
        totals = [max((-(-size // stride) - 1) * stride + reach - size, 0) for size, stride, reach in rows]
        return self.halves(totals)

    def halves(self, totals: Sequence[Any]) -> Pads:
        """Padding in two halves; ``auto_pad`` says where the larger one is."""
        pairs = [(total // 2, total - total // 2) for total in totals]
        return pairs if self.auto_pad == "SAME_UPPER" else [pair[::-1] for pair in pairs]

    @property
    def counts(self) -> tuple[Any, ...]:
        """How many windows lie on each axis."""
        rows = zip(self.sizes, self.pads, self.strides, self.reach, strict=True)
        return tuple((size + low + high - reach) // stride + 1 for size, (low, high), stride, reach in rows)


def per_axis(values: Sequence[int] | None, rank: int, name: str) -> tuple[int, ...]:
    """An attribute with one entry for each spatial axis; ones where it is absent."""
    if not values:
        return (1,) * rank
    if len(values) != rank:
        raise ValueError(f"{name} has {len(values)} entries for {rank} spatial axes")
    return tuple(values)


def kernel_of(w: Any, kernel_shape: Sequence[int] | None) -> tuple[int, ...]:
    """The spatial sizes of a weight, which an attribute ``kernel_shape`` may repeat."""
    kernel = tuple(w.shape[2:])
    if kernel_shape and tuple(kernel_shape) != kernel:
        raise ValueError(f"kernel_shape {list(kernel_shape)} does not match the weight's {list(kernel)}")
    return kernel
