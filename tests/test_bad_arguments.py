"""What is wrong with the arguments of a model: one clear error of the project's own, naming what and where."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from plain_graphs import ADD, RELU, WEIGHT, X, model, node
from refusals import check_refused

import jaxrnn

ONES = np.ones((2, 3), np.float32)

CALLS = {
    "a wrong name": ({"z": ONES}, ["'z'", "x: float32[2, 3]"]),
    "a near name": ({"X": ONES, "x": ONES}, ["'X'"]),
    "nothing": ({}, ["missing", "x: float32[2, 3]"]),
    "float64": ({"x": np.ones((2, 3))}, ["float64", ".astype('float32')"]),
    "integers": ({"x": np.ones((2, 3), np.int64)}, ["int64", ".astype('float32')"]),
    "another rank": ({"x": np.ones(3, np.float32)}, ["rank 2", "rank 1"]),
    "another size": ({"x": np.ones((2, 4), np.float32)}, ["axis 1 must be 3, not 4"]),
    "words": ({"x": "abc"}, ["x: float32[2, 3]", "str"]),
    "None": ({"x": None}, ["None"]),
    "objects": ({"x": np.array([None])}, ["object"]),
    "ragged lists": ({"x": [[1, 2, 3], [4]]}, ["list"]),
    "a masked array": ({"x": np.ma.array(ONES)}, ["x: float32[2, 3]", ".filled(value)"]),
    "another order of bytes, another type": ({"x": np.ones((2, 3), ">f8")}, ["float64", ".astype('float32')"]),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(what):
    inputs, words = CALLS[what]
    loaded = jaxrnn.load(model(RELU))
    for call in (loaded, lambda given: loaded.apply(loaded.params, given)):
        with pytest.raises(jaxrnn.InputError) as caught:
            call(inputs)
        for word in words:
            assert word in str(caught.value)


def test_a_batch_that_nothing_asked_for():
    loaded = jaxrnn.load(model(RELU, inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])]))
    for shape, form in (((4, 1, 3), "4 is mapped"), ((4, 3), r"4, as array\[:, None\], is mapped")):
        with pytest.raises(
            jaxrnn.InputError, match=rf"a batch of {form} by jax\.vmap, or in steps .* `init\(batch=n\)`"
        ):
            loaded.apply(loaded.params, {"x": np.ones(shape, np.float32)})
    with pytest.raises(jaxrnn.InputError) as caught:
        loaded.apply(loaded.params, {"x": np.ones((4, 5), np.float32)})
    assert "vmap" not in str(caught.value)
    assert jax.vmap(loaded.apply, (None, 0))(loaded.params, {"x": jnp.ones((4, 3))[:, None]})["y"].shape == (4, 1, 3)


def test_an_input_called_input_is_not_said_to_be_one_twice():
    named = helper.make_tensor_value_info("input", TensorProto.FLOAT, [2, 3])
    loaded = jaxrnn.load(model(node("Relu", ["input"]), inputs=[named]))
    with pytest.raises(jaxrnn.InputError, match=r"^input: float32\[2, 3\] got float32\[2, 4\]"):
        loaded(input=np.ones((2, 4), np.float32))
    check_refused(jaxrnn.InputError, r"missing input\(s\): input: float32\[2, 3\]", loaded)


def test_dimensions_of_one_name_are_one_size():
    xs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "weight")]
    loaded = jaxrnn.load(model(ADD, inputs=xs))
    with pytest.raises(jaxrnn.InputError, match="'batch' is 4 here, but 2 in 'x'"):
        loaded(x=ONES, weight=np.ones((4, 3), np.float32))


def test_other_arguments():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    check_refused(jaxrnn.InputError, "by name", loaded, ONES)
    for params, words in (
        ({"w": ONES}, r"params: there is no parameter 'w'; there is: weight"),
        ({"weight": ONES[0]}, r"params\['weight'\] must be float32\[2, 3\], not float32\[3\]"),
        (None, r"model\.params"),
    ):
        check_refused(jaxrnn.InputError, words, loaded.apply, params, {"x": ONES})
    for options, words in (
        ({"static": {"q": 1}}, "'q'"),
        ({"static": {"x": "one"}}, r"static: .*float32\[2, 3\] needs an array of that shape"),
        ({"static": {"x": [[1, 2, 3], [4]]}}, r"x: float32\[2, 3\] cannot be made from list"),
        *(({name: ["x"]}, f"{name} must be a dict by name, not list") for name in ("static", "state", "dims")),
        ({"limits": 3}, r"limits must be jaxrnn\.Limits, not int"),
        *(({"state": {"x": value}}, r"\(x\).*\(y\)") for value in ("z", ["y"])),
    ):
        check_refused(jaxrnn.InputError, words, jaxrnn.load, model(RELU), **options)
    words = r"^the model: expected a path, bytes or onnx\.ModelProto, not bytearray$"
    check_refused(jaxrnn.ModelError, words, jaxrnn.load, bytearray(model(RELU).SerializeToString()))


def test_paths_that_are_none():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    calls = [
        jaxrnn.load_compiled,
        lambda path: jaxrnn.save_compiled(loaded, path),
        lambda path: jaxrnn.export_onnx(loaded, loaded.params, path),
        lambda path: jaxrnn.export_onnx(jnp.tanh, None, path, example=jnp.ones(3)),
        lambda path: jaxrnn.inspection.write_page(model(RELU), path),
        jaxrnn.audio.read_sound,
        lambda path: jaxrnn.audio.write_wav(path, np.zeros(3), 8000),
        jaxrnn.evaluation.from_folder,
        jaxrnn.evaluation.read_results,
    ]
    for call in calls:
        for path in (None, 3, b"file"):
            check_refused(
                jaxrnn.InputError, f"a file or folder must be a path.*, not {type(path).__name__}", call, path
            )


def test_expressions_of_dimensions_that_do_not_exist():
    xs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "weight")]
    loaded = jaxrnn.load(model(ADD, inputs=xs))
    assert str(loaded.symbolic_inputs({"batch": "4*batch"})["x"].shape) == "(4*batch, 3)"
    words = "no input has an open dimension 'bach'; the open dimensions are: batch"
    check_refused(jaxrnn.InputError, words, loaded.symbolic_inputs, {"bach": "4*batch"})


def test_sizes_that_contradict():
    """Add needs equal sizes, and a dimension is no multiple of itself."""
    xs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [name.upper(), 3]) for name in ("x", "weight")]
    loaded = jaxrnn.load(model(ADD, inputs=xs), dims={"X": "2*WEIGHT"}, state={})
    assert dict(loaded.dimensions) == {"2*WEIGHT": "2*WEIGHT", "WEIGHT": "WEIGHT"}
    words = r"dims=\{'X': '0\*WEIGHT'\}`: expected a name, a size"
    check_refused(jaxrnn.InputError, words, jaxrnn.load, model(ADD, inputs=xs), dims={"X": "0*WEIGHT"})
    check_refused(jaxrnn.InputError, "`dims` must be a dict by name", loaded.stream, "WEIGHT", dims=["X"])


def test_either_order_of_bytes():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded(x=array.astype(array.dtype.newbyteorder()))["y"], loaded(x=array)["y"])


def test_not_a_number_passes_through():
    loaded = jaxrnn.load(model(ADD, initializers=[WEIGHT]))
    poisoned = ONES.copy()
    poisoned[0, 1] = np.nan
    np.testing.assert_array_equal(np.isnan(loaded(x=poisoned)["y"]), np.isnan(poisoned))


def test_a_failing_node_is_named():
    loaded = jaxrnn.load(
        model(
            node("Reshape", ["x", "shape"], name="fold"),
            inputs=[X, helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
        )
    )
    with pytest.raises(jaxrnn.NodeError, match=r"'fold' \(Reshape-14\) on float32\[2, 3\]"):
        loaded(x=ONES, shape=np.array([5]))
    with pytest.warns(UserWarning, match="evaluated node by node"):
        np.testing.assert_array_equal(loaded(x=ONES, shape=np.array([6]))["y"], np.ones(6))


def test_a_shape_that_depends_on_data_says_what_to_do():
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [1])
    proto = model(node("Reshape", ["x", "shape"], name="fold"), inputs=[X, shape])
    loaded = jaxrnn.load(proto)
    with pytest.raises(jaxrnn.StaticValueError, match=r"'fold'.*static=.*outside jit"):
        jax.jit(loaded.apply)(loaded.params, {"x": ONES, "shape": np.array([6])})
    bound = jaxrnn.load(proto, static={"shape": [6]})
    assert jax.jit(bound.apply)(bound.params, {"x": ONES})["y"].shape == (6,)


def test_protobuf_is_not_changed_by_loading():
    proto = model(ADD, initializers=[WEIGHT])
    before = proto.SerializeToString(deterministic=True)
    jaxrnn.load(proto)
    assert proto.SerializeToString(deterministic=True) == before
    assert isinstance(proto, onnx.ModelProto)
