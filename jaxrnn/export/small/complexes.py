"""Complex numbers as pairs of real numbers, and random keys as pairs of integers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from jaxrnn._jax.versions import operands_by_use
from jaxrnn.export.translator import PAIRS, Complex, Translator, is_complex, part_type
from jaxrnn.export.writer import dtype_of, shape_of
from jaxrnn.jaxprs.equations import bind, evaluate, is_key, trace, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.primitives import entry_of


def _on_parts(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of the real and imaginary part of each operand, as the rule of a primitive."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        PAIRS.add(name)(functools.partial(_computed, function))
        return function

    return decorate


def _computed(function: Callable[..., Any], translator: Translator, equation: JaxprEqn, *operands: Any) -> Any:
    """Evaluate a function of the real and imaginary part of each operand."""
    parts = []
    for atom, each in zip(equation.invars, operands, strict=True):
        zeros = None if is_complex(atom) else np.zeros(shape_of(each), type_of(atom))
        parts += [part_of(each, "real"), part_of(each, "imag") if zeros is None else zeros]
    results = translator.trace(function, *parts)
    return Complex(*results) if len(results) == 2 else results[0]


@_on_parts("mul")
def _product(a: Any, b: Any, c: Any, d: Any, product: Any = jnp.multiply) -> Any:
    """Return the parts of a product."""
    return product(a, c) - product(b, d), product(a, d) + product(b, c)


@_on_parts("div")
def _quotient(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Divide after scaling, so that squares neither overflow nor vanish."""
    size = jnp.maximum(jnp.abs(c), jnp.abs(d))
    c, d = jnp.where(size == 0, 1, c / size), d / jnp.where(size == 0, 1, size)
    squares = (c * c + d * d) * size
    return (a * c + b * d) / squares, (b * c - a * d) / squares


@_on_parts("abs")
def _absolute(a: Any, b: Any) -> Any:
    """Compute the magnitude after scaling, so that squares neither overflow nor vanish."""
    a, b = jnp.abs(a), jnp.abs(b)
    large = jnp.maximum(a, b)
    ratio = jnp.where(a == b, jnp.ones_like(large), jnp.minimum(a, b) / large)  # two zeros or infinities have no ratio
    return large * jnp.sqrt(1 + ratio * ratio)


@_on_parts("exp")
def _exponential(a: Any, b: Any) -> Any:
    size = jnp.exp(a)
    return size * jnp.cos(b), size * jnp.sin(b)


@_on_parts("ne")
def _unequal(a: Any, b: Any, c: Any, d: Any) -> Any:
    return jnp.logical_or(a != c, b != d)


@_on_parts("eq")
def _equal(*parts: Any) -> Any:
    return jnp.logical_not(_unequal(*parts))


@_on_parts("conj")
def _conjugate(a: Any, b: Any) -> Any:
    return a, -b


@_on_parts("log")
def _logarithm(a: Any, b: Any) -> Any:
    return jnp.log(_absolute(a, b)), jnp.arctan2(b, a)


@_on_parts("square")
def _square(a: Any, b: Any) -> Any:
    return _product(a, b, a, b)


@PAIRS.add("integer_pow")
def power(translator: Translator, equation: JaxprEqn, x: Any) -> Any:
    """Multiply repeatedly."""
    exponent = equation.params["y"]
    if not exponent:
        return by_parts(translator, equation, x)

    def function(a: Any, b: Any) -> Any:
        c, d = a, b
        for _ in range(abs(exponent) - 1):
            c, d = _product(c, d, a, b)
        return (c, d) if exponent > 0 else _quotient(jnp.ones_like(c), jnp.zeros_like(c), c, d)

    return _computed(function, translator, equation, x)


@PAIRS.add("dot_general")
def contract(translator: Translator, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Evaluate four real products, or two if one operand is real, because a product is linear in each operand."""
    if not all(map(is_complex, equation.invars)):
        return _each_part(translator, equation, x, y)

    def product(a: Any, b: Any) -> Any:
        return bind(_of_real(equation), [a, b])[0]

    return _computed(functools.partial(_product, product=product), translator, equation, x, y)


def part_of(value: Any, name: str) -> Any:
    """Return the real or imaginary part of an operand. A real operand, such as an index, is returned unchanged."""
    if isinstance(value, Complex):
        return getattr(value, name)
    return getattr(np, name)(value) if isinstance(value, np.ndarray) and value.dtype.kind == "c" else value


def _real_var(atom: Any) -> Any:
    return Var(ShapedArray(atom.aval.shape, part_type(atom))) if is_complex(atom) else atom


def _of_real(equation: JaxprEqn, **changed: Any) -> JaxprEqn:
    """Return an equation on real arrays in place of complex arrays, with changed parameters."""
    invars, outvars = [*map(_real_var, equation.invars)], [*map(_real_var, equation.outvars)]
    types = {name: each for name, each in equation.params.items() if isinstance(each, np.dtype) and each.kind == "c"}
    params = {**equation.params, **{name: np.dtype(jnp.finfo(each).dtype) for name, each in types.items()}, **changed}
    return equation.replace(invars=invars, outvars=outvars, params=params)


@PAIRS.add(kind="elementwise")
@PAIRS.add(kind="movement")
@PAIRS.add(kind="reduction")
@PAIRS.add(kind="cumulative")
@PAIRS.add(kind="window")
@PAIRS.add(kind="scatter")
def by_parts(translator: Translator, equation: JaxprEqn, *operands: Any) -> Any:
    """Apply the primitive to the real and the imaginary part."""
    if not entry_of(equation).by_parts:
        translator.refuse_complex()
    return _each_part(translator, equation, *operands)


def _each_part(translator: Translator, equation: JaxprEqn, *operands: Any) -> Any:
    fill = equation.params.get("fill_value")
    has_fill = fill is not None and not is_key(type_of(equation.outvars[0]))

    def of_part(name: str) -> Sequence[Any]:
        changed = {"fill_value": getattr(np, name)(fill)} if has_fill else {}
        return translator.written(_of_real(equation, **changed), [part_of(each, name) for each in operands])

    results = [Complex(*parts) for parts in zip(of_part("real"), of_part("imag"), strict=True)]
    return results if equation.primitive.multiple_results else results[0]


def _as_parts(atoms: Sequence[Any]) -> list[Any]:
    return [_real_var(atom) for atom in atoms for _ in range(2 if is_complex(atom) else 1)]


def split(atoms: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return both parts of each complex value, and the other values."""
    pairs = zip(atoms, values, strict=True)
    return [part_of(x, part) for atom, x in pairs for part in (("real", "imag") if is_complex(atom) else ("",))]


def joined(atoms: Sequence[Any], parts: Sequence[Any], join: Callable[..., Any]) -> list[Any]:
    """Return values whose parts are joined by a function of an atom and both parts."""
    rest = iter(parts)
    return [join(atom, next(rest), next(rest)) if is_complex(atom) else next(rest) for atom in atoms]


def _from_parts(atom: Any, first: Any, second: Any) -> Any:
    """Join two parts to an array of complex numbers or random keys."""
    if is_key(type_of(atom)):
        return jax.random.wrap_key_data(jnp.stack([first, second], -1), impl="threefry2x32")
    return lax.complex(first, second)


def _parts(atom: Any, x: Any) -> list[Any]:
    if not is_complex(atom):
        return [x]
    return list(jnp.moveaxis(jax.random.key_data(x), -1, 0)) if is_key(type_of(atom)) else [x.real, x.imag]


def _of_parts(body: ClosedJaxpr) -> ClosedJaxpr:
    """Return the body of a loop or branch on two parts for each complex array."""
    atoms, results = body.jaxpr.invars, body.jaxpr.outvars

    def function(*parts: Any) -> list[Any]:
        values = evaluate(body, joined(atoms, parts, _from_parts))
        return [part for atom, each in zip(results, values, strict=True) for part in _parts(atom, each)]

    return trace(function, *(jax.ShapeDtypeStruct(each.aval.shape, type_of(each)) for each in _as_parts(atoms)))[0]


@PAIRS.add(kind="loop")
def around_bodies(translator: Translator, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Evaluate a loop or branch with each complex array as two parts."""
    params, start = dict(equation.params), 0
    for name, count in operands_by_use(equation).items():
        end = start + count
        params[name], start = len(_as_parts(equation.invars[start:end])), end
    for name, value in equation.params.items():
        if isinstance(value, ClosedJaxpr):
            params[name] = _of_parts(value)
        elif name == "branches":
            params[name] = tuple(map(_of_parts, value))
    invars, outvars = _as_parts(equation.invars), _as_parts(equation.outvars)
    of_real = equation.replace(invars=invars, outvars=outvars, params=params)
    results = translator.written(of_real, split(equation.invars, operands))
    return joined(equation.outvars, results, lambda atom, *parts: Complex(*parts))


@PAIRS.add(kind="transform")
def transform(translator: Translator, equation: JaxprEqn, x: Any) -> Any:
    """Evaluate a Fourier transform of several axes as transforms of the last axis, one axis after the other."""
    kind, lengths = equation.params["fft_type"].name, equation.params["fft_lengths"]
    of_complex = "IFFT" if kind in ("IFFT", "IRFFT") else "FFT"

    def function(x: Any) -> Any:
        steps = [(axis - len(lengths), length, of_complex) for axis, length in enumerate(lengths)]
        steps[-1] = (-1, lengths[-1], kind)
        # Half a spectrum comes from, and goes to, real numbers: its axis is first forward, and last in the inverse.
        for axis, length, name in steps if kind == "IRFFT" else reversed(steps):
            x = jnp.moveaxis(lax.fft(jnp.moveaxis(x, axis, -1), name, (length,)), -1, axis)
        return x

    (operand,) = equation.invars
    return translator.evaluate(trace(function, jax.ShapeDtypeStruct(shape_of_atom(operand), type_of(operand)))[0], [x])


@PAIRS.add("complex")
def pair(translator: Translator, equation: JaxprEqn, real: Any, imag: Any) -> Complex:
    """Return two real arrays as a complex array."""
    return Complex(real, imag)


@PAIRS.add("real")
def real_part(translator: Translator, equation: JaxprEqn, x: Any) -> Any:
    """Return the real part."""
    return part_of(x, "real")


@PAIRS.add("imag")
def imaginary_part(translator: Translator, equation: JaxprEqn, x: Any) -> Any:
    """Return the imaginary part."""
    return part_of(x, "imag")


@PAIRS.add("convert_element_type")
def convert(translator: Translator, equation: JaxprEqn, x: Any) -> Any:
    """Cast both parts; a real result has the real part."""
    if all(map(is_complex, (*equation.invars, *equation.outvars))):
        return _each_part(translator, equation, x)
    (real,) = translator.written(_of_real(equation), [part_of(x, "real")])
    return Complex(real, np.zeros(shape_of(real), dtype_of(real))) if is_complex(equation.outvars[0]) else real
