"""Operators on elements, reductions, complex numbers and quantised types, written as ONNX."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest
from jax import lax
from lowering_verifier import lowered, operators_of, verify_lowering, verify_refusals
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.cells.forms import plain_forms
from jaxrnn.errors import UnsupportedError
from jaxrnn.onnx.operators import quantization as q

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = (*SIGNED, *UNSIGNED)
FLOATS = ("float32", "float16")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-8, -1e-8, 1e-4, -3e-3, 0.49999997, 7.25, -20.0, 60.0]
ENDLESS = [*SPECIAL, np.inf, -np.inf, np.nan]


def integers(dtype, edges=True):
    """Small numbers, and the edges of the type."""
    info = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 100] + ([-1, -2, -7, -100] if info.min else [])
    return np.array([*numbers, *([info.min, info.max, info.max - 1] if edges else [])], dtype)


def pairs(numbers):
    """Every number with every other, as two arrays."""
    x, y = zip(*itertools.product(numbers, numbers), strict=True)
    return np.array(x, numbers.dtype), np.array(y, numbers.dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(dtype):
    """Sums, products, quotients, remainders, shifts, comparisons: with zero divisors, and beyond the type."""
    functions = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.lt, lax.ge, lax.eq, lax.ne]
    functions += [lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic]
    verify_lowering(lambda x, y: [each(x, y) for each in functions], *pairs(integers(dtype)))
    unary = [lax.sign, lax.bitwise_not, lax.population_count, lax.clz, lambda x: lax.integer_pow(x, 3)]
    unary += [lambda x, f=each, c=c: f(x, jnp.array(c, x.dtype)) for each in (lax.div, lax.rem) for c in (3, 7)]
    unary += [lax.abs, lax.neg] if dtype in SIGNED else []
    unary += [lambda x: x & 15, lambda x: x >> 2, lambda x: x << 3]
    verify_lowering(lambda x: [each(x) for each in unary], integers(dtype))


@pytest.mark.parametrize("dtype", of_tiers(INTEGERS, ["int8", "int64", "uint64"], ["uint16"]))
def test_reductions_of_integers_wrap_around(dtype):
    """Sums and products beyond the type, and extremes beyond the digits of floats, along any axes."""
    x = np.random.default_rng(0).permutation(np.resize(integers(dtype), 24)).reshape(2, 3, 4) | np.array(1, dtype)
    reductions = [lax.reduce_sum, lax.reduce_prod, lax.reduce_max, lax.reduce_min]
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        verify_lowering(lambda x, axes=axes: [each(x, axes) for each in reductions], x)
    functions = [lambda x, f=each: f(x, 1, np.int32) for each in (lax.argmax, lax.argmin)] + [lax.cumsum, lax.cumprod]
    zero, one = np.zeros((), dtype), np.ones((), dtype)
    for start, combine in ((zero, lax.add), (one, lax.mul)):
        functions.append(lambda x, s=start, c=combine: lax.reduce_window(x, s, c, (1, 2, 3), (1, 1, 1), "SAME"))
    verify_lowering(lambda x: [each(x) for each in functions], x)


def test_a_sum_of_integers_is_one_node():
    """In an engine's own reduction where that is exact."""
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    for axis in (0, 1):
        verify_lowering(lambda x, axis=axis: lax.reduce_sum(x, (axis,)), x, operators={"MatMul": 1})
    verify_lowering(lambda x: jnp.sum(x, 0, dtype=np.int32), x > 3, operators={"Cast": 1, "ReduceSum": 1})


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float16", "float32", "float64", "bool"])
def test_reductions_of_nothing(dtype):
    """Where an axis has no elements, and others have some."""
    x = np.zeros((0, 3), dtype)
    functions = [lambda x: jnp.max(x, 0, initial=0), lambda x: jnp.min(x, 0, initial=1), jnp.sum, jnp.prod, jnp.any]
    verify_lowering(lambda x: [each(x) for each in (*functions, functools.partial(jnp.all, axis=0))], x)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits(dtype):
    """Bits of integers are operators since opset 18."""
    verify_lowering(lambda x, y: [x & y, x | y, x ^ y], *pairs(integers(dtype)), opset=18)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_masks_of_low_bits(dtype):
    """Before opset 18, a mask of low bits is a remainder, and a mask of all bits has none."""
    x = np.array([0, 1, 7, 8, 100, np.iinfo(dtype).max], dtype)
    verify_lowering(lambda x: x & np.asarray(7, dtype), x, opset=17)
    with pytest.raises(jaxrnn.UnsupportedError, match="opset 18"):
        verify_lowering(lambda x: x & np.asarray(np.iinfo(dtype).max, dtype), x, opset=17)


def test_booleans():
    """Logic, and the order of booleans."""
    x, y = pairs(np.array([False, True]))
    functions = [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.eq, lax.ne, lax.lt, lax.ge, lax.max, lax.min]
    verify_lowering(lambda x, y: [each(x, y) for each in functions] + [~x, jnp.where(x, y, x)], x, y)


@pytest.mark.parametrize("dtype", of_tiers(FLOATS, FLOATS[1:]))
def test_functions_of_floats(dtype):
    """Each is exact near 0, and has JAX's infinities and NaN."""
    plain = [lax.abs, lax.neg, lax.sign, lax.ceil, lax.floor, lax.exp, lax.sqrt, lax.square, lax.is_finite, lax.erf]
    plain += [lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)]
    plain += [lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)]
    plain += [lax.log, lax.cbrt, lax.expm1, lax.log1p, lax.exp2, lax.tanh, lax.sin, lax.cos, lax.rsqrt]
    plain += [lambda x, n=n: lax.integer_pow(x, n) for n in (0, 1, 3, 5, -1, -2)]
    plain += [jnp.log2, lambda x: jnp.polyval(jnp.asarray([2, -1, 0.5], x.dtype), x / 8)]
    plain += [getattr(lax, "one_minus_square", lambda x: 1 - lax.square(x))]  # a primitive from JAX 0.12 on
    for function in plain:
        numbers = np.array(ENDLESS if function not in (lax.sin, lax.cos) else SPECIAL, dtype)
        verify_lowering(function, numbers, scale=1e-3 if dtype == "float32" else None, roundings=16)


def test_digits_that_engines_lack():
    """A file has no temporary node; the error names the function and the line."""
    with pytest.raises(UnsupportedError, match=r"'erfc' .*test_lowering_elements.*: ONNX has no erfc with the digits"):
        lowered(lambda x: lax.erfc(x) * 2, np.ones(3))


def test_small_results_are_exact():
    """To some roundings of their own size."""
    x = np.float32([-0.9, -0.5, -1e-3, -1e-6, -1e-20, 0, 1e-30, 1e-7, 1e-4, 0.02, 0.3, 1, 4, 100, 3e38])
    verify_lowering(lax.log1p, x, scale=0)
    verify_lowering(lax.expm1, x[:-2], scale=0, roundings=6)
    verify_lowering(lax.erfc, np.float32([-6, -1, -1e-5, 0, 0.1, 0.49, 0.51, 1, 2, 4, 7, 9]), scale=0, roundings=24)


@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_of_floats(dtype):
    """NaN is propagated by the larger and the smaller, and angles are of all quadrants."""
    x, y = pairs(np.array(ENDLESS, dtype))
    functions = [lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.lt, lax.ge, lax.eq, lax.ne]
    verify_lowering(lambda x, y: [each(x, y) for each in functions], x, y, scale=1e-3)
    verify_lowering(lax.atan2, x, y, signed_zeros=True)
    x, y = pairs(np.array([0.0, 1, -1, 0.3, -5, 1e-4, np.nan, 40], dtype))
    verify_lowering(lax.pow, np.abs(x), y / 8)


TYPES = [*INTEGERS, "bool", "float16", "float32", "float64", "bfloat16"]


@pytest.mark.parametrize("source", TYPES)
def test_conversions(source):
    """Between all types: integers lose high bits, floats are cut off and have their limits, NaN is 0."""
    source = np.dtype(getattr(ml_dtypes, source, source))
    if source.kind in "iu":
        numbers = integers(source)
    elif source.kind == "b":
        numbers = np.array([False, True])
    else:
        numbers = np.array([*ENDLESS, 300.7, -300.7, 3e9, -3e9, 7e4, 1e19, -1e19], np.float64)
        with np.errstate(over="ignore"):
            numbers = numbers.astype(source)
    targets = [np.dtype(getattr(ml_dtypes, name, name)) for name in TYPES]
    verify_lowering(lambda x: [_readable(lax.convert_element_type(x, each)) for each in targets], _readable(numbers))


def _readable(x):
    """ONNX Runtime takes no bfloat16 from NumPy."""
    return x.astype(np.float32) if x.dtype == jnp.bfloat16 else x


def test_precision():
    """Rounding to bfloat16 inside float32."""
    x = np.float32([1.00390625, 1.01171875, -3.3, 1e-40, 3e38, np.inf, np.nan])
    verify_lowering(lambda x: lax.reduce_precision(x, 8, 7), x, roundings=0)


def test_selection_and_limits():
    """Cases by number, and limits that are numbers or arrays, of every type."""
    for dtype in ("int8", "int16", "uint64", "bool", "float16", "float32"):
        cases = [np.arange(6).astype(dtype) for _ in range(3)]
        which = np.int32([0, 1, 2, 0, 1, 2])
        verify_lowering(lax.select_n, which, *cases)
        verify_lowering(lax.select_n, which < 1, *cases[:2])
        if dtype not in ("bool", "uint64"):
            low, high = np.array(1, dtype), np.array(3, dtype)
            verify_lowering(lax.clamp, low, cases[0], high)
            verify_lowering(lax.clamp, np.full(6, low), cases[0], np.full(6, high))


def test_one_condition_of_a_matrix():
    """A condition that was an array of one element chooses a number, which has no axes."""
    x = np.float32([[3.0]])
    verify_lowering(lambda x: jnp.where((x > 2).reshape(()), x[0, 0], x[0, 0] + 1), x)


MATRIX = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "uint32", "bool"])
def test_extremes_and_their_places(dtype):
    """NaN is the largest and the smallest, wherever it is; of equal ones the first counts."""
    x = (MATRIX * 3).astype(dtype)
    if x.dtype.kind == "f":
        x[0, 0], x[2, 1], x[4, 2], x[1, 2] = np.nan, np.nan, np.nan, np.inf
    for axis in (0, 1):
        functions = [jnp.max, jnp.min, jnp.argmax, jnp.argmin]
        verify_lowering(lambda x, axis=axis, f=functions: [each(x, axis=axis) for each in f], x)


def test_softmax_stays_one_node():
    """What NaN needs is written after patterns are found."""
    model = verify_lowering(lambda x: jax.nn.softmax(x), MATRIX)
    assert operators_of(model.graph) == {"Softmax": 1}


def test_reductions_of_bits():
    """Halves with halves."""
    x = np.random.default_rng(1).integers(-99, 99, (5, 3)).astype(np.int32)
    functions = [jnp.bitwise_and.reduce, jnp.bitwise_or.reduce, jnp.bitwise_xor.reduce]
    verify_lowering(lambda x: [each(x, axis=axis) for each in functions for axis in (0, 1)], x, opset=18)
    parity = functools.partial(lax.reduce_xor, axes=(0,))
    verify_lowering(lambda x: [jnp.all(x), jnp.any(x, 0), parity(x)], MATRIX > 0)


RNG = np.random.default_rng(0)


def parts(z):
    """What an engine can give."""
    return [jnp.real(z), jnp.imag(z)]


@pytest.mark.parametrize("length", of_tiers([1, 2, 7, 12, 64, 1024], quick=[12]))
@pytest.mark.parametrize("known", [(), (1,)])
def test_transforms(length, known):
    """All four, there and back, of any length."""

    def function(x, y):
        z = lax.complex(x, y)
        half = jnp.fft.rfft(x * y)
        both = [jnp.fft.fft(z), jnp.fft.ifft(z, axis=0), jnp.fft.ifft(z), half]
        return [each for z in both for each in parts(z)] + [jnp.fft.irfft(half * 2, n=length), jnp.fft.irfft(z, n=5)]

    x, y = (RNG.normal(size=(3, length)).astype(np.float32) for _ in range(2))
    verify_lowering(function, x, y, known=known, roundings=32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transforms_of_several_axes(dtype):
    """Of images, and in float64."""
    x = RNG.normal(size=(2, 6, 8)).astype(dtype)
    verify_lowering(lambda x: parts(jnp.fft.rfft2(x)), x, roundings=16)
    verify_lowering(lambda x: [*parts(jnp.fft.fft2(x)), jnp.fft.irfft2(jnp.fft.fft2(x)[..., :5])], x, roundings=16)
    verify_lowering(lambda x: parts(jnp.fft.ifftn(lax.complex(x, 0.5 * x))), x, roundings=16)


def test_arithmetic():
    """Of complex numbers with each other, with known ones and with real ones; and what only moves them."""
    known = (RNG.normal(size=4) + 1j * RNG.normal(size=4)).astype(np.complex64)

    def function(a, b, c):
        z, w = lax.complex(a, b), lax.complex(b, c)
        values = [z + w, z - known, z * w, z * 2, z / w, known / z, jnp.conj(z), -z, z**2, z**-1, z**3, jnp.exp(z)]
        values += [jnp.log(z), jnp.where(a > 0, z, w), jnp.concatenate([z, known])[::2], z.reshape(2, 2).T]
        values += [jnp.pad(z, (1, 2)), z[None] @ w[:, None], jnp.outer(z, known).sum(0), a.astype(jnp.complex64)]
        real = [jnp.abs(z), jnp.angle(z), z == w, z != z, jnp.real(z * jnp.conj(z)), jnp.abs(known)]
        values += [lax.dot(a, jnp.outer(w, z)), lax.dot(known.reshape(2, 2), a.reshape(2, 2)), lax.dot(a, known)]
        values.append(lax.reduce_window(z, np.complex64(0), lax.add, (2,), (1,), "VALID"))
        beyond = functools.partial(jnp.take, z, jnp.array([1, 9]), mode="fill")
        values += [beyond(), beyond(fill_value=1 + 2j)]
        return [part for z in values for part in parts(z)] + real

    verify_lowering(function, *RNG.normal(size=(3, 4)).astype(np.float32), roundings=16)


def test_magnitudes_do_not_vanish():
    """Nor overflow, however small or large the parts are; and infinite parts have an infinite magnitude."""
    a, b = np.float32(
        [[3e-30, 0, 4e30, -5e-37, 0, np.inf, -np.inf, 1], [4e-30, 0, 3e30, 0, -2, np.inf, np.inf, np.inf]]
    )
    verify_lowering(lambda a, b: jnp.abs(lax.complex(a, b)), a, b, scale=0)


def test_what_has_no_parts():
    """Functions that are not written of complex numbers are refused, and complex inputs and outputs."""
    with pytest.raises(UnsupportedError, match="complex"):
        lowered(lambda a, b: jnp.abs(jnp.sin(lax.complex(a, b))), *np.float32([[1], [2]]))
    check_refused(UnsupportedError, "complex", lowered, lambda a, b: lax.complex(a, b), *np.float32([[1], [2]]))
    check_refused(UnsupportedError, "complex", lowered, jnp.abs, np.complex64([1j]))


def test_a_refusal_is_the_only_one():
    """Rules go on with an array in place of a result that could not be written, also of complex numbers and keys."""

    def complexes(a, b):
        z = lax.complex(a, b)
        looped = lax.fori_loop(0, 3, lambda _, each: each * z, z)
        return [part for each in (jnp.exp(looped), jnp.concatenate([z, -z])) for part in parts(each)]

    def keys(seed):
        return jax.random.key_data(jax.random.clone(jax.random.wrap_key_data(seed)))

    assert verify_refusals(complexes, *RNG.normal(size=(2, 4)).astype(np.float32)) > 20
    assert verify_refusals(keys, np.uint32([3, 7])) > 1
    check_refused(
        UnsupportedError, "^'sqrt'.*complex numbers: use real and imaginary parts$", lowered,
        lambda a: jnp.abs(jnp.sqrt(jnp.fft.rfft(a)) * 2), np.float32([1, 2]),
    )  # fmt: skip


X = RNG.normal(size=(2, 6, 8)).astype(np.float32)
BYTES = RNG.integers(0, 255, (6, 8)).astype(np.uint8)
WEIGHT = RNG.integers(-99, 99, (8, 9)).astype(np.int8)
SCALES, ZEROS = np.abs(RNG.normal(size=9)).astype(np.float32), RNG.integers(-9, 9, 9).astype(np.int8)
S, Z = np.float32(0.05), np.uint8(7)

CASES = {
    "QuantizeLinear": (lambda x: q.quantize_linear(x, S, Z), X),
    "DequantizeLinear": (lambda x: q.dequantize_linear(x, S, Z), BYTES),
    "DynamicQuantizeLinear": (q.dynamic_quantize_linear, X),
    "MatMulInteger": (lambda x: q.matmul_integer(x, WEIGHT, Z, ZEROS), BYTES),
    "QLinearMatMul": (lambda x: q.q_linear_matmul(x, S, Z, WEIGHT, SCALES, ZEROS, np.float32(9), Z), BYTES),
    "ConvInteger": (lambda x: q.conv_integer(x, BYTES.reshape(8, 6, 1)[:, :, :1], Z, pads=[0, 1]), BYTES[None]),
    "QLinearConv": (
        lambda x: q.q_linear_conv(
            x, S, Z, WEIGHT[:6, :6, None], S, np.int8(0), np.float32(1), Z, np.arange(6, dtype=np.int32), pads=[1, 1]
        ),
        BYTES[None],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_stay_what_they_are(name):
    """One node for each, which gives the same integers."""
    function, x = CASES[name]
    with plain_forms():
        model = verify_lowering(function, x, roundings=1)
    assert name in [node.op_type for node in model.graph.node]
    assert sum(node.op_type not in ("Reshape", "Squeeze", "Unsqueeze") for node in model.graph.node) == 1


def test_weights_stay_integers():
    """What is dequantised in the graph is bytes in the file."""
    x = RNG.normal(size=WEIGHT.shape).astype(np.float32)
    with plain_forms():
        model = verify_lowering(lambda x: x * q.dequantize_linear(WEIGHT, SCALES, ZEROS, axis=1), x)
    (weight,) = [each for each in model.graph.initializer if np.prod(each.dims) == WEIGHT.size]
    assert weight.data_type == onnx.TensorProto.INT8
    for number in (np.int8(-3), np.uint8(9), np.int32(5)):  # of no axis, as of one parameter for the whole tensor
        with plain_forms():
            verify_lowering(lambda x, number=number: x * q.dequantize_linear(np.asarray(number), S), x)


def test_what_an_opset_lacks_is_written_out():
    """Blocks of a scale, and types that came later."""
    blocks = np.abs(RNG.normal(size=(2, 8))).astype(np.float32)
    with plain_forms():
        verify_lowering(lambda x: q.quantize_linear(x, blocks, axis=0, block_size=3), X[0])
        verify_lowering(lambda x: q.quantize_linear(x, S, np.int16(7)), X)
        verify_lowering(lambda x: q.dequantize_linear(x, np.float16(0.5), Z), BYTES)


@pytest.mark.thorough
def test_streams_keep_them():
    """On elements and on rows of frames; what sees several frames is what it computes."""

    def function(x):
        small = q.quantize_linear(x, S, Z)
        product = q.q_linear_matmul(small, S, Z, WEIGHT[:3], SCALES, ZEROS, np.float32(9), Z)
        return q.dequantize_linear(product, S, Z)

    with plain_forms():
        streamed = jaxrnn.stream(function, X[0, :, :3], axes=0, pulse=2)
        state = streamed.init()
        names = {each.primitive.name for each in jax.make_jaxpr(streamed.step)(None, state, X[0, :2, :3]).eqns}
        assert "onnx_operator" in names
        np.testing.assert_array_equal(streamed.run(None, X[0, :, :3]), function(X[0, :, :3]))
