"""Streams under the global settings of JAX that users set; `docs/limits.md` has the table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tiers import of_tiers

import jaxrnn
from jaxrnn.streaming.measuring import drawn

X = drawn((7, 3))


def recurrence(x):
    def step(level, frame):
        level = jnp.tanh(level @ jnp.eye(3, dtype=x.dtype) + frame)
        return level, level

    return lax.scan(step, jnp.zeros(3, x.dtype), x)[1]


def by_number(x):
    """A recurrence by frame number, of which `jax_disable_jit` would make a loop of Python."""

    def step(i, carry):
        level = 0.5 * carry[0] + x[i]
        return level, carry[1].at[i].set(level * jnp.log1p(i.astype(x.dtype)))

    return lax.fori_loop(0, x.shape[0], step, (jnp.zeros(3, x.dtype), jnp.zeros_like(x)))


def sums(x):
    """Divisions and roots, of frames that do not exist as well."""
    count = jnp.arange(1, x.shape[0] + 1).astype(x.dtype)[:, None]
    mean = jnp.cumsum(x, 0) / count
    return x / jnp.sqrt(jnp.cumsum(x * x, 0)), mean, x.max(0), jnp.log(jnp.abs(x)).mean(0)


def windows(x):
    """Convolutions with padding and stride, and a transposed convolution."""
    numbers = "NWC", "WIO", "NWC"
    kernel = jnp.asarray(drawn((4, 3, 3)))
    slow = lax.conv_general_dilated(x[None], kernel, (2,), ((3, 0),), dimension_numbers=numbers)
    return slow[0], lax.conv_transpose(slow, kernel, (2,), "VALID", dimension_numbers=numbers)[0]


def fixed_frames(x):
    """Frames by their numbers, of which a short recording lacks the last."""
    return x.at[jnp.asarray([1, 9])].get(mode="fill", fill_value=0)


def attention(x):
    """Attention to the last frames, with a masked softmax."""
    rows = jnp.arange(x.shape[0])
    back = rows[:, None] - rows[None]
    scores = jnp.where((back >= 0) & (back < 5), x @ x.T, -jnp.inf)
    return jax.nn.softmax(scores, -1) @ x


FUNCTIONS = recurrence, by_number, sums, windows, fixed_frames, attention
SETTINGS = {
    "jax_enable_x64": lambda: jax.enable_x64(True),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("raise"),
    "jax_debug_nans": lambda: jax.debug_nans(True),
    "jax_debug_infs": lambda: jax.debug_infs(True),
    "jax_disable_jit": jax.disable_jit,
    "jax_default_matmul_precision": lambda: jax.default_matmul_precision("highest"),
    "jax_check_tracer_leaks": jax.checking_leaks,
}


PAIRS = [(name, function) for function in FUNCTIONS for name in SETTINGS]
#: Settings under which all is slow.
SLOW = {"jax_disable_jit": by_number, "jax_check_tracer_leaks": None}


@pytest.mark.parametrize(
    ("name", "function"), of_tiers(PAIRS, [pair for pair in PAIRS if pair[1] is SLOW.get(pair[0], pair[1])], [])
)
def test_settings(name, function):
    """A stream is made and run under the setting."""
    before = dict(jax.config.values)
    with SETTINGS[name]():
        found = jaxrnn.stream(function, X, axes=0, pulse=4).run(None, X)
    assert dict(jax.config.values) == before
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(function)(X)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_live_steps():
    """A pool and a runner step on a device of their own also if `jax_disable_jit` is set."""
    x = np.arange(4, dtype=np.float32)
    streamed = jaxrnn.stream(
        lambda inputs: {"y": jnp.pad(inputs["x"], (2, 2), mode="reflect")[4:]},
        {"x": x},
        axes=0,
        pulse=2,
        constraints=["S >= 3", "mod(S, 3) == 0"],
    )
    with jax.disable_jit():
        pool, run = jaxrnn.StreamPool(streamed, None, 2), jaxrnn.Runner(streamed, None)
        stream = pool.open()
        for frames in (x[:2], x[2:]):
            pool.push(stream, {"x": frames})
            np.testing.assert_array_equal(pool.run()[stream]["y"], run({"x": frames})["y"])
