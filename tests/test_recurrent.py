"""LSTM, GRU and RNN with every feature of the specification, drawn at random and held against a plain reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from recurrent_nodes import OUTPUTS, build, nodes
from recurrent_reference import ROWS, recurrent

import jaxrnn


@given(nodes(), st.sampled_from((np.float64, np.float32)))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_values(case, dtype):
    operator, arrays, attributes, wanted, opset = case
    arrays = {name: array if name == "sequence_lens" else array.astype(dtype) for name, array in arrays.items()}
    as_inputs = {name for name in arrays if name not in ("W", "R", "B", "P")}
    model = jaxrnn.load(build(operator, arrays, attributes, wanted, opset, as_inputs))
    assert set(model.params) == set(arrays) - as_inputs
    with jax.enable_x64(True):
        results = jax.jit(model.apply)(model.params, {name: arrays[name] for name in as_inputs})
    expected = dict(zip(OUTPUTS[operator], recurrent(operator, arrays, attributes), strict=True))
    largest = max(1.0, *(float(np.abs(value).max(initial=0)) for value in expected.values()))
    # Each of at most 5 steps adds some 20 roundings, and hands the earlier ones on multiplied by a few: unbounded
    # activations let values, and with them the roundings of their sums, grow.
    tolerance = 500 * float(np.finfo(dtype).eps) * largest
    for name, keep in zip(OUTPUTS[operator], wanted, strict=True):
        assert (name in results) == keep
        if keep:
            assert results[name].dtype == dtype
            np.testing.assert_allclose(results[name], expected[name], rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("operator", tuple(ROWS))
def test_no_frames(operator):
    """A sequence of length 0 hands on the initial state, and its gradient is zero and not NaN."""
    rng = np.random.default_rng(0)
    gates = ROWS[operator][1]
    arrays = {
        "X": rng.normal(size=(4, 2, 3)).astype(np.float32),
        "W": rng.normal(size=(1, gates * 5, 3)).astype(np.float32),
        "R": rng.normal(size=(1, gates * 5, 5)).astype(np.float32),
        "sequence_lens": np.array([0, 4], np.int32),
        "initial_h": rng.normal(size=(1, 2, 5)).astype(np.float32),
    }
    model = jaxrnn.load(build(operator, arrays, {"hidden_size": 5}, [True] * len(OUTPUTS[operator]), 14, arrays))
    results = model.apply(model.params, arrays)
    np.testing.assert_array_equal(results["Y_h"][0, 0], arrays["initial_h"][0, 0])
    np.testing.assert_array_equal(results["Y"][:, 0, 0], 0)

    poisoned = arrays | {"X": arrays["X"].copy()}
    poisoned["X"][:, 0] = np.nan  # frames that do not exist
    clean = model.apply(model.params, poisoned)
    np.testing.assert_array_equal(clean["Y_h"], results["Y_h"])

    def loss(x):
        return jnp.sum(model.apply(model.params, arrays | {"X": x})["Y_h"][0, 0] ** 2)

    np.testing.assert_array_equal(jax.grad(loss)(jnp.asarray(arrays["X"])), 0)
    empty = arrays | {"X": np.zeros((0, 2, 3), np.float32), "sequence_lens": np.zeros(2, np.int32)}
    model = jaxrnn.load(build(operator, empty, {"hidden_size": 5}, [True] * len(OUTPUTS[operator]), 14, empty))
    np.testing.assert_array_equal(model.apply(model.params, empty)["Y_h"], arrays["initial_h"])


@pytest.mark.parametrize("operator", tuple(ROWS))
def test_one_step_has_no_loop(operator):
    """A call over one frame leaves neither scan nor while in the jaxpr; a longer one is one scan."""
    gates = ROWS[operator][1]
    for time, loops in ((1, 0), (3, 1)):
        arrays = {
            "X": np.zeros((time, 2, 3), np.float32),
            "W": np.zeros((1, gates * 5, 3), np.float32),
            "R": np.zeros((1, gates * 5, 5), np.float32),
        }
        model = jaxrnn.load(build(operator, arrays, {"hidden_size": 5}, [True] * len(OUTPUTS[operator]), 14, {"X"}))
        text = str(jax.make_jaxpr(model.apply)(model.params, {"X": arrays["X"]}))
        assert text.count("scan[") == loops
        assert "while[" not in text


def test_half_precision_keeps_its_type():
    rng = np.random.default_rng(1)
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        arrays = {
            "X": rng.normal(size=(3, 2, 4)).astype(dtype),
            "W": rng.normal(size=(1, 20, 4)).astype(dtype),
            "R": rng.normal(size=(1, 20, 5)).astype(dtype),
            "B": rng.normal(size=(1, 40)).astype(dtype),
        }
        model = jaxrnn.load(build("LSTM", arrays, {"hidden_size": 5}, [True] * 3, 22, {"X"}))
        result = model.apply(model.params, {"X": arrays["X"]})["Y"]
        assert result.dtype == dtype
        expected = recurrent("LSTM", {n: a.astype(np.float64) for n, a in arrays.items()}, {})[0]
        # A few dozen roundings of numbers near 1, each by half a unit in the last place.
        np.testing.assert_allclose(
            np.asarray(result).astype(np.float64), expected, atol=30 * float(jnp.finfo(dtype).eps)
        )
