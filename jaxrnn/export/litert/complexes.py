"""Complex numbers as pairs of real arrays, and Fourier transforms, for LiteRT, which has hardly any complex operation.

LiteRT transforms real frames whose length is a power of two. Other transforms are products with the Fourier matrix, and
the rest is written with real transforms: the inverse of a spectrum is a Hartley transform, which is its own inverse up
to a factor.

Source: R. N. Bracewell, "Discrete Hartley transform", Journal of the Optical Society of America 73 (1983).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.litert.forms import COMPLEX, EXACT, Forms
from jaxrnn.export.lowering import COMPLEX as EXPORTS
from jaxrnn.export.lowering import Complex
from jaxrnn.export.rules.complexes import ON_PARTS, computed_on_parts, product_of_parts
from jaxrnn.export.rules.control import call
from jaxrnn.jaxprs.equations import bind, type_of


def parts_of(x: Any) -> Complex:
    """Return the parts of a complex, or a real, array."""
    if isinstance(x, Complex):
        return x
    if np.dtype(x.dtype).kind == "c":
        return Complex(np.real(x), np.imag(x))
    return Complex(x, np.zeros(np.shape(x), x.dtype))


@COMPLEX.add("complex")
def _pair(forms: Forms, equation: JaxprEqn, real: Any, imag: Any) -> Complex:
    return Complex(real, imag)


@COMPLEX.add("real")
def _real(forms: Forms, equation: JaxprEqn, x: Complex) -> Any:
    return x.real


@COMPLEX.add("imag")
def _imag(forms: Forms, equation: JaxprEqn, x: Complex) -> Any:
    return x.imag


@COMPLEX.add("convert_element_type")
def _converted(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    to = np.dtype(equation.params["new_dtype"])
    if to.kind != "c":
        return x.real.astype(to)
    real: Any = parts_of(x).real
    imag: Any = parts_of(x).imag
    return Complex(real.astype(np.float32), imag.astype(np.float32))


COMPLEX.update({name: EXPORTS[name] for name in ON_PARTS})


@COMPLEX.add(kind="movement")
@COMPLEX.add(
    "add", "add_any", "cumsum", "neg", "reduce_sum", "select_n", "stop_gradient", "sub", "copy", "optimization_barrier"
)
def _by_parts(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    """Apply an equation to each part; positions and conditions are the same for both."""
    is_complex = [np.dtype(type_of(atom)).kind == "c" for atom in equation.invars]
    pairs = [parts_of(x) if each else Complex(x, x) for x, each in zip(operands, is_complex, strict=True)]
    changed = {"fill_value": None} if equation.params.get("fill_value", 0) is None else {}

    def applied(*arrays: Any) -> Any:
        return bind(equation, arrays, **changed)

    sides = [forms.trace(applied, *(getattr(pair, part) for pair in pairs)) for part in ("real", "imag")]
    results = [Complex(*each) for each in zip(*sides, strict=True)]
    return results if equation.primitive.multiple_results else results[0]


@COMPLEX.add("dot_general")
def _product(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    numbers = equation.params["dimension_numbers"]
    product = functools.partial(product_of_parts, product=lambda x, y: lax.dot_general(x, y, numbers))
    return computed_on_parts(forms, product, equation, *operands)


for kind in ("call", "checkpoint", "custom rule"):
    COMPLEX.add(kind=kind)(call)


@COMPLEX.add("scan", "cond")
def _inside(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
    return forms.refuse("LiteRT has no complex numbers in loops and branches: use real and imaginary parts")


@COMPLEX.add("fft")
def _fourier(forms: Forms, equation: JaxprEqn, x: Any) -> Any:
    lengths, kind = equation.params["fft_lengths"], equation.params["fft_type"]
    if len(lengths) != 1:
        return forms.refuse("LiteRT gets Fourier transforms of one axis: transform one axis after the other")
    (length,) = lengths
    name = str(getattr(kind, "name", kind)).rpartition(".")[2]
    if name == "RFFT":
        return Complex(*_of_real(x, length))
    pair = parts_of(x)
    if name == "IRFFT":
        real, imag = _mirrored(pair.real, pair.imag, length)
        # A real signal has no imaginary part at the ends of its spectrum.
        ends = np.ones(length, np.float32)
        ends[0] = 0
        ends[length // 2 if length % 2 == 0 else 0] = 0
        a, b = _whole(real - imag * ends, length)
        return (a - b) / length
    a, b = _whole(pair.real, length)
    c, d = _whole(pair.imag, length)
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
