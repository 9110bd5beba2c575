"""`substitute=True`: functions of packages that call JAX's own functions, streamed exactly, with JAX left as it was."""

from __future__ import annotations

import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusals import check_refused
from stream_functions import affine
from streaming_verifier import check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn.streaming.substitution import substituted

KERNEL = np.array([0.5, -2.0, 3.0], np.float32)
#: A package that has imported the function by its own name.
PACKAGE = types.ModuleType("package_with_scan")
PACKAGE.scan_of = lax.associative_scan


@pytest.fixture(autouse=True)
def loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE.__name__, PACKAGE)


def banded(x, mask):
    return jax.nn.softmax(jnp.where(mask, x @ x.T, -jnp.inf)) @ x


FUNCTIONS = {
    "associative_scan": (lambda x: lax.associative_scan(affine, (jnp.tanh(x), x))[1], (20, 3)),
    "a name of a package": (lambda x: PACKAGE.scan_of(affine, (jnp.tanh(x), x), axis=-2)[1], (20, 3)),
    "in a jitted function": (lambda x: jax.jit(lambda x: jax.lax.associative_scan(jnp.multiply, x))(x), (20, 3)),
    "convolve": (lambda x: jnp.convolve(x, KERNEL)[: x.shape[0]], (20,)),
    "correlate": (lambda x: jnp.correlate(jnp.pad(x, (2, 0)), KERNEL, "valid"), (20,)),
    "convolve of SciPy": (lambda x: jax.scipy.signal.convolve(x, KERNEL, method="direct")[: x.shape[0]], (20,)),
    "frames by np.arange": (
        lambda x: x[jnp.minimum(np.arange(x.shape[0])[:, None] + np.arange(3), x.shape[0] - 1)],
        (20,),
    ),
    "a mask of NumPy": (lambda x: banded(x, np.triu(np.tril(np.ones((x.shape[0], x.shape[0]), bool)), -4)), (20, 3)),
    "np.zeros": (
        lambda x: jnp.concatenate([np.zeros((2, 3), np.float32), x])[: x.shape[0]] + np.tri(x.shape[0], 3),
        (20, 3),
    ),
    "correlate of SciPy": (lambda x: jax.scipy.signal.correlate(x, KERNEL)[: x.shape[0]], (20,)),
}


@pytest.mark.parametrize(
    "name", of_tiers(FUNCTIONS, ("a name of a package", "correlate of SciPy", "a mask of NumPy"), ["np.zeros"])
)
def test_streams_are_exact(name):
    function, shape = FUNCTIONS[name]
    x = jax.ShapeDtypeStruct(shape, np.float32)
    check_refused(jaxrnn.StreamError, "cannot be traced for every length", jaxrnn.stream, function, x, axes=0)
    again, pulse = jaxrnn.stream(function, x, axes=0, substitute=True).__reduce__()
    assert again(*pulse).pulse == 1  # as unpickling does: traced again, with substitutes
    with substituted():
        check_values(function, shape)


@pytest.mark.parametrize("name", ["convolve", "associative_scan"])
def test_bounded_takes_substitutes(name):
    function, shape = FUNCTIONS[name]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    live = jaxrnn.bounded(lambda x: function(x) - jnp.mean(x), x, axes=0, future=len(x), past=len(x), substitute=True)
    np.testing.assert_allclose(live(x), function(x) - jnp.mean(x), atol=1e-6)


@pytest.mark.parametrize(("mode", "shortest"), [("same", 3), ("valid", 3)])
def test_jax_exchanges_a_short_vector_with_the_kernel(mode, shortest):
    """For fewer elements than the kernel has, the result of JAX has another size."""
    x = jax.ShapeDtypeStruct((20,), np.float32)
    function = lambda x: jnp.convolve(x, KERNEL, mode)  # noqa: E731
    with pytest.raises(jaxrnn.StreamError, match=rf"'S >= {shortest}'"):
        jaxrnn.stream(function, x, axes=0, substitute=True)
    jaxrnn.stream(function, x, axes=0, substitute=True, constraints=[f"S >= {shortest}"])


def test_other_threads_have_the_functions_of_jax_and_nothing_stays():
    (size,) = jax.export.symbolic_shape("n")
    frames = jax.ShapeDtypeStruct((size,), np.float32)
    original, outcomes = lax.associative_scan, []

    def trace():
        try:
            jax.eval_shape(lambda x: lax.associative_scan(jnp.multiply, x), frames)
            outcomes.append("traced")
        except NotImplementedError:
            outcomes.append("refused")

    with substituted(), substituted():
        trace()
        other = threading.Thread(target=trace)
        other.start()
        other.join()
        sys.modules["loaded_in_between"] = later = types.ModuleType("loaded_in_between")
        later.scan_of = lax.associative_scan
    trace()
    assert outcomes == ["traced", "refused", "refused"]
    del sys.modules["loaded_in_between"]
    assert lax.associative_scan is PACKAGE.scan_of is later.scan_of is original
    with pytest.raises(ZeroDivisionError), substituted():
        raise ZeroDivisionError
    assert lax.associative_scan is original
