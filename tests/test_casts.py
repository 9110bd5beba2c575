"""Casts that lose values: what the predicate says, and that no stream takes such a cast for harmless."""

from __future__ import annotations

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest
from jax import lax
from lowering_verifier import verify_lowering
from onnx import numpy_helper
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.jaxprs.casts import converted, kept
from jaxrnn.streaming import rewriting

TYPES = """
bool int4 uint4 int8 uint8 int16 uint16 int32 uint32 int64 uint64 float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3fn
float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float16 bfloat16 float32 float64 complex64
complex128
"""
TYPES = [np.dtype(getattr(jnp, name, bool)) for name in TYPES.split()]


def values_of(dtype):
    """All values of a type of at most 16 bits; of other types the ends, powers of two, and their neighbours."""
    if dtype == np.bool_:
        return np.array([False, True])
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        if info.bits <= 16:
            return np.arange(int(info.min), int(info.max) + 1).astype(dtype)
        near = {sign * ((1 << bit) + off) for bit in range(info.bits) for off in (-1, 0, 1) for sign in (1, -1)}
        return np.array(sorted(each for each in near if info.min <= each <= info.max), dtype)
    bits = jnp.finfo(dtype).bits
    if bits <= 16:
        return np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16).view(dtype)
    info = jnp.finfo(dtype)
    numbers = [info.max, info.smallest_normal, info.smallest_subnormal, 1 + info.eps, np.inf, np.nan, 0.0, 1.0]
    numbers = np.array([sign * number for number in map(float, numbers) for sign in (1, -1)])
    return np.append(numbers.astype(dtype), np.asarray(1j if dtype.kind == "c" else 1).astype(dtype))


def wide(x):
    """The numbers as complex128, and the signs of zeros."""
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN
        x = x.astype(np.complex128)
    return x, np.signbit(x.real), np.signbit(x.imag)


def is_equal(before, after):
    """Equal as complex128, and after a cast back, because some integers of 64 bits have equal neighbours there."""
    back = converted(after, before.dtype)
    pairs = [zip(wide(before), wide(each), strict=True) for each in (after, back)]
    same = all(np.array_equal(one, other, equal_nan=one.dtype.kind == "c") for pair in pairs for one, other in pair)
    return same and (jnp.issubdtype(before.dtype, jnp.inexact) or np.array_equal(before, back))


@pytest.mark.parametrize("before", TYPES, ids=str)
def test_what_a_cast_keeps(before):
    """The values of all types of at most 16 bits, one by one."""
    values = values_of(before)
    with np.errstate(invalid="ignore"):  # NumPy compares NaN of some types with a warning
        for after in TYPES:
            assert kept(before, after).all == is_equal(values, converted(values, after)), after


@pytest.mark.parametrize(
    ("before", "after", "keeps"),
    [
        ("float32", "bfloat16", True),
        ("int32", "bfloat16", True),
        ("int16", "float16", True),
        ("float16", "complex64", True),
        ("uint16", "float16", False),  # 65,535 is rounded up to infinity
        ("float32", "float16", False),
        ("bfloat16", "float16", False),
        ("float16", "float8_e4m3fn", False),
        ("float16", "int32", False),
        ("uint8", "int8", False),
        ("complex64", "float32", False),
    ],
)
def test_ranges(before, after, keeps):
    """A cast that only rounds keeps the range."""
    assert kept(np.dtype(before), np.dtype(after)).range is keeps


def positions(x):
    return jnp.arange(x.shape[0])


def summed_to(kind, x):
    """The frames up to the length, which a cast may change."""
    limit = jnp.asarray(x.shape[0]).astype(kind).astype(jnp.int32)
    return lax.fori_loop(0, limit, lambda i, c: c + x[i], jnp.zeros(x.shape[1:]))


def spread(x, kind):
    """Deviations from the mean, through a type."""
    return ((x - x.mean(0)).astype(kind).astype(jnp.float32) ** 2).sum(0)


#: Functions of frames near 1000, and words of the error; no words if the stream is right.
STREAMS = {
    "float16 to bfloat16": (lambda x: spread(x.astype(jnp.float16), jnp.bfloat16), "rounds frames to bfloat16"),
    "bfloat16 to float16": (lambda x: spread((100 * x).astype(jnp.bfloat16), jnp.float16), "rounds frames to float16"),
    "a softmax": (
        lambda x: jnp.exp((x.astype(jnp.float16) - x.astype(jnp.float16).max(0)).astype(jnp.bfloat16)).sum(0),
        "cast the frames to bfloat16 before, or sum in float16",
    ),
    "float32 to float16": (lambda x: spread(x, jnp.float16), "lacks values of float32"),
    "float16 to float32": (lambda x: spread(x.astype(jnp.float16), jnp.float32), ""),
    "the deviation of float16": (lambda x: x.astype(jnp.float16).std(0), ""),
    "a limit of uint8": (lambda x: summed_to(jnp.uint8, x), "known only when the stream has ended"),
    "a limit of int16": (lambda x: summed_to(jnp.int16, x), "known only when the stream has ended"),
    "a limit of int32": (lambda x: summed_to(jnp.int32, x), ""),
    "a first number of uint8": (
        lambda x: lax.fori_loop(jnp.asarray(257).astype(jnp.uint8).astype(jnp.int32), x.shape[0],
                                lambda i, c: c + x[i], jnp.zeros(x.shape[1:])),
        "",
    ),
    "counts in int8": (
        lambda x: x[jnp.cumsum(jnp.ones(x.shape[0], jnp.int8), dtype=jnp.int8).astype(jnp.int32) - 1],
        "not a fixed step forward",
    ),
    "positions in int8": (lambda x: jnp.where((positions(x).astype(jnp.int8) >= 0)[:, None], x, 0), ""),
    "positions in bfloat16": (lambda x: x + positions(x).astype(jnp.bfloat16).astype(x.dtype)[:, None], ""),
    "rows in uint8": (lambda x: x[positions(x).astype(jnp.uint8).astype(jnp.int32)], "not a fixed step forward"),
    "places in uint8": (lambda x: lax.argmax(x, 0, jnp.uint8), "places are uint8"),
    "weights in int8": (
        lambda x: lax.dot_general(
            (jnp.abs(positions(x)[:, None] - positions(x)) <= 2).astype(jnp.int8),
            x,
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        ),
        "",
    ),
    "lengths in uint8": (lambda x: x[0] + jnp.asarray(x.shape[0]).astype(jnp.uint8).astype(x.dtype), ""),
    "a length that is constant": (
        lambda x: jnp.where((positions(x) < x.shape[0] // 6 - (x.shape[0] + 6) // 6 + 6)[:, None], x, 0),
        "",
    ),
    "positions that overflow": (lambda x: jnp.where((positions(x) * 4096 * 4096 >= 0)[:, None], x, 0), ""),
    "a product that overflows": (lambda x: jnp.where((positions(x) * 2000 * 2000 * 10 >= 0)[:, None], x, 0), ""),
    "a distance in float16": (
        lambda x: jnp.tril(0.99 ** (positions(x)[:, None] - positions(x)).astype(jnp.float16).astype(x.dtype)) @ x,
        "",
    ),
    "a distance in 8 bits": (
        lambda x: jnp.tril(0.99 ** (positions(x)[:, None] - positions(x)).astype(jnp.float8_e4m3).astype(x.dtype)) @ x,
        "rounds, wraps or overflows",
    ),
    "scores in float16": (
        lambda x: jnp.tril((x @ x.T).astype(jnp.float16)).astype(x.dtype) @ x,
        "rounds, wraps or overflows",
    ),
    "scores in bfloat16": (lambda x: jnp.tril((x @ x.T).astype(jnp.bfloat16)).astype(x.dtype) @ x, ""),
}  # fmt: skip
QUICK = [name for name, (_, words) in STREAMS.items() if words]
QUICK += ["a first number of uint8", "positions that overflow", "a product that overflows", "a length that is constant"]
QUICK += ["weights in int8"]
THOROUGH = ["a limit of int32", "the deviation of float16", "lengths in uint8"]


@pytest.mark.parametrize("name", of_tiers(STREAMS, QUICK, THOROUGH))
def test_streams(name):
    """A stream is right beyond the range of a type, or refused."""
    function, words = STREAMS[name]
    example = jax.ShapeDtypeStruct((20, 2), np.float32)
    if words:
        check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, example, axes=0)
        return
    streamed = jaxrnn.stream(function, example, axes=0, constraints=["S >= 2"], pulse=20)
    x = np.random.default_rng(0).normal(1000, 1, (300, 2)).astype(np.float32)
    found, expected = streamed.run(None, x), jax.jit(function)(x)
    np.testing.assert_allclose(found, expected, rtol=2e-2 if "bfloat16" in name else 2e-3)


#: Functions of which only a recording beyond the range of a type shows that the trace for all lengths is wrong.
WRONG = {
    "int8": (lambda n: jnp.arange(n).astype(jnp.int8), 128),
    "int16": (lambda n: jnp.arange(n).astype(jnp.int16), 32768),
    "bfloat16": (lambda n: jnp.asarray(n).astype(jnp.bfloat16), 257),
    "float16 of a count": (lambda n: lax.iota(jnp.float16, n), 2049),
    "half as many": (lambda n: jnp.arange(n // 2).astype(jnp.uint8), 512),
    "inside of a loop": (lambda n: lax.map(lambda i: i.astype(jnp.int8), jnp.arange(n)), 128),
}


@pytest.mark.parametrize("name", of_tiers(WRONG, ["int8", "half as many", "inside of a loop"]))
def test_lengths_past_the_range_are_compared(name):
    """A branch that symbolic lengths never take is found, unless constraints exclude the lengths."""
    narrow, last = WRONG[name]

    def function(x):
        size, extra = x.shape[0], narrow(x.shape[0])
        return x + (1 if isinstance(size, int) and size > last else 0), extra

    x = jax.ShapeDtypeStruct((20,), np.float32)
    check_refused(jaxrnn.StreamError, "depends on the length", jaxrnn.stream, function, x, axes=0)
    jaxrnn.stream(function, x, axes=0, constraints=[f"S <= {last}"])


def test_loops_are_compared_as_they_are_streamed():
    """A wrong rewriting of a loop is found at lengths past the range."""
    example, forms = jax.ShapeDtypeStruct((20, 2), np.float32), rewriting._FORMS
    with mock.patch.dict(forms, {"convert_element_type": lambda equation, x: x}):
        function = lambda x: summed_to(jnp.uint8, x)  # noqa: E731
        check_refused(jaxrnn.StreamError, "at 257 frames, output differs", jaxrnn.stream, function, example, axes=0)


def counted(x, kind):
    """A band by row and column numbers, which a running count of all pairs gives."""
    size = x.shape[0]
    n = lax.pad(jnp.ones(size * size, kind), kind(0), [(1, -1, 0)])
    n = lax.cumsum(n).astype(jnp.int32).reshape(size, size)
    return jnp.where(jnp.abs(n // size - n % size) <= 2, x @ x.T, 0) @ x


def test_counts_of_pairs():
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    streamed = jaxrnn.stream(lambda x: counted(x, jnp.int32), x, axes=0)
    np.testing.assert_allclose(streamed.run(None, x), counted(x, jnp.int32), rtol=1e-4)
    check_refused(jaxrnn.StreamError, "for each pair", jaxrnn.stream, lambda x: counted(x, jnp.int8), x, axes=0)
    # The divisor alone refuses them today, so the forms of the count itself are looked at.
    (size,) = jax.export.symbolic_shape("S")
    for kind, known in ((jnp.int32, True), (jnp.int8, False), (jnp.int16, False)):
        count = lambda x, kind=kind: lax.cumsum(lax.pad(lax.full(x.shape, 1, kind), kind(0), [(1, -1, 0)]))  # noqa: E731
        jaxpr = jax.jit(count).trace(jax.ShapeDtypeStruct((size,), np.float32)).jaxpr.jaxpr
        assert (jaxpr.outvars[0] in rewriting.forms_of(jaxpr)) == known, kind


def test_arrays_that_are_too_large_to_compare():
    function = lambda x: x + jnp.arange(x.shape[0]).astype(jnp.int16).astype(x.dtype)[:, None]  # noqa: E731
    x = jax.ShapeDtypeStruct((20, 1 << 16), np.float32)
    check_refused(jaxrnn.StreamError, "int16.* give `constraints=", jaxrnn.stream, function, x, axes=0)
    jaxrnn.stream(function, x, axes=0, constraints=["S <= 32768"])


# -- ONNX


def test_casts_that_are_merged():
    """Only if the first cast keeps every value: float64 has fewer digits than int64."""
    x = np.array([2**53 + 2**29 + 1, 1])
    verify_lowering(lambda x: x.astype(jnp.float64).astype(jnp.float32), x, operators={"Cast": 2})
    verify_lowering(lambda x: x.astype(jnp.float64).astype(jnp.float32), x.astype(np.int32), operators={"Cast": 1})


def test_products_of_a_narrower_type():
    """The sum is rounded, and not the operands."""
    x, y = np.array([[1e5, 2e5, 3]], np.float32), np.array([[1e-5], [2e-5], [1]], np.float32)
    narrow = lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float16)  # noqa: E731
    verify_lowering(narrow, x, y, operators={"MatMul": 1, "Cast": 1})


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint32", "uint64", "float16", "float", "double"])
def test_lengths_in_files(kind):
    """A size in a narrow type is not known for all lengths."""
    code = {"int8": 3, "uint8": 2, "int16": 5, "int32": 6, "uint32": 12, "uint64": 13, "float16": 10, "float": 1}
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[T,2] x) => (float[U,2] y) { s = Shape <start = 0, end = 1> '
        f"(x)\n n = Cast <to = {code.get(kind, 11)}> (s)\n m = Cast <to = 7> (n)\n y = Slice (x, z, m, z) }}"
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "z"))
    model, x = jaxrnn.load(proto), {"x": np.ones((300, 2), np.float32)}
    assert len(model(x)["y"]) == {"int8": 44, "uint8": 44}.get(kind, 300)
    if kind in ("int8", "uint8", "int16", "float16"):
        check_refused(jaxrnn.StreamError, "Slice", model.stream, "T")
    else:
        assert len(model.stream("T", pulse=50).run(model.params, x)["y"]) == 300
