"""Complex numbers and spectra, written as ONNX."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lowering_verifier import lowered, verify_lowering
from tiers import of_tiers

from jaxrnn.errors import UnsupportedError

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


def test_arithmetic():
    """Of complex numbers with each other, with known ones and with real ones; and what only moves them."""
    known = (RNG.normal(size=4) + 1j * RNG.normal(size=4)).astype(np.complex64)

    def function(a, b, c):
        z, w = lax.complex(a, b), lax.complex(b, c)
        values = [z + w, z - known, z * w, z * 2, z / w, known / z, jnp.conj(z), -z, z**2, z**-1, z**3, jnp.exp(z)]
        values += [jnp.log(z), jnp.where(a > 0, z, w), jnp.concatenate([z, known])[::2], z.reshape(2, 2).T]
        values += [jnp.pad(z, (1, 2)), z[None] @ w[:, None], jnp.outer(z, known).sum(0), a.astype(jnp.complex64)]
        real = [jnp.abs(z), jnp.angle(z), z == w, z != z, jnp.real(z * jnp.conj(z)), jnp.abs(known)]
        return [part for z in values for part in parts(z)] + real

    verify_lowering(function, *RNG.normal(size=(3, 4)).astype(np.float32), roundings=16)


def test_magnitudes_do_not_vanish():
    """Nor overflow, however small or large the parts are."""
    a, b = np.float32([[3e-30, 0, 4e30, -5e-37, 0], [4e-30, 0, 3e30, 0, -2]])
    verify_lowering(lambda a, b: jnp.abs(lax.complex(a, b)), a, b, scale=0)


def test_what_has_no_parts():
    """Functions that are not written of complex numbers are refused, and complex inputs and outputs."""
    with pytest.raises(UnsupportedError, match="complex"):
        lowered(lambda a, b: jnp.abs(jnp.sin(lax.complex(a, b))), *np.float32([[1], [2]]))
    with pytest.raises(UnsupportedError, match="complex"):
        lowered(lambda a, b: lax.complex(a, b), *np.float32([[1], [2]]))
    with pytest.raises(UnsupportedError, match="complex"):
        lowered(jnp.abs, np.complex64([1j]))
