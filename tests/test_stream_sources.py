"""Every refusal of `stream` names the line of the user's code, and the function of JAX that it calls."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from refusals import check_refused

import jaxrnn

X = jax.ShapeDtypeStruct((20, 3), np.float32)


@jax.jit
def own_function(x):
    return lax.rev(x, (0,))  # in a function of one's own


def called_twice(x):
    lax.rev(x, (1,))
    y = jnp.flip(x, 1)
    return jnp.flip(y, 0)  # what JAX traced before


def in_a_loop(x):
    def body(carry, weight):
        return carry + weight * jnp.sum(x), None  # in the body of a loop

    return lax.scan(body, x, jnp.arange(3.0))[0]


def in_a_function(x):
    return own_function(x)


def in_a_branch(x):
    return lax.cond(jnp.array(True), lambda x: x - x.mean(0), lambda x: x, x)  # in a branch


def in_a_length(x):
    y = jnp.repeat(x, 2, 0)
    return y[: x.shape[0] // 2 * x.shape[0] // x.shape[0]]  # of a length


class Normalised(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.layer(x.T @ x) @ x.T  # in a module


def in_a_module(x):
    return Normalised(nnx.Rngs(0))(x)


REFUSED = {
    in_a_function: (r"'rev' \(", "in a function of one's own"),
    called_twice: (r"'rev' \(jnp\.flip in ", "what JAX traced before"),
    in_a_loop: (r"\(", "in the body of a loop"),
    in_a_branch: (r"'sub' \(", "in a branch"),
    in_a_length: (r"\(", "of a length"),
    in_a_module: (r"\(.*", "in a module"),
}


def line_of(comment):
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refusals_name_the_line(function):
    start, comment = REFUSED[function]
    place = rf"^[^:]*{start}test_stream_sources\.py:{line_of(comment)} \("
    for example in (X, np.ones((20, 3), np.float32)):
        check_refused(jaxrnn.StreamError, place, jaxrnn.stream, function, example, axes=0)


def test_the_line_that_calls_stream_is_no_part_of_the_function():
    with pytest.raises(jaxrnn.StreamError, match=r"^'rev' cannot be streamed"):
        jaxrnn.stream(jax.jit(jnp.flip), X, axes=0)
