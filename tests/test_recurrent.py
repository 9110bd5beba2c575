"""The recurrent operators in ONNX's features: values, types, loops, and derivatives of both orders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from onnx import TensorProto, helper
from recurrent_reference import OUTPUTS, ROWS, build, nodes, recurrent
from refusals import check_refused
from tiers import of_tiers
from verifier import EQUAL, assert_derivative, assert_equal, dot, random_like, size_of

import jaxrnn


def feature_rich(operator, **more):
    """A node of two directions with rows of every length, peepholes, and activations on both sides of their kinks."""
    rng = np.random.default_rng(0)
    _, gates, default = ROWS[operator]
    time, batch, features, hidden = 3, 3, 2, 2
    shapes = {
        "X": (time, batch, features),
        "W": (2, gates * hidden, features),
        "R": (2, gates * hidden, hidden),
        "B": (2, 2 * gates * hidden),
        "initial_h": (2, batch, hidden),
        **({"initial_c": (2, batch, hidden), "P": (2, 3 * hidden)} if operator == "LSTM" else {}),
    }
    arrays = {name: 0.8 * rng.normal(size=shape) for name, shape in shapes.items()}
    arrays["sequence_lens"] = np.array([0, 3, 2], np.int32)
    attributes = {
        "direction": "bidirectional",
        "hidden_size": hidden,
        "clip": 1.5,
        "activations": [*default, *("HardSigmoid", "LeakyRelu", "Elu")[: len(default)]],
        **more,
    }
    order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    return (
        operator,
        {name: arrays[name] for name in order if name in arrays},
        attributes,
        [True] * len(OUTPUTS[operator]),
        14,
    )


@example(feature_rich("LSTM"), np.float64)
@example(feature_rich("LSTM", input_forget=1), np.float64)
@given(nodes(), st.sampled_from((np.float64, np.float32)))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


def function_of(case):
    """A drawn node as a function of its float operands, all outputs wanted, and these operands."""
    operator, arrays, attributes, _, opset = case
    lengths = {name: arrays[name] for name in ("sequence_lens",) if name in arrays}
    varied = {name: jnp.array(array) for name, array in arrays.items() if name not in lengths}
    model = jaxrnn.load(build(operator, arrays, attributes, [True] * len(OUTPUTS[operator]), opset, arrays))
    return lambda arrays: model.apply({}, {**arrays, **lengths}), varied


@example(feature_rich("LSTM"))
@example(feature_rich("GRU", linear_before_reset=1))
@given(nodes())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_first_order(case):
    """Forward mode against differences, away from kinks; reverse mode is its transpose: <u, J v> = <J^T u, v>."""
    with jax.enable_x64(True):
        function, point = function_of(case)
        along, weights = random_like(point, 1), random_like(jax.eval_shape(function, point), 2)

        @jax.jit
        def derivatives(point):
            values, pushed = jax.jvp(function, (point,), (along,))
            return values, pushed, jax.vjp(function, point)[1](weights)[0]

        values, pushed, pulled = derivatives(point)
        assume(size_of(values) < 1e3)  # products of activations without bound grow, and so do their derivatives
        assert_derivative(pushed, lambda at: derivatives(at)[0], point, along, 1e-6, scale=size_of(pushed))
        sizes = [jax.tree.map(np.abs, tree) for tree in (weights, pushed, pulled, along)]
        limit = EQUAL * (dot(*sizes[:2]) + dot(*sizes[2:]))
        assert abs(dot(weights, pushed) - dot(pulled, along)) <= limit


@pytest.mark.nightly
@given(nodes())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_second_order(case):
    """With g the gradient, H g is forward over reverse, the gradient of |g|^2 / 2, and a difference of gradients."""
    with jax.enable_x64(True):
        function, point = function_of(case)
        weights = random_like(jax.eval_shape(function, point), 3)

        def loss(point):
            return sum(
                jnp.vdot(w, y**2) for w, y in zip(*map(jax.tree.leaves, (weights, function(point))), strict=True)
            )

        gradient = jax.grad(loss)

        @jax.jit
        def second(point):
            slopes, forwards = jax.jvp(gradient, (point,), (gradient(point),))
            backwards = jax.grad(lambda at: 0.5 * sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient(at))))(point)
            return slopes, forwards, backwards

        slopes, forwards, backwards = second(point)
        assume(size_of(slopes) < 1e3)
        assume(size_of(forwards) > 0)  # clipped everywhere, a cell is constant
        assert_equal(forwards, backwards)
        length = max(1.0, np.sqrt(dot(slopes, slopes)))
        along = jax.tree.map(lambda g: g / length, slopes)
        expected = jax.tree.map(lambda h: h / length, forwards)
        assert_derivative(expected, lambda at: second(at)[0], point, along, 1e-6, scale=size_of(expected))


@pytest.mark.nightly
@pytest.mark.parametrize("operator", of_tiers(ROWS, ("GRU",), thorough=()))
def test_hessian_and_mapped_gradients(operator):
    """`jax.hessian` is symmetric and holds differences of gradients; `vmap` of a gradient is a loop of gradients."""
    with jax.enable_x64(True):
        function, point = function_of(feature_rich(operator))
        flat, tree_of = ravel_pytree(point)

        def loss(flat):
            return sum(jnp.sum(jnp.sin(3 * y) + y**2) for y in function(tree_of(flat)).values())

        hessian = jax.jit(jax.hessian(loss))(flat)
        np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=EQUAL * size_of(hessian))
        gradient = jax.jit(jax.grad(loss))
        for seed in range(3):
            along = random_like(flat, seed)
            assert_derivative(hessian @ along, gradient, flat, along, 1e-6)
        points = flat + 0.1 * jnp.stack([random_like(flat, seed) for seed in range(3)])
        mapped = jax.jit(jax.vmap(jax.grad(loss)))(points)
        assert_equal(mapped, jnp.stack([gradient(each) for each in points]))


@pytest.mark.nightly
@pytest.mark.parametrize("operator", of_tiers(ROWS, ("GRU",), thorough=()))
def test_frames_that_do_not_exist(operator):
    """They have no gradient; a row without frames hands its initial state's on; a sequence of none has no other."""
    _, full, attributes, _, opset = feature_rich(operator)
    none = full | {"X": full["X"][:0], "sequence_lens": np.zeros(3, np.int32)}
    unmasked = {name: array for name, array in none.items() if name != "sequence_lens"}
    for arrays in (full, none, unmasked):
        with jax.enable_x64(True):
            function, point = function_of((operator, arrays, attributes, None, opset))
            weights = random_like(jax.eval_shape(function, point), 1)
            slopes, second = (jax.tree.map(np.asarray, tree) for tree in both_orders(function, weights)(point))
        for tree in (slopes, second):
            assert all(np.isfinite(leaf).all() for leaf in tree.values())
        for row, length in enumerate(arrays.get("sequence_lens", none["sequence_lens"])):
            assert not slopes["X"][length:, row].any()
            assert slopes["X"][:length, row].all()
            for start, end in (("initial_h", "Y_h"), ("initial_c", "Y_c")):
                if length == 0 and start in slopes:
                    np.testing.assert_array_equal(slopes[start][:, row], weights[end][:, row])
        assert any(slopes[name].any() for name in "WRBP" if name in slopes) == (arrays is full)


@pytest.mark.parametrize("operator", ROWS)
@pytest.mark.parametrize("opset", [3, 6])
def test_layers_of_the_first_opsets(operator, opset):
    """They differ from opset 7 by `output_sequence` only, which says what the outputs of the node say."""
    _, arrays, attributes, _, _ = feature_rich(operator)
    wanted = [True] * len(OUTPUTS[operator])
    kept = {key: value for key, value in attributes.items() if key != "layout"}
    results = [
        jaxrnn.load(build(operator, arrays, {**kept, **more}, wanted, at, ()))({})
        for at, more in ((opset, {"output_sequence": 1}), (7, {}))
    ]
    for name in OUTPUTS[operator]:
        np.testing.assert_array_equal(results[0][name], results[1][name])
    check_refused(
        jaxrnn.ModelError,
        "output_sequence",
        jaxrnn.load,
        build(operator, arrays, {"output_sequence": 1}, wanted, 7, ()),
    )


def both_orders(function, weights):
    """Compiled: J^T w at a point, and the gradient of its squared norm."""

    def pulled(point):
        return jax.vjp(function, point)[1](weights)[0]

    return jax.jit(lambda at: (pulled(at), jax.grad(lambda x: sum(jnp.sum(g**2) for g in pulled(x).values()))(at)))
