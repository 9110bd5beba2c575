"""Rules for complex numbers, as pairs of real numbers, and for Fourier transforms.

Fourier transforms are products with a matrix, or ``DFT`` for long powers of two. ONNX Runtime's ``DFT`` of other
lengths is slow and has three correct digits. A matrix is correct to the last digits, and faster for a few hundred
samples.
"""

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
from jaxrnn.export.lowering import COMPLEX, NO_COMPLEX, RULES, Complex, Lowering, is_complex, part_type
from jaxrnn.export.reshaping import concatenate, cut_along, reshape, transpose
from jaxrnn.export.rules.elementwise import elements
from jaxrnn.export.writer import Operand, dtype_of, shape_of
from jaxrnn.jaxprs.equations import bind, evaluate, is_key, trace, type_of
from jaxrnn.jaxprs.equations import shape_of as shape_of_atom
from jaxrnn.jaxprs.primitives import entry_of


@COMPLEX.add(kind="call")
@COMPLEX.add(kind="checkpoint")
@COMPLEX.add(kind="custom rule")
def handed_on(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    """Write a call, whose equations have rules of their own."""
    return RULES.of(equation)(lowering, equation, *operands)


#: Primitives of complex numbers as JAX functions of the real and imaginary part of each operand.
ON_PARTS: dict[str, Callable[..., Any]] = {}


def _on_parts(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of the real and imaginary part of each operand, as the rule of a primitive."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPLEX.add(name)(functools.partial(_on_all_parts, function))
        ON_PARTS[name] = function
        return function

    return decorate


def _on_all_parts(function: Callable[..., Any], lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    return computed_on_parts(lowering, function, equation, *operands)


def computed_on_parts(lowering: Any, function: Callable[..., Any], equation: JaxprEqn, *operands: Any) -> Any:
    """Write a function of the real and imaginary part of each operand of an equation."""
    parts = []
    for atom, each in zip(equation.invars, operands, strict=True):
        zeros = None if is_complex(atom) else np.zeros(shape_of_atom(atom), type_of(atom))
        parts += [_part(each, "real"), _part(each, "imag") if zeros is None else zeros]
    results = lowering.trace(function, *parts)
    return Complex(*results) if len(results) == 2 else results[0]


@_on_parts("mul")
def product_of_parts(a: Any, b: Any, c: Any, d: Any, product: Any = jnp.multiply) -> Any:
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
    return product_of_parts(a, b, a, b)


@COMPLEX.add("integer_pow")
def power(lowering: Lowering, equation: JaxprEqn, x: Any) -> Any:
    """Multiply repeatedly."""
    exponent = equation.params["y"]
    if not exponent:
        return by_parts(lowering, equation, x)

    def function(a: Any, b: Any) -> Any:
        c, d = a, b
        for _ in range(abs(exponent) - 1):
            c, d = product_of_parts(c, d, a, b)
        return (c, d) if exponent > 0 else _quotient(jnp.ones_like(c), jnp.zeros_like(c), c, d)

    return computed_on_parts(lowering, function, equation, x)


@COMPLEX.add("dot_general")
def contract(lowering: Lowering, equation: JaxprEqn, x: Any, y: Any) -> Any:
    """Write four real products, or two if one operand is real, because a product is linear in each operand."""
    if not all(map(is_complex, equation.invars)):
        return _each_part(lowering, equation, x, y)
    preferred = equation.params.get("preferred_element_type")
    changed = {} if preferred is None else {"preferred_element_type": jnp.finfo(preferred).dtype}

    def product(a: Any, b: Any) -> Any:
        return bind(equation, [a, b], **changed)[0]

    return computed_on_parts(lowering, functools.partial(product_of_parts, product=product), equation, x, y)


def _part(value: Any, name: str) -> Any:
    """Return the real or imaginary part of an operand. A real operand, such as an index, is returned unchanged."""
    if isinstance(value, Complex):
        return getattr(value, name)
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        return np.ascontiguousarray(getattr(value, name))
    return value


def _real_var(atom: Any) -> Any:
    return Var(ShapedArray(atom.aval.shape, part_type(atom))) if is_complex(atom) else atom


def _of_real(equation: JaxprEqn, **changed: Any) -> JaxprEqn:
    """Return an equation on real arrays in place of complex arrays, with changed parameters."""
    invars, outvars = [*map(_real_var, equation.invars)], [*map(_real_var, equation.outvars)]
    return equation.replace(invars=invars, outvars=outvars, params={**equation.params, **changed})


@COMPLEX.add(kind="elementwise")
@COMPLEX.add(kind="movement")
@COMPLEX.add(kind="reduction")
@COMPLEX.add(kind="cumulative")
@COMPLEX.add(kind="window")
@COMPLEX.add(kind="scatter")
def by_parts(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    """Apply the primitive to the real and the imaginary part."""
    if not entry_of(equation).by_parts:
        lowering.refuse(NO_COMPLEX)
    return _each_part(lowering, equation, *operands)


def _each_part(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> Any:
    rule, fill = RULES.of(equation), equation.params.get("fill_value")

    def written(name: str) -> Any:
        has_fill = fill is not None and not is_key(type_of(equation.outvars[0]))
        of_part = _of_real(equation, **({"fill_value": getattr(np, name)(fill)} if has_fill else {}))
        return rule(lowering, of_part, *(_part(each, name) for each in operands))

    real, imag = written("real"), written("imag")
    if equation.primitive.multiple_results:
        return [Complex(*pair) for pair in zip(real, imag, strict=True)]
    return Complex(real, imag)


def _as_parts(atoms: Sequence[Any]) -> list[Any]:
    return [_real_var(atom) for atom in atoms for _ in range(2 if is_complex(atom) else 1)]


def _joined(atoms: Sequence[Any], parts: Sequence[Any], join: Callable[[Any, Any, Any], Any]) -> list[Any]:
    rest = iter(parts)
    return [join(atom, next(rest), next(rest)) if is_complex(atom) else next(rest) for atom in atoms]


def _from_parts(atom: Any, first: Any, second: Any) -> Any:
    """Join two parts to an array of complex numbers or random keys."""
    if is_key(type_of(atom)):
        return jax.random.wrap_key_data(jnp.stack([first, second], -1), impl="threefry2x32")
    return lax.complex(first, second)


def _split(atom: Any, x: Any) -> list[Any]:
    if not is_complex(atom):
        return [x]
    return list(jnp.moveaxis(jax.random.key_data(x), -1, 0)) if is_key(type_of(atom)) else [x.real, x.imag]


def _of_parts(body: ClosedJaxpr) -> ClosedJaxpr:
    """Return the body of a loop or branch on two parts for each complex array."""
    atoms, results = body.jaxpr.invars, body.jaxpr.outvars

    def function(*parts: Any) -> list[Any]:
        values = evaluate(body, _joined(atoms, parts, _from_parts))
        return [part for atom, each in zip(results, values, strict=True) for part in _split(atom, each)]

    return trace(function, *(jax.ShapeDtypeStruct(each.aval.shape, type_of(each)) for each in _as_parts(atoms)))[0]


@COMPLEX.add(kind="loop")
def around_bodies(lowering: Lowering, equation: JaxprEqn, *operands: Any) -> list[Any]:
    """Lower a loop or branch with each complex array as two parts."""
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
    pairs = zip(equation.invars, operands, strict=True)
    parts = [_part(each, part) for atom, each in pairs for part in (("real", "imag") if is_complex(atom) else ("",))]
    of_real = equation.replace(invars=invars, outvars=outvars, params=params)
    results = RULES.of(equation)(lowering, of_real, *parts)
    return _joined(equation.outvars, results, lambda _, *parts: Complex(*parts))


@COMPLEX.add("complex")
def joined(lowering: Lowering, equation: JaxprEqn, real: Operand, imag: Operand) -> Complex:
    """Return two real arrays as a complex array."""
    return Complex(real, imag)


@COMPLEX.add("real")
def real_part(lowering: Lowering, equation: JaxprEqn, x: Any) -> Operand:
    """Return the real part."""
    return _part(x, "real")


@COMPLEX.add("imag")
def imaginary_part(lowering: Lowering, equation: JaxprEqn, x: Any) -> Operand:
    """Return the imaginary part."""
    return _part(x, "imag")


@COMPLEX.add("convert_element_type")
def convert(lowering: Lowering, equation: JaxprEqn, x: Any) -> Any:
    """Cast both parts; a real result has the real part."""
    dtype = np.dtype(equation.params["new_dtype"])
    of_part = np.dtype(jnp.finfo(dtype).dtype) if dtype.kind == "c" else dtype

    def cast(name: str) -> Operand:
        return RULES.of(equation)(lowering, _of_real(equation, new_dtype=of_part), _part(x, name))

    if dtype.kind != "c":
        return cast("real")
    is_real = not is_complex(equation.invars[0])
    return Complex(cast("real"), np.zeros(shape_of(x), of_part) if is_real else cast("imag"))


@COMPLEX.add(kind="transform")
def transform(lowering: Lowering, equation: JaxprEqn, x: Any) -> Any:
    """Write a Fourier transform over the last axes; the result of an inverse real transform is real."""
    kind, lengths = equation.params["fft_type"].name, equation.params["fft_lengths"]
    parts: list[Operand] = [_part(x, "real"), _part(x, "imag")] if is_complex(equation.invars[0]) else [x]
    axes = range(len(shape_of(parts[0])) - len(lengths), len(shape_of(parts[0])))
    inverse = kind in ("IFFT", "IRFFT")
    order = list(zip(axes, lengths, strict=True))
    # The halved axis is first in a forward transform and last in an inverse transform.
    for axis, length in order if kind == "IRFFT" else reversed(order):
        half = kind in ("RFFT", "IRFFT") and axis == axes[-1]
        parts = _transformed(lowering, parts, axis, int(length), inverse=inverse, half=half)
    return parts[0] if len(parts) == 1 else Complex(*parts)


#: Powers of two from here on are faster as `DFT`, which needs this opset.
_LONG, _DFT_OPSET = 1024, 17
#: The opset that made the addend of ``Gemm`` optional.
_GEMM_OPSET = 11


def _transformed(
    lowering: Lowering, parts: Sequence[Operand], axis: int, length: int, *, inverse: bool, half: bool
) -> list[Operand]:
    """Transform the parts along an axis. The inverse of ``half`` a spectrum has only a real part."""
    writer, rank = lowering.writer, len(shape_of(parts[0]))
    order = [*(other for other in range(rank) if other != axis), axis]
    back = np.argsort(order).tolist()
    parts = [transpose(writer, part, order) for part in parts]
    long = length >= _LONG and length & (length - 1) == 0 and writer.opset >= _DFT_OPSET
    found = (_by_operator if long else _by_matrix)(lowering, parts, length, inverse, half)
    return [transpose(writer, part, back) for part in found]


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
