"""Operations inside each frame: indexing, scatters and linear algebra with time as a batch axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn

WIDTH = 4
POINTS = np.array([-1.0, 0.0, 1.0])


def matrices(x):
    """A well-conditioned symmetric matrix in each frame."""
    return x[:, :, None] * x[:, None] + 3 * jnp.eye(WIDTH, dtype=x.dtype)


def of_constant_matrices(x):
    """Systems of a constant matrix, with frames as columns, rows, or a batch."""
    a = jnp.asarray(np.random.default_rng(2).normal(size=(WIDTH, WIDTH)), x.dtype)
    definite = a @ a.T + jnp.eye(WIDTH, dtype=x.dtype)
    later = jnp.pad(x, ((2, 0), (0, 0)))[: x.shape[0]]
    return (
        jnp.linalg.solve(a, later.T),
        jnp.linalg.solve(a, jnp.stack([x, later], -1)),
        jax.vmap(lambda frame: jnp.linalg.solve(definite, frame))(x),
        cho_solve(cho_factor(definite), x.T).T,
        solve_triangular(definite, later.T, trans=1).T,
        lax.linalg.triangular_solve(definite, x, lower=True),
    )


def per_frame(function):
    return lambda x: jax.vmap(function)(x)


CASES = {
    "set a channel": lambda x: x.at[:, 0].set(1.0),
    "add to a channel": lambda x: x.at[:, 0].add(x[:, 1]),
    "scale channels": lambda x: x.at[:, 1:3].multiply(2.0),
    "channels first": lambda x: x.T.at[1].add(x[:, 0]).T,
    "delayed updates": lambda x: x.at[:, 0].set(jnp.pad(x[:, 1], (2, 0))[: x.shape[0]]),
    "updates from later frames": lambda x: x.at[:, 0].set(jnp.pad(x[:, 1], (0, 2))[2:]),
    "set the largest": per_frame(lambda frame: frame.at[jnp.argmax(frame)].set(0.0)),
    "the smallest of two": per_frame(lambda frame: frame.at[jnp.argmin(frame)].min(-2.0)),
    "update a slice": per_frame(lambda r: lax.dynamic_update_slice(r, 2 * r[:2], (jnp.argmax(r[:2]),))),
    "positive elements": per_frame(lambda frame: frame[jnp.nonzero(frame > 0, size=2, fill_value=0)[0]]),
    "a histogram": per_frame(lambda frame: jnp.bincount((frame > 0).astype(jnp.int32), length=3)),
    "sums of segments": per_frame(lambda frame: jax.ops.segment_sum(frame, jnp.array([0, 0, 1, 1]), 2)),
    "a partition": lambda x: jnp.argpartition(x, 2, axis=1),
    "search": lambda x: jnp.searchsorted(jnp.asarray(POINTS, x.dtype), x),
    "digits": lambda x: jnp.digitize(x, jnp.asarray(POINTS, x.dtype)),
    "interpolation": lambda x: jnp.interp(x, jnp.asarray(POINTS, x.dtype), jnp.asarray([0.0, 2.0, 3.0], x.dtype)),
    "constant systems": of_constant_matrices,
    "a linear system": lambda x: jnp.linalg.solve(matrices(x), x[..., None])[..., 0],
    "Cholesky": lambda x: jnp.linalg.cholesky(matrices(x)),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(matrices(x)),
    "an inverse": lambda x: jnp.linalg.inv(matrices(x)),
    "determinants": lambda x: jnp.linalg.det(matrices(x)),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32) & 255,
    "halves of bits": lambda x: lax.bitcast_convert_type(x, jnp.int16),
}
QUICK = [
    "add to a channel",
    "updates from later frames",
    "set the largest",
    "a histogram",
    "constant systems",
    "search",
]
SMOOTH = ["add to a channel", "updates from later frames", "set the largest", "constant systems", "Cholesky"]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK[:4], thorough=["search"]))
def test_values(name):
    check_values(CASES[name], (20, WIDTH), lengths=(1, 5, 12), chunkings=((1,), (3, 1)))


@pytest.mark.parametrize("name", of_tiers(SMOOTH, ["updates from later frames"], thorough=()))
def test_gradients(name):
    check_gradients(CASES[name], (20, WIDTH))


def later(x):
    """Positive frames that come late; before, there are zeros."""
    return 4 * (x * x)[2:]


def systems(x):
    return x[:, :, None] * x[:, None] + x[:, :, None] * jnp.eye(WIDTH, dtype=x.dtype)


SINGULAR = {
    "negative powers": lambda x: later(x) ** -2,
    "complex powers": lambda x: jnp.real(lax.complex(later(x), later(x)) ** -1),
    "polygamma": lambda x: jax.scipy.special.polygamma(1, later(x)),
    "incomplete gamma": lambda x: jax.scipy.special.gammainc(later(x), later(x) / 2),
    "incomplete gamma, the rest": lambda x: jax.scipy.special.gammaincc(later(x), later(x) / 2),
    "incomplete beta": lambda x: jax.scipy.special.betainc(0.5, 1.5, later(x) / 5),
    "Cholesky": lambda x: jnp.linalg.cholesky(systems(later(x))),
    "QR": lambda x: jnp.linalg.qr(systems(later(x)))[1],
    "determinant": lambda x: jnp.linalg.slogdet(systems(later(x)))[1],
}


@pytest.mark.parametrize("name", of_tiers(SINGULAR, ["negative powers", "determinant"], ["Cholesky"]))
def test_gradients_beside_frames_that_do_not_exist(name):
    check_gradients(SINGULAR[name], (20, WIDTH), constraints=["S >= 3"], tolerance=1e-7)


RECURRENCES = {
    "inner loop": (lambda w, c, f: c + w * lax.while_loop(lambda n: n < 1000, lambda n: 3 * n, f), np.int32, True),
    "root": (lambda w, c, f: c + jnp.sqrt((f - 0.5) * w), np.float32, True),
    "smooth": (lambda w, c, f: jnp.tanh(w * c + f / 2), np.float32, False),
}


@pytest.mark.parametrize("name", of_tiers(RECURRENCES, {*RECURRENCES} - {"smooth", "root"}, ["root"]))
def test_recurrences_that_skip_frames_that_do_not_exist(name):
    """An inner loop may never end on such frames; other bodies run on all frames, which is faster."""
    body, dtype, skips = RECURRENCES[name]
    weight, x = jnp.asarray(2, dtype), jnp.arange(1, 8).astype(dtype)

    def function(weight, x):
        return lax.scan(lambda c, f: (body(weight, c, f),) * 2, jnp.zeros((), dtype), x[2:])[1]

    streamed = jaxrnn.stream(function, x, axes=0, params=weight, constraints=["S >= 3"])
    program = jax.make_jaxpr(streamed.step)(weight, streamed.init(), np.ones(1, dtype))
    assert ("cond" in str(program)) == skips
    np.testing.assert_allclose(streamed.run(weight, x), function(weight, x), rtol=1e-6)
    if dtype is np.float32:
        found, expected = (jax.grad(lambda w, f=f: jnp.sum(f(w, x)))(weight) for f in (streamed.run, function))
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "dtype", of_tiers([np.float32, np.uint8, bool, np.int32, np.complex64], [np.float32], [np.complex64])
)
def test_frames_by_number_that_do_not_exist(dtype):
    def function(x):
        places = np.array([0, 5], np.int32)
        filled = x.at[places].get(mode="fill", fill_value=1)
        return filled, jnp.take(x, places, 0, mode="fill"), jnp.take(x, 5, 0, mode="fill"), x[places]

    streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((20, WIDTH), dtype), axes=0)
    for frames in (1, 5, 6):
        x = jnp.ones((frames, WIDTH), dtype)
        jax.tree.map(np.testing.assert_array_equal, streamed.run(None, x), jax.jit(function)(x))


@pytest.mark.parametrize("pad", [0.0, -0.0])
@pytest.mark.parametrize("scale", of_tiers([2, -2, np.inf, -np.inf, 0], [-2], []))
def test_the_sign_of_zeros_in_front(scale, pad):
    def function(x):
        wide = x.astype(jnp.float32) * jnp.float32(scale)
        fronts = [jnp.pad(each, (2, 0), constant_values=pad) for each in (wide, -wide, x.astype(jnp.float32))]
        fronts.append(jnp.pad(x.astype(jnp.float32), (2, 0), constant_values=-pad))
        return [(jnp.signbit(each), each == 0) for each in fronts]

    check_values(function, (20,), dtype=np.uint8, lengths=(1, 4))


REFUSED = {
    "a matrix over time": (
        lambda x: jnp.linalg.svd(x, compute_uv=False),
        "decomposes a matrix of all frames",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    with pytest.raises(jaxrnn.StreamError, match=words):
        jaxrnn.stream(function, jax.ShapeDtypeStruct((20, WIDTH), np.float32), axes=0)
