"""Rules for Fourier transforms: products with a matrix, or ``DFT`` for long powers of two.

ONNX Runtime's ``DFT`` of other lengths is slow and has three correct digits. A matrix is correct to the last digits,
and faster for a few hundred samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn

from jaxrnn.export.lowering import COMPLEX, Lowering
from jaxrnn.export.reshaping import concatenate, cut_along, reshape
from jaxrnn.export.rules.elementwise import elements
from jaxrnn.export.small import complexes
from jaxrnn.export.small.complexes import part_of
from jaxrnn.export.translator import Complex, is_complex
from jaxrnn.export.writer import Operand, dtype_of, shape_of

#: Powers of two from here on are faster as `DFT`, which needs this opset.
_LONG, _DFT_OPSET = 1024, 17
#: The opset that made the addend of ``Gemm`` optional.
_GEMM_OPSET = 11


@COMPLEX.add(kind="transform")
def transform(lowering: Lowering, equation: JaxprEqn, x: Any) -> Any:
    """Write a Fourier transform of the last axis; the result of an inverse real transform is real."""
    kind, (*others, length) = equation.params["fft_type"].name, map(int, equation.params["fft_lengths"])
    if others:
        return complexes.transform(lowering, equation, x)
    parts = [part_of(x, "real"), part_of(x, "imag")] if is_complex(equation.invars[0]) else [x]
    long = length >= _LONG and length & (length - 1) == 0 and lowering.writer.opset >= _DFT_OPSET
    inverse, half = kind in ("IFFT", "IRFFT"), kind in ("RFFT", "IRFFT")
    parts = (_by_operator if long else _by_matrix)(lowering, parts, length, inverse, half)
    return parts[0] if len(parts) == 1 else Complex(*parts)


def _by_matrix(lowering: Lowering, parts: Sequence[Operand], length: int, inverse: bool, half: bool) -> list[Operand]:
    """Multiply both parts, side by side, with a matrix that returns both parts side by side."""
    writer, dtype = lowering.writer, dtype_of(parts[0])
    x = concatenate(writer, parts, len(shape_of(parts[0])) - 1)
    matrix = _matrix(length, len(parts), inverse, half).astype(dtype)
    shape = (*shape_of(x)[:-1], matrix.shape[1])
    if inverse and half:
        # The transposed matrix of the forward transform, if the file has it: with scaled rows, it is the inverse's.
        forward = writer.made.add(_matrix(length, 1, inverse=False, half=True).astype(dtype))
        if writer.opset >= _GEMM_OPSET and writer.has(forward):
            x = elements(lowering, "Mul", x, np.tile(_weights(length) / length, 2).astype(dtype))
            rows = reshape(writer, x, (int(np.prod(shape[:-1])), len(matrix)))
            product = writer.node("Gemm", rows, forward, shape=(shape_of(rows)[0], length), dtype=dtype, transB=1)
            return [reshape(writer, product, shape)]
    product = writer.node("MatMul", x, writer.made.add(matrix), shape=shape, dtype=dtype)
    columns = matrix.shape[1] // (1 if inverse and half else 2)
    starts = range(0, matrix.shape[1], columns)
    return [cut_along(writer, product, len(shape) - 1, start, start + columns) for start in starts]


def _matrix(length: int, parts: int, inverse: bool, half: bool) -> np.ndarray:
    """Return the matrix of a transform of one or two parts."""
    bins = length // 2 + 1
    rows = bins if inverse and half else length
    columns = bins if half and not inverse else length
    turns = np.outer(np.arange(rows), np.arange(columns)) % length / length
    cosine, sine = np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)
    cosine[np.isin(turns, (0.25, 0.75))] = sine[np.isin(turns, (0, 0.5))] = 0
    if inverse:
        cosine, sine = cosine / length, -sine / length
    if inverse and half:
        cosine, sine = cosine * _weights(length)[:, None], sine * _weights(length)[:, None]
    matrix = np.block([[cosine, -sine], [sine, cosine]])
    return matrix[: rows * parts, : columns if inverse and half else 2 * columns]


def _weights(length: int) -> np.ndarray:
    """Return how often bins of half a spectrum count: twice, except 0 and the Nyquist frequency."""
    bins = np.arange(length // 2 + 1)
    return np.where((bins == 0) | (2 * bins == length), 1, 2)


def _by_operator(lowering: Lowering, parts: Sequence[Operand], length: int, inverse: bool, half: bool) -> list[Operand]:
    """Write ``DFT``, which has the parts on the last axis."""
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
        reshape(writer, cut_along(writer, y, 2, part, part + 1), shape) for part in range(1 if inverse and half else 2)
    ]


def _mirrored(lowering: Lowering, x: Operand, length: int, part: str) -> Operand:
    """Return a whole spectrum from a half, conjugated in the second half. The ends of the half are real."""
    writer, last = lowering.writer, len(shape_of(x)) - 1
    if part == "imag":
        edges = np.ones(shape_of(x)[last], dtype_of(x))
        edges[[0, -1]] = 0
        x = elements(lowering, "Mul", x, edges)
    inner = cut_along(writer, x, last, length // 2 - 1, 0, -1)
    if part == "imag":
        inner = elements(lowering, "Neg", inner)
    return concatenate(writer, [x, inner], last)
