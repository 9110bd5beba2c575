"""Complex numbers as pairs of real arrays, and Fourier transforms, for LiteRT, which has hardly any complex operation.

LiteRT transforms real frames whose length is a power of two. Other transforms are products with the Fourier matrix, and
the rest is written with real transforms: the inverse of a spectrum is a Hartley transform, which is its own inverse up
to a factor.

Source: R. N. Bracewell, "Discrete Hartley transform", Journal of the Optical Society of America 73 (1983).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn

from jaxrnn.export.litert.forms import COMPLEX, EXACT, Forms
from jaxrnn.export.lowering import Complex
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


def _computed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a function of the parts of all operands."""

    def rule(forms: Forms, equation: JaxprEqn, *operands: Any) -> Any:
        parts = [each for x in operands for each in (parts_of(x).real, parts_of(x).imag)]
        results = forms.trace(function, *parts)
        return Complex(*results) if len(results) > 1 else results[0]

    return rule


def _modulus(a: Any, b: Any) -> Any:
    a, b = jnp.abs(a), jnp.abs(b)
    large, small = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = small / jnp.where(large == 0, 1, large)
    return large * jnp.sqrt(1 + ratio * ratio)


def _times(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    return a * c - b * d, a * d + b * c


def _over(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
    """Source: R. L. Smith, "Algorithm 116: Complex division" (1962)."""
    wide = jnp.abs(c) >= jnp.abs(d)
    ratio = jnp.where(wide, d, c) / jnp.where(wide, c, d)
    scale = jnp.where(wide, c + d * ratio, c * ratio + d)
    return jnp.where(wide, a + b * ratio, a * ratio + b) / scale, jnp.where(wide, b - a * ratio, b * ratio - a) / scale


COMPLEX.add("abs")(_computed(_modulus))
COMPLEX.add("conj")(_computed(lambda a, b: (a, -b)))
COMPLEX.add("neg")(_computed(lambda a, b: (-a, -b)))
COMPLEX.add("add")(_computed(lambda a, b, c, d: (a + c, b + d)))
COMPLEX.add("sub")(_computed(lambda a, b, c, d: (a - c, b - d)))
COMPLEX.add("mul")(_computed(_times))
COMPLEX.add("square")(_computed(lambda a, b: _times(a, b, a, b)))
COMPLEX.add("div")(_computed(_over))
COMPLEX.add("exp")(_computed(lambda a, b: (jnp.exp(a) * jnp.cos(b), jnp.exp(a) * jnp.sin(b))))
COMPLEX.add("eq")(_computed(lambda a, b, c, d: (a == c) & (b == d)))
COMPLEX.add("ne")(_computed(lambda a, b, c, d: (a != c) | (b != d)))


@COMPLEX.add(kind="movement")
@COMPLEX.add("select_n", "reduce_sum", "cumsum", "copy", "optimization_barrier")
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
def _product(forms: Forms, equation: JaxprEqn, x: Any, y: Any) -> Complex:
    numbers = equation.params["dimension_numbers"]

    def product(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
        def of(x: Any, y: Any) -> Any:
            return lax.dot_general(x, y, numbers)

        return of(a, c) - of(b, d), of(a, d) + of(b, c)

    return _computed(product)(forms, equation, x, y)


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
