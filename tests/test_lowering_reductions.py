"""Reductions written as ONNX: with NaN anywhere, of bits, of booleans."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lowering_verifier import operators_of, verify_lowering

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "uint32", "bool"])
def test_extremes_and_their_places(dtype):
    """NaN is the largest and the smallest, wherever it is; of equal ones the first counts."""
    x = (X * 3).astype(dtype)
    if x.dtype.kind == "f":
        x[0, 0], x[2, 1], x[4, 2], x[1, 2] = np.nan, np.nan, np.nan, np.inf
    for axis in (0, 1):
        functions = [jnp.max, jnp.min, jnp.argmax, jnp.argmin]
        verify_lowering(lambda x, axis=axis, f=functions: [each(x, axis=axis) for each in f], x)


def test_softmax_stays_one_node():
    """What NaN needs is written after patterns are found."""
    model = verify_lowering(lambda x: jax.nn.softmax(x), X)
    assert operators_of(model.graph) == {"Softmax": 1}


def test_bits():
    """Halves with halves."""
    x = np.random.default_rng(1).integers(-99, 99, (5, 3)).astype(np.int32)
    functions = [jnp.bitwise_and.reduce, jnp.bitwise_or.reduce, jnp.bitwise_xor.reduce]
    verify_lowering(lambda x: [each(x, axis=axis) for each in functions for axis in (0, 1)], x, opset=18)
    parity = functools.partial(lax.reduce_xor, axes=(0,))
    verify_lowering(lambda x: [jnp.all(x), jnp.any(x, 0), parity(x)], X > 0)
