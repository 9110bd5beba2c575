"""Convolutions as products: of types that engines have no convolution for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrnn.cells.geometry import Windows
from jaxrnn.lowering.movement import pad, reshape, transpose
from jaxrnn.lowering.writer import Operand, Writer, dtype_of, shape_of


def window_product(writer: Writer, x: Operand, kernel: Operand, windows: Sequence[Windows], groups: int) -> Operand:
    """One ``Gather`` along every axis for what lies under the windows, and one ``MatMul``.

    Args:
        writer: of the graph.
        x: ``[batch, channels, ...]``.
        kernel: ``[out, channels / groups, ...]``, of the same type.
        windows: along each axis of both.
        groups: of channels.
    """
    batch, channels = shape_of(x)[:2]
    out, rank = shape_of(kernel)[0], len(windows)
    x = gathered(writer, x, {axis + 2: each for axis, each in enumerate(windows)}, np.zeros((), dtype_of(x)))
    # [batch, channels, windows, taps, windows, taps, ...]
    x = transpose(writer, x, (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2)))
    inner = channels // groups * math.prod(each.taps for each in windows)
    counts = [each.count for each in windows]
    x = reshape(writer, x, (batch, groups, inner, math.prod(counts)))
    kernel = reshape(writer, kernel, (1, groups, out // groups, inner))
    shape = (batch, groups, out // groups, math.prod(counts))
    y = writer.node("MatMul", kernel, x, shape=shape, dtype=dtype_of(x))
    return reshape(writer, y, (batch, out, *counts))


def gathered(writer: Writer, x: Operand, windows: Mapping[int, Windows], absent: np.ndarray) -> Operand:
    """What lies under the windows along some axes, each of which becomes two, ``[windows, taps]``.

    Args:
        writer: of the graph.
        x: the operand.
        windows: by axis.
        absent: what lies there where no element does.
    """
    places = {axis: _places(each) for axis, each in windows.items()}
    # It is one more element after the last.
    lacking = {axis for axis, each in windows.items() if np.any(places[axis] == each.size)}
    x = pad(writer, x, [(0, int(axis in lacking)) for axis in range(len(shape_of(x)))], absent)
    for axis in sorted(places, reverse=True):
        x = _taken(writer, x, places[axis], axis)
    return x


def _places(windows: Windows) -> np.ndarray:
    """``[windows, taps]``: which element lies there, one after the last where none does."""
    at = np.arange(windows.count)[:, None] * windows.stride + np.arange(windows.taps) * windows.dilation - windows.low
    place, between = np.divmod(at, windows.spacing)
    return np.where((between == 0) & (place >= 0) & (place < windows.size), place, windows.size)


def _taken(writer: Writer, x: Operand, places: np.ndarray, axis: int) -> Operand:
    shape = (*shape_of(x)[:axis], *places.shape, *shape_of(x)[axis + 1 :])
    if np.array_equal(places.reshape(-1), np.arange(shape_of(x)[axis])):
        return reshape(writer, x, shape)
    if isinstance(x, np.ndarray):
        return np.take(x, places, axis)
    return writer.node("Gather", x, places, shape=shape, dtype=dtype_of(x), axis=axis)
