"""Functions as graphs of ONNX: `jaxrnn.export.lower`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering_verifier import verify_lowering


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_a_product_is_one_node(rng):
    x, w = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    model = verify_lowering(lambda x, w: x @ w, x, w, known={1}, operators={"MatMul": 1})
    assert [each.name for each in model.graph.initializer] == ["x1"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.bool_, jnp.bfloat16])
def test_results_keep_their_types(rng, dtype):
    x = (rng.normal(size=(2, 3)) * 2).astype(dtype)
    verify_lowering(lambda x: (x[:, ::-1], x.T, jnp.where(x != x.dtype.type(0), x, x[::-1])), x)


def test_what_is_not_a_number_stays_none():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e-37], np.float32)
    verify_lowering(lambda x: (x * x, jnp.exp(x), -x, jax.lax.rsqrt(x)), x, scale=0, signed_zeros=True)
