"""Fourier transforms for LiteRT, which transforms real frames whose length is a power of two.

Other transforms are products with the Fourier matrix, and the rest is written with real transforms: the inverse of a
spectrum is a Hartley transform, which is its own inverse up to a factor.

Source: R. N. Bracewell, "Discrete Hartley transform", Journal of the Optical Society of America 73 (1983).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.litert.forms import COMPLEX, EXACT, Forms
from jaxrnn.export.small import complexes
from jaxrnn.export.translator import Complex


@COMPLEX.add("fft")
def _fourier(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    name, (*others, length) = equation.params["fft_type"].name, equation.params["fft_lengths"]
    if others:
        return complexes.transform(forms, equation, x)
    if name == "RFFT":
        return Complex(*_of_real(x, length))
    if name == "IRFFT":
        real, imag = _mirrored(x.real, x.imag, length)
        # A real signal has no imaginary part at the ends of its spectrum.
        ends = np.ones(length, np.float32)
        ends[0] = 0
        ends[length // 2 if length % 2 == 0 else 0] = 0
        a, b = _whole(real - imag * ends, length)
        return (a - b) / length
    a, b = _whole(x.real, length)
    c, d = _whole(x.imag, length)
    if name == "FFT":
        return Complex(a - d, b + c)
    # The inverse is the transform with the opposite sign of the frequency.
    return Complex((a + d) / length, (c - b) / length)


def _of_real(x: Any, length: int) -> tuple[Any, Any]:
    """Return the parts of the first half of the spectrum of real frames."""
    x = jnp.asarray(x)
    if length & (length - 1) == 0 and length > 1:
        spectrum = lax.fft(x, "RFFT", (length,))
        return lax.real(spectrum), lax.imag(spectrum)
    angles = 2 * np.pi * (np.outer(np.arange(length), np.arange(length // 2 + 1)) % length) / length
    rows = lax.optimization_barrier(x.reshape(-1, length))
    shape = (*x.shape[:-1], length // 2 + 1)
    with jax.named_scope(EXACT):
        real, imag = ((rows @ each.astype(np.float32)).reshape(shape) for each in (np.cos(angles), -np.sin(angles)))
    return real, imag


def _whole(x: Any, length: int) -> tuple[Any, Any]:
    """Return the parts of the whole spectrum of real frames."""
    return _mirrored(*_of_real(x, length), length)


def _mirrored(real: Any, imag: Any, length: int) -> tuple[Any, Any]:
    """Return the parts of a whole spectrum, whose second half mirrors the first."""
    again = slice(1, (length + 1) // 2)
    return (
        jnp.concatenate([real, jnp.flip(real[..., again], -1)], -1),
        jnp.concatenate([imag, -jnp.flip(imag[..., again], -1)], -1),
    )
