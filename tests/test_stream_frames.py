"""Operations inside each frame: indexing, scatters and linear algebra with time as a batch axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn

WIDTH = 4
POINTS = np.array([-1.0, 0.0, 1.0])


def matrices(x):
    """A well-conditioned symmetric matrix in each frame."""
    return x[:, :, None] * x[:, None] + 3 * jnp.eye(WIDTH, dtype=x.dtype)


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
    "a linear system": lambda x: jnp.linalg.solve(matrices(x), x[..., None])[..., 0],
    "Cholesky": lambda x: jnp.linalg.cholesky(matrices(x)),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(matrices(x)),
    "an inverse": lambda x: jnp.linalg.inv(matrices(x)),
    "determinants": lambda x: jnp.linalg.det(matrices(x)),
    "bits": lambda x: lax.bitcast_convert_type(x, jnp.int32) & 255,
    "halves of bits": lambda x: lax.bitcast_convert_type(x, jnp.int16),
}
QUICK = ["add to a channel", "updates from later frames", "set the largest", "a histogram", "a linear system", "search"]
SMOOTH = ["add to a channel", "updates from later frames", "set the largest", "a linear system", "Cholesky"]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK, thorough=()))
def test_values(name):
    check_values(CASES[name], (20, WIDTH), lengths=(1, 2, 5, 12), chunkings=((1,), (3, 1)))


@pytest.mark.parametrize("name", of_tiers(SMOOTH, ["updates from later frames"], thorough=()))
def test_gradients(name):
    check_gradients(CASES[name], (20, WIDTH))


REFUSED = {
    "a matrix over time": (lambda x: jnp.linalg.svd(x, compute_uv=False), "decomposes a matrix of all frames"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    with pytest.raises(jaxrnn.StreamError, match=words):
        jaxrnn.stream(function, jax.ShapeDtypeStruct((20, WIDTH), np.float32), axes=0)
