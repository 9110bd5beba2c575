"""Fourier transforms: products with a matrix, or ``DFT`` where that is faster and as exact.

ONNX Runtime's ``DFT`` is slow, and right to three digits only, where the length is no power of two; a matrix is right
to the last ones, and faster for frames of a few hundred samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.lowering.lowering import Complex, Lowering
from jaxrnn.lowering.movement import concatenate, cut, reshape, transpose
from jaxrnn.lowering.rules.elementwise import elements
from jaxrnn.lowering.writer import Operand, dtype_of, shape_of

#: Powers of two from here on are faster as `DFT`, which came with this opset.
_LONG, _DFT_OPSET = 1024, 17


def transform(lowering: Lowering, equation: JaxprEqn, real: Operand, imag: Operand | None = None) -> Any:
    """A Fourier transform over the last axes, of one part or two; complex, or real where it is the inverse of one."""
    kind, lengths = equation.params["fft_type"].name, equation.params["fft_lengths"]
    axes = range(len(shape_of(real)) - len(lengths), len(shape_of(real)))
    parts: list[Operand] = [real] if imag is None else [real, imag]
    inverse = kind in ("IFFT", "IRFFT")
    order = list(zip(axes, lengths, strict=True))
    # The axis that is half of one is the first to be transformed forwards, and the last one back.
    for axis, length in order if kind == "IRFFT" else reversed(order):
        half = kind in ("RFFT", "IRFFT") and axis == axes[-1]
        parts = _along(lowering, parts, axis, int(length), inverse=inverse, half=half)
    return parts[0] if len(parts) == 1 else Complex(*parts)


def _along(
    lowering: Lowering, parts: Sequence[Operand], axis: int, length: int, *, inverse: bool, half: bool
) -> list[Operand]:
    """The parts of a transform along one axis; of `half` of a spectrum, the inverse has one part."""
    writer, rank = lowering.writer, len(shape_of(parts[0]))
    order = [*(other for other in range(rank) if other != axis), axis]
    back = np.argsort(order).tolist()
    parts = [transpose(writer, part, order) for part in parts]
    long = length >= _LONG and length & (length - 1) == 0 and writer.opset >= _DFT_OPSET
    found = (_by_operator if long else _by_matrix)(lowering, parts, length, inverse, half)
    return [transpose(writer, part, back) for part in found]


def _by_matrix(lowering: Lowering, parts: Sequence[Operand], length: int, inverse: bool, half: bool) -> list[Operand]:
    """Both parts side by side, times a matrix that gives both parts side by side."""
    bins = length // 2 + 1
    rows = bins if inverse and half else length
    columns = bins if half and not inverse else length
    turns = np.outer(np.arange(rows), np.arange(columns)) % length / length
    cosine, sine = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    cosine[np.isin(turns, (0.25, 0.75))] = sine[np.isin(turns, (0, 0.5))] = 0
    if inverse:
        cosine, sine = cosine / length, -sine / length
    if inverse and half:  # a bin stands for its mirror image too, but the first one and that of half the rate
        twice = np.where((np.arange(rows) == 0) | (2 * np.arange(rows) == length), 1, 2)[:, None]
        cosine, sine = cosine * twice, sine * twice
    matrix = np.block([[cosine, -sine], [sine, cosine]])
    matrix = matrix[: rows * len(parts), : columns if inverse and half else 2 * columns]
    dtype = dtype_of(parts[0])
    x = concatenate(lowering.writer, parts, len(shape_of(parts[0])) - 1)
    shape = (*shape_of(x)[:-1], matrix.shape[1])
    product = lowering.writer.node("MatMul", x, matrix.astype(dtype), shape=shape, dtype=dtype)
    return [_last(lowering, product, start, columns) for start in range(0, matrix.shape[1], columns)]


def _by_operator(lowering: Lowering, parts: Sequence[Operand], length: int, inverse: bool, half: bool) -> list[Operand]:
    """``DFT``, of which the last axis has the parts."""
    writer, rank = lowering.writer, len(shape_of(parts[0]))
    if inverse and half:
        parts = [_mirrored(lowering, parts[0], length, "real"), _mirrored(lowering, parts[1], length, "imag")]
    x = concatenate(writer, [reshape(writer, part, (*shape_of(part), 1)) for part in parts], rank)
    rows = int(np.prod(shape_of(x)[:-2]))
    x = reshape(writer, x, (rows, length, len(parts)))
    bins = length // 2 + 1 if half and not inverse else length
    flags = {"onesided": int(half and not inverse), "inverse": int(inverse)}
    operands: list[Operand | None] = [x]
    if writer.opset >= 20:
        operands += [None, np.array(1, np.int64)]
    else:
        flags["axis"] = 1
    y = writer.node("DFT", *operands, shape=(rows, bins, 2), dtype=dtype_of(x), **flags)
    shape = (*shape_of(parts[0])[:-1], bins)
    return [
        reshape(writer, cut(writer, y, [0, 0, part], [rows, bins, part + 1]), shape)
        for part in range(1 if inverse and half else 2)
    ]


def _mirrored(lowering: Lowering, x: Operand, length: int, part: str) -> Operand:
    """A spectrum whose second half is the first one backwards, conjugated; the ends of the half are real."""
    writer, last = lowering.writer, len(shape_of(x)) - 1
    starts, ends, steps = [0] * (last + 1), [*shape_of(x)], [1] * (last + 1)
    if part == "imag":
        edges = np.ones(ends[last], dtype_of(x))
        edges[[0, -1]] = 0
        x = elements(lowering, "Mul", x, edges)
    starts[last], ends[last], steps[last] = length // 2 - 1, 0, -1
    inner = cut(writer, x, starts, ends, steps)
    if part == "imag":
        inner = elements(lowering, "Neg", inner)
    return concatenate(writer, [x, inner], last)


def _last(lowering: Lowering, x: Operand, start: int, size: int) -> Operand:
    """Some elements of the last axis."""
    shape = shape_of(x)
    begins = [0] * (len(shape) - 1) + [start]
    return cut(lowering.writer, x, begins, [*shape[:-1], start + size])
