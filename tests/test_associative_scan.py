"""`associative_scan`: JAX's own over numbers of elements, and streamed exactly, one by one and in parallel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusals import check_refused
from stream_functions import CASES, affine, conv, linear_recurrence
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn.signal import associative_scan
from jaxrnn.streaming.rules import recurrence

X = jax.ShapeDtypeStruct((20, 3), np.float32)


def oscillators(x):
    """Complex states: a diagonal state space model whose matrix is the same in every frame."""
    u = lax.complex(x, conv(x, (0, 1), kernel=np.ones((2, 3, 3)) / 3))
    poles = jnp.exp(jnp.array([-0.1 + 1j, -0.2 + 0.5j, -0.5 - 1j])).astype(u.dtype)
    return associative_scan(affine, (jnp.broadcast_to(poles, u.shape), u))[1].real


def rotations(x):
    """Products of matrices, a matrix a frame."""
    c, s = jnp.cos(x[:, 0]), jnp.tanh(x[:, 1])
    return associative_scan(jnp.matmul, jnp.stack([c, s, -s, c], 1).reshape(-1, 2, 2))


def segments(x):
    """Sums that begin anew where a flag says so."""

    def add(one, other):
        return one[0] | other[0], jnp.where(other[0], other[1], one[1] + other[1])

    return associative_scan(add, (x[:, :1] > 0.5, x))


def layers(x):
    """A loop over layers, each with a state of its own, over channels by vmap."""

    def layer(y, decay):
        one = jax.vmap(linear_recurrence, in_axes=1, out_axes=1)(y[:, :, None] * decay)[:, :, 0]
        return jnp.tanh(one) + conv(y, (2, 0)), None

    return lax.scan(layer, x, jnp.asarray([0.5, 0.9, 0.2], x.dtype))[0]


def derivative(x):
    """A derivative along the recurrence, which is associative as well."""
    return jax.jvp(linear_recurrence, (x,), (conv(x, (0, 1), kernel=np.ones((2, 3, 3))),))


def of_one_stream(x):
    """One input for two recurrences: JAX maps the loop so that it is no associative one any more."""
    gates = jnp.stack([jnp.tanh(x), jnp.cos(x)])
    return jax.vmap(lambda gate: associative_scan(affine, (gate, x))[1])(gates)


FUNCTIONS = {
    **{name: (CASES[name].function, {}) for name in ("linear recurrence", "parallel resistors", "running softmax")},
    "oscillators": (oscillators, {}),
    "rotations": (rotations, {}),
    "segments": (segments, {}),
    "layers": (layers, {}),
    "a derivative": (derivative, {}),
    "one stream for several": (of_one_stream, {}),
    "a stride after it": (lambda x: conv(linear_recurrence(x), (2, 0), 2), {}),
    "half the frames": (lambda x: linear_recurrence(x[: x.shape[0] // 2 * 2].reshape(-1, 6)), {"multiple": 2}),
    "time on the last axis": (lambda x: associative_scan(jnp.multiply, jnp.stack([x.T, -x.T]), axis=-1), {}),
    "in a branch": (lambda x: lax.cond(np.pi > 3, linear_recurrence, jnp.sin, x), {}),
    "over channels": (lambda x: associative_scan(affine, (jnp.tanh(x), x), axis=1)[1], {}),
    "over channels, from the last": (lambda x: associative_scan(affine, (jnp.tanh(x), x), True, -1)[1], {}),
    "checkpointed and jitted": (lambda x: jax.checkpoint(jax.jit(linear_recurrence))(x), {}),
}


#: Backwards, these are like others.
WITHOUT_GRADIENTS = ("oscillators", "rotations", "half the frames", "time on the last axis", "over channels")


@pytest.fixture
def in_parallel(monkeypatch):
    """The form of all platforms but CPUs."""
    monkeypatch.setattr(recurrence, "by_platform", lambda cpu, plain, *operands: plain(*operands))


@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize(
    "name", of_tiers(FUNCTIONS, ("rotations", "one stream for several"), thorough=("a derivative",))
)
def test_streams_are_exact(name):
    function, options = FUNCTIONS[name]
    check_values(function, X.shape, **options)


@pytest.mark.nightly
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in WITHOUT_GRADIENTS])
def test_gradients(name):
    function, options = FUNCTIONS[name]
    check_gradients(function, X.shape, **{k: v for k, v in options.items() if k != "lengths"})


@pytest.mark.nightly
@pytest.mark.usefixtures("in_parallel")
@pytest.mark.parametrize("dtype", of_tiers([np.int32, np.int8], (np.int32,)))
def test_whole_numbers_are_equal_to_the_bit(dtype):
    """With frames before the first and after the last, which hold a number like no other."""

    def function(x):
        after = jnp.pad(x - 2, ((2, 3), (0, 0)), constant_values=3)
        last_seen = associative_scan(lambda a, b: jnp.where(b == 0, a, b), x % 3)
        return associative_scan(affine, (jnp.sign(after), after)), last_seen, associative_scan(jnp.logical_xor, x > 2)

    check_values(function, X.shape, dtype=dtype, tolerance=0)


@pytest.mark.thorough
def test_masks_are_needed(in_parallel, monkeypatch):
    original = recurrence.carries_of
    without = lambda step, carry, mask, frames: original(step, carry, None, frames)  # noqa: E731
    monkeypatch.setattr(recurrence, "carries_of", without)
    with pytest.raises(AssertionError):
        check_values(CASES["parallel resistors"].function, X.shape)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("reverse", [False, True])
def test_over_a_number_of_elements_it_is_that_of_jax(axis, reverse):
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    found = jax.jit(lambda x: associative_scan(affine, (x, x), reverse, axis))(x)
    expected = jax.jit(lambda x: lax.associative_scan(affine, (x, x), reverse, axis % 2))(x)
    np.testing.assert_array_equal(found, expected)
    assert associative_scan(jnp.add, x[:0]).shape == (0, 3)


@pytest.mark.parametrize("reverse", of_tiers([False, True], (False,)))
def test_one_exported_function_serves_every_length(reverse):
    (size,) = jax.export.symbolic_shape("n")
    leaf = jax.ShapeDtypeStruct((2, size), np.float32)

    def function(a, b):
        return associative_scan(affine, (a, b), reverse, 1)[1]

    def gradient(a, b):
        return jax.grad(lambda a, b: jnp.sum(function(a, b) ** 2), (0, 1))(a, b)

    for of_any_length in (function, gradient):
        exported = jax.export.export(jax.jit(of_any_length))(leaf, leaf)
        for length in (1, 2, 7):
            a, b = jax.random.normal(jax.random.key(length), (2, 2, length))
            expected = jax.jit(of_any_length)(a, b)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), exported.call(a, b), expected)


def loops_of(function, pulse, platform):
    streamed = jaxrnn.stream(function, X, axes=0, pulse=pulse)
    traced = jax.jit(streamed.step).trace(None, streamed.init(), jnp.ones((pulse, 3)))
    return traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.while")


@pytest.mark.parametrize("function", [linear_recurrence, jax.jit(rotations), derivative])
def test_a_loop_is_left_on_cpus_over_more_than_one_frame(function):
    assert [loops_of(function, pulse, "cuda") for pulse in (1, 5)] == [0, 0]
    assert [loops_of(function, pulse, "cpu") for pulse in (1, 5)] == [0, 1]


def test_the_state_is_what_later_frames_need():
    """Of ``(a, h)``, the product of all factors is not carried where only ``h`` is asked for."""
    streamed = jaxrnn.stream(linear_recurrence, X, axes=0)
    assert [(entry.kind, entry.shape) for entry in streamed.state if "scan" in entry.name] == [
        ("carry", ()),
        ("carry", (3,)),
    ]
    both = jaxrnn.stream(lambda x: associative_scan(affine, (x, x)), X, axes=0)
    assert sum(entry.shape == (3,) for entry in both.state) == 2


@pytest.mark.thorough
def test_a_factor_that_overflows_does_not_reach_the_state():
    """After 1,000 frames the product of all factors is infinite; the recurrence that is cleared now and then is not."""

    def function(x):
        a = jnp.where((jnp.arange(x.shape[0]) % 7 == 0)[:, None], 0.0, 2.0 + 0 * x)
        return associative_scan(affine, (a, x))[1]

    streamed = jaxrnn.stream(function, X, axes=0, pulse=4)
    x = jnp.ones((1000, 3))
    whole, gradient = jax.jit(jax.value_and_grad(lambda x: streamed.run(None, x).sum()))(x)
    assert np.isfinite(whole)
    assert np.all(np.isfinite(gradient))


REFUSED = {
    "from the last frame": (
        lambda x: associative_scan(jnp.add, x, reverse=True),
        r"'associative_scan' of test_associative_scan\.py:\d+.*backwards in time.*a recurrence that runs forwards",
    ),
    "JAX's own": (
        lambda x: lax.associative_scan(jnp.add, x),
        r"\(test_associative_scan\.py:\d+.*; call jaxrnn\.signal\.associative_scan, which takes the same arguments",
    ),
    "a function that changes the type": (
        lambda x: associative_scan(lambda a, b: (a + b).astype(jnp.int32), x),
        r"must return the shapes and types that it takes, float32\[1, 3\]; it returned int32\[1, 3\]",
    ),
    "a function that changes the tree": (
        lambda x: associative_scan(lambda a, b: (a[0] + b[0],), (x, x)),
        r"must return the shapes and types that it takes",
    ),
    "elements of two sizes": (
        lambda x: associative_scan(affine, (jnp.pad(x[2:], ((0, 2), (0, 0))), x)),
        r"arrays of one size along axis 0, not .*, S: .*jnp\.broadcast_to.*constraints=\['S >= 2'\]",
    ),
    "one element for all": (lambda x: associative_scan(affine, (x[:1], x)), "must have the same first dimension"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(ValueError, f"(?s){words}", jaxrnn.stream, function, X, axes=0)
