"""Random numbers: their distribution, and that a function which draws them is pure."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from node_models import check_node_refused, one_operator
from onnx import TensorProto, helper
from scipy import stats
from small_models import graph_of, make_model
from tiers import of_tiers

import jaxrnn
from jaxrnn._jax.context import exact_types

COUNT = 20_000


def drawn(name, inputs=None, **attributes):
    """What a node draws, which must be the same from call to call."""
    model, arrays = one_operator(name, inputs or {}, opset=22, **attributes)
    loaded = jaxrnn.load(model)
    first = np.asarray(jax.jit(loaded.apply)(loaded.params, arrays)["y0"])
    np.testing.assert_array_equal(loaded(arrays)["y0"], first)
    return first


@pytest.mark.parametrize("kind", of_tiers(["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"], ["FLOAT", "BFLOAT16"]))
def test_distributions(kind):
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    numbers = {"dtype": getattr(TensorProto, kind), "shape": [100, COUNT // 100], "seed": 3.0}
    like = {"x": np.zeros((COUNT,), np.int32)}
    with exact_types():
        normal = drawn("RandomNormal", mean=2.0, scale=0.5, **numbers)
        uniform = drawn("RandomUniformLike", like, low=-1.0, high=3.0, dtype=numbers["dtype"])
    assert normal.dtype == uniform.dtype == dtype
    assert normal.shape == (100, COUNT // 100)
    # The chance that a right generator fails is one in a million; types of 16 bits are a grid, whose step shows.
    if normal.dtype.itemsize >= 4:
        assert stats.kstest((normal.ravel() - 2) / 0.5, "norm").pvalue > 1e-6
        assert stats.kstest((uniform + 1) / 4, "uniform").pvalue > 1e-6
    assert abs(normal.astype(np.float64).mean() - 2) < 5 * 0.5 / COUNT**0.5 + float(jnp.finfo(dtype).eps)
    assert uniform.min() >= -1
    assert uniform.max() <= 3


@pytest.mark.thorough
def test_seeds_and_names_tell_nodes_apart():
    shape = {"shape": [50]}
    assert np.array_equal(drawn("RandomNormal", seed=1.5, **shape), drawn("RandomNormal", seed=1.5, **shape))
    assert not np.any(drawn("RandomNormal", seed=1.5, **shape) == drawn("RandomNormal", seed=2.5, **shape))
    nodes = [helper.make_node("RandomUniform", [], [name], shape=[50], name="same") for name in ("a", "b")]
    both = jaxrnn.load(make_model(graph_of(nodes, {}, {"a": [50], "b": [50]}), opset=22))()
    assert not np.any(both["a"] == both["b"])


def test_bernoulli_and_multinomial():
    p = np.tile(np.float32([0, 1, 0.3]), (COUNT, 1))
    found = drawn("Bernoulli", {"p": p}, dtype=TensorProto.INT32)
    assert found.dtype == np.int32
    assert (found[:, 0].sum(), found[:, 1].sum()) == (0, COUNT)
    assert abs(found[:, 2].mean() - 0.3) < 5 * (0.21 / COUNT) ** 0.5
    shares = np.array([[0.2, 0.5, 0.3], [1, 0, 0]])
    with np.errstate(divide="ignore"):
        logits = np.log(7 * shares).astype(np.float32)
    classes = drawn("Multinomial", {"x": logits}, sample_size=COUNT, dtype=TensorProto.INT64)
    assert (classes.dtype, classes.shape) == (np.int64, (2, COUNT))
    counts = np.array([np.bincount(row, minlength=3) for row in classes])
    assert abs(counts / COUNT - shares).max() < 5 * (0.25 / COUNT) ** 0.5
    assert counts[1, 0] == COUNT


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_dropout_in_training(kind):
    x = np.linspace(1, 2, COUNT).astype(kind)
    inputs = {"x": x, "ratio": kind(0.2), "training": np.array(True)}
    loaded = jaxrnn.load(one_operator("Dropout", inputs, outputs=2, opset=22)[0])
    run = jax.jit(lambda x, flag: loaded.apply({}, {**inputs, "x": x, "training": flag}))
    y, mask = (np.asarray(value) for value in run(x, True).values())
    assert (y.dtype, mask.dtype) == (kind, bool)
    assert abs(mask.mean() - 0.8) < 5 * (0.16 / COUNT) ** 0.5
    np.testing.assert_allclose(y.astype(np.float64), np.where(mask, x / 0.8, 0), rtol=float(jnp.finfo(kind).eps))
    # What is kept is scaled, and so is its gradient; the flag may be data.
    slope = jax.grad(lambda x: run(x, True)["y0"].astype(jnp.float32).sum())(jnp.asarray(x))
    np.testing.assert_allclose(np.asarray(slope), np.where(mask, kind(1.25), 0), rtol=float(jnp.finfo(kind).eps))
    y, mask = run(x, False).values()
    np.testing.assert_array_equal(y, x)
    assert mask.all()


def test_random_numbers_are_floats():
    x = {"x": np.zeros(3, np.int32)}
    check_node_refused(jaxrnn.JaxrnnError, r"int32|dtype", "RandomNormalLike", x, opset=22)
