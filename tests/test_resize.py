"""Resize and Upsample against both engines, in every type, as streams, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from jax.test_util import check_grads
from node_models import by_onnx_runtime, by_reference, check, computed, invalid, one_node
from onnx import helper
from small_models import graph_of, make_model
from streaming_verifier import check_values
from tiers import in_later_tier, of_tiers

import jaxrnn
from jaxrnn._jax.context import exact_types
from jaxrnn.onnx.operators.resize import resize, resize_10, upsample

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.25, 0.3, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def scales(*values):
    return np.array(values, np.float32)


@st.composite
def resizings(draw):
    """An image, and inputs and attributes of Resize."""
    x = floats(1, 2, draw(st.integers(1, 7)), draw(st.integers(1, 7)), seed=draw(st.integers(0, 99)))
    mode = draw(st.sampled_from(("nearest", "linear", "cubic")))
    attributes = {"mode": mode, "coordinate_transformation_mode": draw(st.sampled_from(COORDINATES))}
    if mode == "nearest":
        attributes["nearest_mode"] = draw(st.sampled_from(NEAREST))
    else:
        attributes["antialias"] = draw(st.sampled_from((0, 0, 1)))
        attributes["exclude_outside"] = draw(st.integers(0, 1))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = draw(st.sampled_from((-0.5, -0.75)))
    axes = draw(st.permutations((2, 3)))
    if draw(st.booleans()):
        return x, {"scales": scales(*draw(st.tuples(*2 * [st.sampled_from(SCALES)]))), "sizes": None}, axes, attributes
    sizes = np.array(draw(st.tuples(*2 * [st.integers(1, 9)])))
    policies = ("stretch", "stretch", "not_larger", "not_smaller")
    attributes["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
    return x, {"scales": None, "sizes": sizes}, axes, attributes


@settings(max_examples=16, deadline=None)
@given(resizings())
def test_any_setting(case):
    """Where both engines run and differ, one of them is right: ONNX Runtime takes ``align_corners`` to the last whole
    element and not to the fractional width; the reference takes -0.5 for the place of a single element in
    ``pytorch_half_pixel`` and, by rounding, the wrong neighbours of a place that is nearly an element."""
    x, given_sizes, axes, attributes = case
    if attributes["coordinate_transformation_mode"] in COORDINATES[1:3] and attributes["mode"] == "linear":
        attributes["exclude_outside"] = 0  # which ONNX Runtime does not have in this mode
    inputs = {"x": x, "roi": None, **given_sizes}
    check("Resize", inputs, opset=19, constants=("scales",), axes=list(axes), atol=1e-4, **attributes)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(("nearest", "linear", "cubic")),
    st.tuples(*2 * [st.integers(1, 9)]),
    st.lists(st.integers(-2, 10), min_size=4, max_size=4),
)
def test_a_part_of_an_image(mode, sizes, region):
    """ONNX Runtime leaves the region out where the size stays, and in mode cubic the value outside the image."""
    # In eighths, so that no engine's rounding decides whether the last place is in the image.
    roi = np.array([0, 0, *region[:2], 8, 8, *region[2:]], np.float32) / 8
    inputs = {"x": floats(1, 2, 4, 5), "roi": roi, "scales": None, "sizes": np.array([1, 2, *sizes])}
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0, "mode": mode}
    check("Resize", inputs, opset=13, constants=("roi",), engines=(by_reference,), atol=1e-4, **attributes)


@pytest.mark.parametrize("scale", [0.5, 0.6, 1.5, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_versions(mode, scale):
    """Before opset 11 the specification does not say where an element comes from; ONNX Runtime does."""
    inputs = {"x": floats(1, 2, 5, 6), "scales": scales(1, 1, scale, scale)}
    only = {"engines": (by_onnx_runtime,), "constants": ("scales",), "mode": mode}
    check("Resize", inputs, opset=10, **only)
    if scale > 1:
        check("Upsample", inputs, opset=9, **only)
        check("Upsample", {"x": inputs["x"]}, opset=7, engines=(by_onnx_runtime,), mode=mode, scales=[1, 1, scale, 2.0])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "uint64", "float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_types(mode, dtype):
    """Rounded to the nearest integer, where ONNX Runtime cuts off, and kept in the range of the type."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(1).integers(0, 126, (1, 1, 5, 7)) * (-1 if dtype.kind == "i" else 1)
    x[0, 0, 0, :2] = 127, 0
    inputs = {"x": x.astype(dtype), "roi": None, "scales": scales(1, 1, 1.5, 1.5)}
    check("Resize", inputs, opset=19, constants=("scales",), engines=(by_reference,), mode=mode, antialias=0, atol=0.5)


def test_other_elements():
    """Truth values, complex numbers and strings are taken from the nearest place."""
    doubled = {"roi": None, "scales": scales(1, 2)}
    x = np.array([[True, False, True]])
    found = computed(*one_node("Resize", {"x": x} | doubled, opset=19, constants=("scales",)))
    np.testing.assert_array_equal(found, np.repeat(x, 2, 1))
    with exact_types():
        z = np.array([[1 + 2j, 3, -1j]])
        np.testing.assert_array_equal(resize(z, None, scales(1, 2)), np.repeat(z, 2, 1))
        words = np.array([["a", "bc", ""]], np.dtypes.StringDType())
        np.testing.assert_array_equal(resize(words, None, scales(1, 2)), np.repeat(words, 2, 1))
        linear = resize(z, None, scales(1, 2), mode="linear")
    np.testing.assert_allclose(linear[0, 1], z[0, 0] * 0.75 + z[0, 1] * 0.25)


def test_a_third_means_a_third():
    """Every third element, though the float32 of 1/3 would lead to the one before."""
    x = np.arange(30, dtype=np.float32)[None]
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    inputs = {"x": x, "roi": None, "scales": scales(1, 1 / 3)}
    found = computed(*one_node("Resize", inputs, opset=13, constants=("scales",), **attributes))
    np.testing.assert_array_equal(found, x[:, ::3])


def test_no_elements():
    inputs = {"x": floats(0, 2, 3), "roi": None, "scales": scales(1, 1, 2.5)}
    found = computed(*one_node("Resize", inputs, opset=13, constants=("scales",), mode="linear"))
    assert found.shape == (0, 2, 7)


@pytest.mark.parametrize(
    ("mode", "scale"),
    in_later_tier(
        [("nearest", 2), ("linear", 0.3), ("linear", 3), ("cubic", 2), ("cubic", 0.3)], [("linear", 3), ("cubic", 2)]
    ),
)
def test_gradients(mode, scale):
    """In float64, by shifts and by gathering, stretched filters included."""
    with jax.enable_x64(True):
        x = jnp.array(np.random.default_rng(0).normal(size=(2, 5, 4)))
        attributes = {"mode": mode, "antialias": int(mode != "nearest")}
        function = jax.jit(lambda x: jnp.sum(jnp.sin(resize(x, None, scales(1, scale, 1.5), **attributes))))
        check_grads(function, (x,), order=1, modes=("rev", "fwd"), atol=1e-7, rtol=1e-7)


STREAMS = {
    "nearest": (lambda x: resize(x, None, scales(1, 1, 3)), 0),
    "PyTorch's nearest": (
        lambda x: resize(x, None, scales(1, 1, 2), coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        0,
    ),
    "nearest, a neighbour's": (lambda x: resize(x, None, scales(1, 1, 3), nearest_mode="floor"), None),
    "linear": (lambda x: resize(x, None, scales(1, 1, 2), mode="linear"), 1),
    "cubic": (lambda x: resize(x, None, scales(1, 1, 2), mode="cubic"), 3),
    "every third": (lambda x: resize(x, None, scales(1, 1, 1 / 3), mode="linear"), 0),
    "sizes": (lambda x: resize(x, None, None, np.array([1, 2, 4 * x.shape[2]], object)), 0),
    "another axis": (lambda x: resize(x, None, scales(1, 1.7, 1), mode="cubic", antialias=1), 0),
    "version 10": (lambda x: resize_10(x, scales(1, 1, 0.5)), None),
    "upsample": (lambda x: upsample(x, scales(1, 1, 2), mode="linear"), 1),
}


@pytest.mark.parametrize(
    "name", of_tiers(STREAMS, ["every third", "sizes", "version 10"], ["cubic", "nearest, a neighbour's"])
)
def test_streams(name):
    function, delay = STREAMS[name]
    streamed = check_values(function, (1, 2, 1), 2, lengths=(1, 2, 7), chunkings=((2, 1, 3),))
    assert delay is None or streamed.delay == delay


@pytest.mark.thorough
def test_a_model_streams():
    """The scales of the file, and sizes that it computes from a shape, along an open axis."""
    node = helper.make_node
    nodes = [
        node("Resize", ["x", "", "scales"], ["twice"], mode="linear"),
        node("Shape", ["twice"], ["shape"]),
        node("Mul", ["shape", "factors"], ["sizes"]),
        node("Resize", ["twice", "", "", "sizes"], ["y"]),
    ]
    constants = {"scales": scales(1, 1, 2), "factors": np.array([1, 2, 3])}
    model = jaxrnn.load(make_model(graph_of(nodes, {"x": [1, 2, "S"]}, {"y": None}, constants), opset=19))
    streamed = model.stream(pulse=2)
    x = floats(1, 2, 5)
    found = jax.jit(streamed.run)(model.params, {"x": x})["y"]
    expected = model.apply(model.params, {"x": x})["y"]
    assert found.shape == (1, 4, 30)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, "align_corners.*depends on the size"),
        ({"mode": "cubic", "exclude_outside": 1}, "exclude_outside"),
    ],
)
def test_what_an_open_size_cannot_have(attributes, message):
    (size,) = export.symbolic_shape("S")
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: resize(x, None, scales(2), **attributes), jax.ShapeDtypeStruct((size,), np.float32))
    with pytest.raises(ValueError, match="not by 3/2"):
        jax.eval_shape(lambda x: resize(x, None, scales(1.5)), jax.ShapeDtypeStruct((size,), np.float32))


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({"s": scales(1, 1, 2), "z": np.array([1, 2, 6])}, {}, "not both"),
        ({}, {}, "either scales or sizes|must be provided, but not both"),
        ({"s": scales(1, 2)}, {}, "rank of input"),
        ({"s": scales(1, 1, -2)}, {}, "greater than 0"),
        ({"s": scales(1, 1, 2)}, {"mode": "bilinear"}, "nearest, linear or cubic"),
        ({"s": scales(1, 1, 2)}, {"nearest_mode": "round"}, "nearest_mode"),
        ({"s": scales(1, 1, 2)}, {"coordinate_transformation_mode": "corners"}, "'corners'"),
        ({"s": scales(1, 1, 2)}, {"coordinate_transformation_mode": "tf_crop_and_resize"}, "roi of 6"),
        ({"s": scales(1, 1, 2)}, {"antialias": 1}, "antialias"),
        ({"s": scales(1, 1, 2)}, {"axes": [0, 1, 1]}, "more than once"),
        ({"z": np.array([1, 2, 6])}, {"keep_aspect_ratio_policy": "larger"}, "larger"),
    ],
)
def test_what_does_not_fit_is_refused(inputs, attributes, message):
    x = {"x": floats(1, 2, 3), "roi": None, "s": None, "z": None} | inputs
    error = invalid("Resize", x, opset=19, constants=("s",), **attributes)
    assert any(part in error for part in message.split("|")), error
