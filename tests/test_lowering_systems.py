"""Small linear systems in ONNX files: decompositions with pivots, substitution, and steps that contain them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_files import check_exported
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve, lu_factor, lu_solve
from lowering_verifier import lowered, verify_lowering
from tiers import of_tiers

from jaxrnn.errors import UnsupportedError
from jaxrnn.export.small.systems import LARGEST

#: Roundings of a number of the size of the largest result; the condition of the matrices is below 100.
ROUNDINGS = 300


def systems(size, batch=(3,)):
    """Matrices, with zeros at the place of the first pivot, and right sides."""
    rng = np.random.default_rng(size)
    matrices = np.linalg.qr(rng.normal(size=(*batch, size, size)))[0] * np.linspace(1, 2, size)
    if size > 1:
        matrices[..., 0, 0] = 0
    return np.float32(matrices), np.float32(rng.normal(size=(*batch, size, 2)))


def solutions(a, b):
    return jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a)


def definite(a, b):
    a = a @ jnp.swapaxes(a, -1, -2)
    return jnp.linalg.cholesky(jnp.stack([a, -a])), jax.vmap(lambda a, b: cho_solve(cho_factor(a), b))(a, b)


def triangular(a, b):
    return [
        lax.linalg.triangular_solve(
            a + 3 * jnp.eye(a.shape[-1], dtype=a.dtype),
            b if left else jnp.swapaxes(b, -1, -2),
            left_side=left,
            lower=lower,
            transpose_a=transposed,
            unit_diagonal=unit,
        )
        for left in (False, True)
        for lower in (False, True)
        for transposed in (False, True)
        for unit in (False, True)
    ]


def complex_systems(a, b):
    a, b = lax.complex(a, jnp.sin(3 * a)), lax.complex(b, jnp.cos(b))
    covariance = a @ jnp.conj(jnp.swapaxes(a, -1, -2)) + jnp.eye(a.shape[-1], dtype=a.dtype)
    results = jnp.linalg.solve(a, b), jnp.linalg.solve(covariance, b), jnp.linalg.cholesky(covariance)
    return [part(each) for each in results for part in (jnp.real, jnp.imag)]


def with_pivots(a, b):
    return jax.vmap(lambda a, b: lu_solve(lu_factor(a), b))(a, b), lax.linalg.lu(a)


FUNCTIONS = {each.__name__: each for each in (solutions, definite, triangular, complex_systems, with_pivots)}
SIZED = [(name, size) for name in FUNCTIONS for size in (1, 2, 3, LARGEST)]


@pytest.mark.parametrize(
    ("name", "size"),
    of_tiers(
        SIZED, [("solutions", 3), ("with_pivots", 2), ("definite", 2)], [("complex_systems", 3), ("triangular", 8)]
    ),
)
def test_values(name, size):
    verify_lowering(FUNCTIONS[name], *systems(size), roundings=ROUNDINGS)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_pivots_of_any_matrix(shape):
    """Wide, tall and singular matrices, and columns of zeros."""
    a = np.float32(np.random.default_rng(0).normal(size=(3, *shape)))
    a[1], a[2, :, 1] = 1, 0
    verify_lowering(lax.linalg.lu, a, roundings=ROUNDINGS)


def test_systems_of_a_constant_matrix():
    """A product, for any size."""
    (a,), (b,) = systems(20, (1,))
    verify_lowering(lambda b: jnp.linalg.solve(jnp.asarray(a), b), b, roundings=ROUNDINGS)
    (a,), (b,) = systems(3, (1,))
    verify_lowering(lambda b: triangular(jnp.asarray(a), b), b, roundings=ROUNDINGS)


def test_refusals():
    with pytest.raises(UnsupportedError, match=r"'lu'.* only for up to 8 rows and columns, not for 9 x 9"):
        lowered(jnp.linalg.det, systems(9)[0])


def kalman(x):
    """A Kalman filter, which solves a system in each step."""
    observed = jnp.asarray(systems(3, ())[0], x.dtype)
    identity = jnp.eye(3, dtype=x.dtype)

    def step(carry, z):
        mean, covariance = 0.9 * carry[0], 0.8 * carry[1] + 0.1 * identity
        gain = jnp.linalg.solve(observed @ covariance @ observed.T + identity / 2, observed @ covariance).T
        mean = mean + gain @ (z - observed @ mean)
        return (mean, covariance - gain @ observed @ covariance), mean

    return lax.scan(step, (jnp.zeros(3, x.dtype), identity), x)[1]


def beamformer(x):
    """The MVDR weights of a running covariance of three microphones."""
    spectra = lax.complex(x, jnp.cos(x))

    def step(covariance, frame):
        covariance = 0.9 * covariance + frame[:, None] * jnp.conj(frame)
        steered = jnp.linalg.solve(covariance, jnp.ones(3, covariance.dtype))
        return covariance, jnp.real(jnp.vdot(steered / jnp.sum(steered), frame))

    return lax.scan(step, jnp.eye(3, dtype=spectra.dtype), spectra)[1]


@pytest.mark.parametrize("function", of_tiers([kalman, beamformer], [kalman], []))
def test_files(function, tmp_path):
    check_exported(function, (20, 3), tmp_path, lengths=(1, 5), pulses=(1, 2), tolerance=1e-4)
