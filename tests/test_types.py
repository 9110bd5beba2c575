"""Element types: 64-bit integers stay exact without jax_enable_x64, and every float type is kept."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from node_models import by_onnx_runtime, check, computed, one_operator
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused

import jaxrnn

INT64, FLOAT, DOUBLE = TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE


def model(nodes, inputs, outputs, initializers=(), opset=21):
    values = [[helper.make_tensor_value_info(n, k, s) for n, k, s in group] for group in (inputs, outputs)]
    arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in initializers]
    graph = helper.make_graph(nodes, "g", *values, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.fixture(autouse=True)
def without_x64():
    assert not jax.config.jax_enable_x64
    yield
    assert not jax.config.jax_enable_x64


def hashing():
    """(x * 2654435761 + 7) mod 1000003: a hash whose products need more than 32 bits."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["product"]),
        helper.make_node("Add", ["product", "seven"], ["sum"]),
        helper.make_node("Mod", ["sum", "modulus"], ["bucket"]),
        helper.make_node("Gather", ["table", "bucket"], ["y"]),
    ]
    constants = [
        ("factor", 2654435761),
        ("seven", 7),
        ("modulus", 1000003),
        ("table", np.arange(1000003, dtype=np.float32)),
    ]
    return model(nodes, [("x", INT64, [3])], [("bucket", INT64, [3]), ("y", FLOAT, [3])], constants)


@pytest.mark.thorough
def test_int64_arithmetic_is_exact_without_x64():
    x = np.array([1, 123_456_789, 2**31 - 1])
    expected = (x * 2654435761 + 7) % 1000003
    loaded = jaxrnn.load(hashing())
    for call in (
        loaded,
        lambda given: loaded.apply(loaded.params, given),
        lambda given: jax.jit(loaded.apply)(loaded.params, given),
    ):
        results = call({"x": x})
        assert results["bucket"].dtype == np.int64
        np.testing.assert_array_equal(results["bucket"], expected)
        np.testing.assert_array_equal(results["y"], expected.astype(np.float32))
    mapped = jax.vmap(lambda row: loaded.apply(loaded.params, {"x": row})["bucket"])(
        jnp.asarray(np.stack([x, x]), jnp.int32)
    )
    np.testing.assert_array_equal(mapped, np.stack([expected, expected]))


def test_large_int64_inputs_and_outputs_are_exact_without_x64():
    loaded = jaxrnn.load(model([helper.make_node("Add", ["x", "x"], ["y"])], [("x", INT64, [2])], [("y", INT64, [2])]))
    x = np.array([2**40 + 1, -(2**61)])
    np.testing.assert_array_equal(loaded(x=x)["y"], 2 * x)
    np.testing.assert_array_equal(loaded.apply(loaded.params, {"x": x})["y"], 2 * x)


def test_python_integers_that_do_not_fit_are_refused():
    proto = model(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", TensorProto.INT8, [2])], [("y", TensorProto.INT8, [2])]
    )
    loaded = jaxrnn.load(proto)
    np.testing.assert_array_equal(loaded(x=[1, 127])["y"], [-1, -127])
    for wrong in ([1, 128], [1, 2**70], [0.5, 1]):
        check_refused(jaxrnn.InputError, "int8", loaded, x=wrong)


def test_shape_arithmetic_folds_and_stays_exact():
    """A product of sizes beyond 32 bits, divided again, reshapes as it should, and nothing of it is traced."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mul", ["shape", "huge"], ["large"]),
        helper.make_node("Div", ["large", "huge"], ["again"]),
        helper.make_node("ReduceProd", ["again"], ["count"]),
        helper.make_node("Reshape", ["x", "count"], ["y"]),
    ]
    loaded = jaxrnn.load(model(nodes, [("x", FLOAT, ["a", "b"])], [("y", FLOAT, None)], [("huge", np.array([2**40]))]))
    assert loaded(x=np.zeros((3, 4), np.float32))["y"].shape == (12,)
    jaxpr = jax.make_jaxpr(loaded.apply)({}, loaded.symbolic_inputs())
    assert [str(eqn.primitive) for eqn in jaxpr.eqns] == ["reshape"]


def test_integer_division_truncates_and_modulo_follows_c():
    nodes = [
        helper.make_node("Div", ["x", "y"], ["div"]),
        helper.make_node("Mod", ["x", "y"], ["mod"]),
        helper.make_node("Mod", ["x", "y"], ["fmod"], fmod=1),
    ]
    x, y = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
    outputs = [(name, INT64, [4]) for name in ("div", "mod", "fmod")]
    expected = {"div": [3, -3, -3, 3], "mod": [1, 1, -1, -1], "fmod": [1, -1, 1, -1]}
    traced = jaxrnn.load(model(nodes, [("x", INT64, [4]), ("y", INT64, [4])], outputs))(x=x, y=y)
    folded = jaxrnn.load(model(nodes, [], outputs, [("x", x), ("y", y)]))()
    for name, values in expected.items():
        np.testing.assert_array_equal(traced[name], values)
        np.testing.assert_array_equal(folded[name], values)


def test_an_index_outside_is_an_error_or_not_a_number():
    gather = helper.make_node("Gather", ["table", "i"], ["y"], name="look_up")
    proto = model([gather], [("i", INT64, [1])], [("y", FLOAT, [1])], [("table", np.ones(5, np.float32))])
    loaded = jaxrnn.load(proto)
    for wrong in (5, -6, 2**40):
        check_refused(jaxrnn.NodeError, r"'look_up'.*out of range", loaded, i=np.array([wrong]))
        with jax.enable_x64(True):  # inside jit there is no raising, but no neighbour either
            assert np.isnan(jax.jit(loaded.apply)(loaded.params, {"i": np.array([wrong])})["y"][0])
    np.testing.assert_array_equal(loaded(i=np.array([-5]))["y"], 1)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, FLOAT, DOUBLE])
def test_float_types_are_kept(kind):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = np.linspace(-1, 1, 12).astype(dtype).reshape(4, 3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("LayerNormalization", ["product", "scale"], ["normal"], epsilon=1e-3),
        helper.make_node("Softmax", ["normal"], ["y"]),
    ]
    scale = np.ones(3, dtype)
    tensors = [
        helper.make_tensor(n, kind, a.shape, a.astype(np.float64).ravel()) for n, a in (("w", weight), ("scale", scale))
    ]
    x, y = (helper.make_tensor_value_info(n, kind, s) for n, s in (("x", ["n", 4]), ("y", ["n", 3])))
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], tensors), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    loaded = jaxrnn.load(proto)
    given = np.linspace(0, 1, 8).astype(dtype).reshape(2, 4)
    assert {value.dtype for value in loaded.params.values()} == {dtype}
    wide = given.astype(np.float64) @ weight.astype(np.float64)
    wide = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-3)
    expected = np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    # float64 normalises in float32, as stash_type says.
    limit = 20 * float(jnp.finfo(dtype).eps) if dtype.itemsize == 2 else 1e-6
    results = [loaded(x=given), loaded.apply(loaded.params, {"x": given})]
    if kind != DOUBLE:  # jit makes float32 of a float64 argument before the function sees it
        results.append(jax.jit(loaded.apply)(loaded.params, {"x": given}))
    for found in results:
        assert found["y"].dtype == dtype
        np.testing.assert_allclose(np.asarray(found["y"]).astype(np.float64), expected, atol=limit)


@pytest.mark.parametrize("operator", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float16])
@pytest.mark.parametrize("keeps", [0, 1])
def test_sums_before_a_root_or_a_logarithm_are_wide(operator, kind, keeps):
    """The result has the type of the data, and squares that the type cannot hold do not overflow."""
    function = {
        "ReduceL2": lambda x: np.sqrt(np.sum(x**2, 0)),
        "ReduceLogSum": lambda x: np.log(np.sum(x, 0)),
        "ReduceLogSumExp": lambda x: np.log(np.sum(np.exp(x - x.max(0)), 0)) + x.max(0),
    }[operator]
    x = np.array([300, 310, 290]).astype(kind) * (1 if kind == np.float16 else 100_000)
    model, arrays = one_operator(
        operator, {"x": x, "axes": np.array([], np.int64)}, constants=["axes"], opset=18, outputs=["y"],
        noop_with_empty_axes=keeps,
    )  # fmt: skip
    found = computed(model, arrays)
    wide = x.astype(np.float64)
    expected = function(wide[None] if keeps else wide).astype(kind)
    assert (found.dtype, found.size) == (kind, 3 if keeps else 1)
    # A float16 is rounded once, by half of 2**-10. An integer is truncated, as the expected number is.
    np.testing.assert_allclose(found.ravel(), np.ravel(expected), rtol=2**-10 if kind == np.float16 else 0)


@pytest.mark.parametrize(("dtype", "depth"), [(np.uint8, 300), (np.int8, 200), (np.int32, 300)])
def test_indices_of_a_small_type_and_a_larger_depth(dtype, depth):
    inputs = {"indices": np.array([1, 100], dtype), "depth": np.array(depth), "values": np.array([0, 1], np.float32)}
    model, arrays = one_operator("OneHot", inputs, constants=["depth", "values"], outputs=["y"])
    np.testing.assert_array_equal(np.argwhere(computed(model, arrays)), [[0, 1], [1, 100]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_integers_shrink_by_a_fraction(dtype):
    check("Shrink", {"x": np.array([0, 1, 2, 7], dtype)}, lambd=1.5, bias=1.5)


@pytest.mark.parametrize("operator", ["ReduceMin", "ReduceMax"])
@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.uint8])
def test_extremes_of_every_integer_type(operator, dtype):
    x = np.array([[3, 2, np.iinfo(dtype).max]], dtype)
    model, arrays = one_operator(operator, {"x": x}, opset=20, outputs=["y"], keepdims=0)
    assert computed(model, arrays) == (2 if operator == "ReduceMin" else np.iinfo(dtype).max)


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_booleans_are_combined_where_they_are_scattered(operator, reduction):
    indices = np.array([0, 3, 1, 3]) if operator == "ScatterElements" else np.array([[0], [3], [1], [3]])
    updates = np.array([True, False, False, True])
    data = np.array([False, True, True, True, False])
    check(operator, {"data": data, "indices": indices, "updates": updates}, reduction=reduction)


@pytest.mark.parametrize(("delta", "count"), [(0.03, 2334), (0.001, 69972)])
def test_long_ranges_of_float16_are_rounded_once(delta, count):
    values = {"start": np.float16(1), "limit": np.float16(71), "delta": np.float16(delta)}
    model, _ = one_operator("Range", values, constants=[*values], outputs=["y"], opset=27)
    found = computed(model, {})
    expected = (1 + np.arange(count, dtype=np.float32) * np.float32(values["delta"])).astype(np.float16)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(("opset", "dtype"), [(7, np.float32), (10, np.bool_)])
def test_the_type_of_the_mask_of_dropout(opset, dtype):
    model, arrays = one_operator("Dropout", {"x": np.ones(2, np.float32)}, outputs=2, opset=opset)
    assert jaxrnn.load(model)(arrays)["y1"].dtype == dtype


@pytest.mark.parametrize("value", [0, 3])
def test_the_indices_of_a_scalar(value):
    model, arrays = one_operator("NonZero", {"x": np.float32(value)}, outputs=["y"])
    assert jaxrnn.load(model, static=arrays)()["y"].shape == (0, int(value != 0))


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_an_axis_without_enough_elements_for_equal_parts_is_refused(kind):
    model, arrays = one_operator("Split", {"x": np.arange(5, dtype=kind)}, outputs=4, constants=[], num_outputs=4)
    with pytest.raises(jaxrnn.JaxrnnError, match="do not add up to axis 0"):
        jaxrnn.load(model, static=arrays if kind == np.int64 else None)({} if kind == np.int64 else arrays)


@pytest.mark.parametrize("size", [9, 11, 12, 13])
def test_a_transposed_convolution_of_a_larger_output_has_zeros_at_the_end(size):
    x, w = np.arange(1, 4, dtype=np.float32)[None, None], np.array([[[1, 2]]], np.float32)
    check("ConvTranspose", {"x": x, "w": w}, engines=[by_onnx_runtime], strides=[4], output_shape=[size])


def test_float64_gradients_without_x64_say_what_is_missing():
    proto = model([helper.make_node("Mul", ["x", "x"], ["y"])], [("x", DOUBLE, [2])], [("y", DOUBLE, [2])])
    loaded = jaxrnn.load(proto)
    with pytest.raises(jaxrnn.InputError, match="enable_x64"):
        loaded.apply({}, {"x": jnp.ones(2)})
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.grad(lambda x: loaded.apply({}, {"x": x})["y"].sum())(jnp.ones(2)), 2)


def test_mixed_types_are_refused():
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="mixed")]
    with pytest.raises(jaxrnn.ModelError, match="'mixed'"):
        jaxrnn.load(model(nodes, [("x", FLOAT, [2])], [("y", FLOAT, [2])], [("w", np.ones(2, np.float64))]))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_negative_powers_of_integers(dtype):
    """As in ONNX Runtime, except for 1 / 0, where processors and engines differ."""
    base, exponent = (each.ravel().astype(dtype) for each in np.meshgrid(np.arange(-4, 5), np.arange(-4, 5)))
    for arrays in ({"x": base, "p": exponent}, {"x": base[exponent == -3], "p": dtype(-3)}):
        for constants in ([], ["p"]):
            proto, given = one_operator("Pow", arrays, outputs=["y"], constants=constants)
            endless = (arrays["x"] == 0) & (arrays["p"] < 0)
            expected = np.where(endless, np.iinfo(dtype).max, by_onnx_runtime(proto, given))
            np.testing.assert_array_equal(computed(proto, given), expected)


def test_whole_powers_have_finite_gradients_everywhere():
    loaded = jaxrnn.load(
        model(
            [helper.make_node("Pow", ["x", "p"], ["y"])],
            [("x", FLOAT, [3])],
            [("y", FLOAT, [3])],
            [("p", np.float32(2))],
        )
    )
    assert loaded.params == {}
    slope = jax.grad(lambda x: loaded.apply({}, {"x": x})["y"].sum())(jnp.asarray([-1.0, 0.0, 2.0]))
    np.testing.assert_array_equal(slope, [-2, 0, 4])
