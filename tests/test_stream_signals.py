"""Filters and changes of rate: as SciPy and NumPy compute them, in streams, and in exported files."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from exported_files import check_exported
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

from jaxrnn import InputError, signal

B, A = scipy.signal.butter(3, 0.3)
SECTIONS = scipy.signal.butter(5, 0.2, output="sos")
KERNELS = np.array([[1.0, 2.0], [-1.0, 0.5], [0.5, 3.0]])
RATIOS = [(2, 1), (3, 2), (2, 3), (4, 2), (1, 2), (5, 4), (1, 1)]


def of(values, x):
    return jnp.asarray(values, x.dtype)


CASES = {f"interp, {up}, {down}": lambda x, up=up, down=down: signal.interp(x, up, down) for up, down in RATIOS} | {
    "lfilter": lambda x: signal.lfilter(of(B, x), of(A, x), x, 0),
    "lfilter, with a state": lambda x: signal.lfilter(of(B, x), of(A, x), x.T, zi=of(np.ones((2, 3)), x)),
    "lfilter, without recursion": lambda x: signal.lfilter(of(B, x), of([2.0], x), x, 0),
    "sosfilt": lambda x: signal.sosfilt(of(SECTIONS, x), x, 0),
    "sosfilt, with states": lambda x: signal.sosfilt(of(SECTIONS, x), x, 0, of(np.ones((3, 2, 2)), x)),
    "fftconvolve, kernels": lambda x: signal.fftconvolve(x, of(KERNELS, x), "same", 0),
    "fftconvolve, one kernel": lambda x: signal.fftconvolve(x.T, of(KERNELS[:, :1].T, x)),
}


@pytest.mark.parametrize("name", of_tiers(CASES, ["interp, 2, 3", "fftconvolve, kernels"], ["sosfilt", "lfilter"]))
def test_values(name):
    check_values(CASES[name], (20, 2))


@pytest.mark.parametrize("name", of_tiers(CASES, ["interp, 3, 2"], ["sosfilt", "fftconvolve, kernels"]))
def test_gradients(name):
    check_gradients(CASES[name], (20, 2))


FILES = ["interp, 3, 2", "lfilter", "sosfilt", "fftconvolve, kernels"]


@pytest.mark.parametrize("name", of_tiers(FILES, ["lfilter"], ["interp, 3, 2"]))
def test_files(name, tmp_path):
    check_exported(CASES[name], (20, 2), tmp_path)


def drawn(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def assert_as(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_filters_as_in_scipy(axis):
    x = drawn(9, 2, 3)
    sizes = [1 if place == axis % 3 else size for place, size in enumerate(x.shape)]
    for b, a in ((B, A), (B, [2.0, 0.5]), ([0.5], A), (B, [2.0]), ([3.0], [2.0])):
        state = np.repeat(drawn(*sizes), max(len(b), len(a)) - 1, axis)
        found = jax.jit(lambda *given, zi=state: (signal.lfilter(*given, axis), signal.lfilter(*given, axis, zi)))
        one, both = found(of(b, x), of(a, x), x)
        assert_as((one, *both), (scipy.signal.lfilter(b, a, x, axis), *scipy.signal.lfilter(b, a, x, axis, state)))
    states = np.repeat(drawn(len(SECTIONS), *sizes), 2, axis % 3 + 1)
    found = jax.jit(lambda *given: (signal.sosfilt(*given, axis), signal.sosfilt(*given, axis, states)))
    one, both = found(of(SECTIONS, x), x)
    assert_as((one, *both), (scipy.signal.sosfilt(SECTIONS, x, axis), *scipy.signal.sosfilt(SECTIONS, x, axis, states)))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_as_in_scipy(mode):
    x = drawn(2, 3, 12)
    kernels = [(drawn(*shape), -1) for shape in ((2, 3, 5), (1, 3, 4), (2, 1, 1), (1, 1, 4))] + [(drawn(1, 2, 12), 1)]
    found = jax.jit(lambda x: [signal.fftconvolve(x, v, mode, axis) for v, axis in kernels])(x)
    assert_as(found, [scipy.signal.fftconvolve(x, v, mode, axes=axis) for v, axis in kernels])


def test_interpolation_as_in_numpy():
    rows = [drawn(3, size) for size in (0, 1, 2, 7, 8)]
    found = jax.jit(lambda rows: [[signal.interp(x, *ratio, 1) for ratio in RATIOS] for x in rows])(rows)
    for x, each in zip(rows, found, strict=True):
        for (up, down), result in zip(RATIOS, each, strict=True):
            size = x.shape[1]
            places = np.arange(-(-size * up // down)) * down / up
            assert_as(result, [np.interp(places, np.arange(size), row) if size else row for row in x])


def test_errors():
    x = jnp.ones((5, 2))
    check_refused(InputError, "positive integers, not 1.5 and 1", signal.interp, x, 1.5)
    check_refused(InputError, "not a number", signal.interp, 1.0, 2)
    check_refused(InputError, "`a` of lfilter must be a vector", signal.lfilter, x[:, 0], x, x)
    check_refused(InputError, r"`zi` .* \(5, 1\)", signal.lfilter, x[:2, 0], x[:2, 0], x, zi=x)
    check_refused(InputError, r"\[sections, 6\]", signal.sosfilt, x, x)
    check_refused(InputError, "3 states along a first axis", signal.sosfilt, of(SECTIONS, x), x, zi=x)
    check_refused(InputError, "as many axes", signal.fftconvolve, x, x[0])
    check_refused(InputError, "the kernel of fftconvolve", signal.fftconvolve, x, x[:, :0])
