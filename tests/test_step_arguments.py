"""What a step takes is the same wherever it is given: types of integers, arrays of unknown rank, sequences."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import check_refused
from small_models import graph_of, make_model

import jaxrnn

info = helper.make_tensor_value_info
ZERO = numpy_helper.from_array(np.array(0), "zero")


def adding(x, kind):
    """``y = h' = h + x``."""
    nodes = [helper.make_node("Add", ["x", "h"], ["h2"]), helper.make_node("Identity", ["h2"], ["y"])]
    outputs = [info("y", kind, [2]), info("h2", kind, [2])]
    return jaxrnn.load(
        make_model(helper.make_graph(nodes, "adding", [x, info("h", kind, [2])], outputs)), state={"h": "h2"}
    )


def counting():
    """The sums of integers over all of time."""
    nodes, shape = [helper.make_node("CumSum", ["x", "zero"], ["y"])], ["S"]
    return jaxrnn.load(make_model(graph_of(nodes, {"x": (7, shape)}, {"y": (7, shape)}, {"zero": np.array(0)})))


def calls(tmp_path):
    """Everything that takes ``x`` of int64[2], once as a step and once as a recording."""
    model = adding(info("x", TensorProto.INT64, [2]), TensorProto.INT64)
    whole = counting()
    streamed = whole.stream(pulse=2)
    jaxrnn.save_compiled(model, tmp_path / "steps")
    jaxrnn.save_compiled(streamed, tmp_path / "stream", params=whole.params)
    stepped = {"apply": lambda x: whole(x=x)["y"], "run": lambda x: streamed.run(whole.params, {"x": x})["y"]}
    for name, stepper in (
        ("model", model),
        ("stream", streamed),
        ("compiled steps", jaxrnn.load_compiled(tmp_path / "steps")),
        ("compiled stream", jaxrnn.load_compiled(tmp_path / "stream")),
    ):
        params = whole.params if stepper is streamed else getattr(stepper, "params", None)

        def step(x, stepper=stepper, params=params):
            return stepper.step(params, stepper.init(), {"x": x})[0]["y"]

        def scan(x, stepper=stepper, params=params):
            x = x if stepper.spec.streams else ([x] if isinstance(x, list) else x[None])
            return stepper.scan(params, stepper.init(), {"x": x})[0]["y"]

        def pushed(x, stepper=stepper, params=params):
            pool = jaxrnn.StreamPool(stepper, params, 1)
            stream = pool.open()
            pool.push(stream, {"x": x})
            return pool.run()[stream]["y"]

        def live(x, stepper=stepper, params=params):
            return jaxrnn.Runner(stepper, params)({"x": x})["y"]

        own = {"step": step, "scan": scan, "pool": pushed, "runner": live}
        stepped |= {f"{what} of {name}": call for what, call in own.items()}
    return stepped


@pytest.mark.thorough
def test_integers(tmp_path):
    """JAX makes int32 of int64 arrays, so int32 serves as int64, whosever it is; no other type does."""
    for name, call in calls(tmp_path).items():
        for x in (np.array([1, 2]), jnp.array([1, 2]), np.int32([1, 2]), [1, 2]):
            result = call(x)
            assert result.dtype == np.int64, name
            assert np.ravel(result).tolist() in ([1, 2], [1, 3]), name
        for x in (np.float32([1, 2]), np.int16([1, 2]), np.uint32([1, 2])):
            check_refused(jaxrnn.InputError, rf"int64.* got {x.dtype}.*convert it with .astype\('int64'\)", call, x)


def test_arguments_that_are_no_dicts(tmp_path):
    """An array in place of a dict by name, and no argument, wherever inputs are taken."""
    model, whole = adding(info("x", TensorProto.INT64, [2]), TensorProto.INT64), counting()
    streamed = whole.stream(pulse=2)
    jaxrnn.save_compiled(streamed, tmp_path / "stream", params=whole.params)
    compiled = jaxrnn.load_compiled(tmp_path / "stream")
    runner, pool = jaxrnn.Runner(streamed, whole.params), jaxrnn.StreamPool(model, None, 1)
    number = pool.open()
    calls = [
        lambda x: whole.apply(whole.params, x),
        lambda x: model.run({}, x),
        lambda x: streamed.run(whole.params, x),
        lambda x: runner(x),
        lambda x: pool.push(number, x),
        *(
            lambda x, each=each, params=params, call=call: getattr(each, call)(params, each.init(), x)
            for each, params in ((model, {}), (streamed, whole.params), (compiled, compiled.params))
            for call in ("step", "scan")
        ),
    ]
    for call in calls:
        for value, said in ((np.zeros(2), r"float64\[2\]"), (None, "NoneType"), ([1, 2], "list")):
            words = rf"must be a (dict of arrays by name, as \{{'x': array\}}|pytree .* with x\['x'\]), not {said}"
            check_refused(jaxrnn.InputError, words, call, value)
    words = "(the tail|x) must be a (dict|pytree)"
    check_refused(jaxrnn.InputError, words, streamed.flush, whole.params, streamed.init(), np.zeros(2), 1)
    check_refused(jaxrnn.InputError, "the constants must be a dict", jaxrnn.StreamPool(model, None, 1).open, 3)


def test_numbers_of_python_are_parameters_of_a_compiled_file(tmp_path):
    x = {"x": np.ones((3, 2), np.float32)}
    streamed = jaxrnn.stream(lambda p, x: {"y": p * jnp.cumsum(x["x"], 0)}, x, axes=0, params=0.5)
    jaxrnn.save_compiled(streamed, tmp_path / "file", params=0.5)
    compiled = jaxrnn.load_compiled(tmp_path / "file")
    found = compiled.step(compiled.params, compiled.init(), {"x": x["x"][:1]})[0]["y"]
    np.testing.assert_array_equal(found, [[0.5, 0.5]])


def test_a_batch_of_arrays_of_unknown_rank():
    model = adding(info("x", TensorProto.FLOAT, None), TensorProto.FLOAT)
    x, state = np.ones((3, 2), np.float32), model.init(3)
    np.testing.assert_array_equal(model.step(model.params, state, {"x": x})[0]["y"], x)
    for wrong in (x[:2], x[0], np.float32(1)):
        with pytest.raises(jaxrnn.InputError, match=r"input x: float32\[...\] got .* needs a leading axis of 3"):
            model.step(model.params, state, {"x": wrong})


def test_sequences_have_no_batch():
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SequenceAt", ["x", "zero"], ["first"]),
        helper.make_node("Add", ["first", "h"], ["h2"]),
        helper.make_node("Identity", ["h2"], ["y"]),
    ]
    shapes = [info(name, TensorProto.FLOAT, [2]) for name in ("h", "y", "h2")]
    graph = helper.make_graph(nodes, "sequences", [sequence, shapes[0]], shapes[1:], [ZERO])
    model = jaxrnn.load(make_model(graph), state={"h": "h2"})
    x = [np.ones(2, np.float32)]
    assert model.step(model.params, model.init(), {"x": x})[0]["y"].tolist() == [1, 1]
    for call in (lambda: model.step(model.params, model.init(2), {"x": x}), lambda: jaxrnn.Runner(model)({"x": x})):
        check_refused(jaxrnn.InputError, "input x: sequence or optional is not an array of numbers", call)


def test_frames_that_are_not_stacked():
    """A recording whose frames are joined says why it cannot be cut into steps, and what to do."""
    for shape, batch, recording, why in (
        ([1, "time", 4], None, (1, 6, 4), "the file leaves axis 1 open"),
        ([1, 4], None, (1, 6), "axis 1 cannot be cut into frames of 4"),
        ([1, 4], 2, (2, 3, 4), "axis 0 is the batch of streams"),
    ):
        axes = list(range(1, len(shape) - 1))
        nodes = [
            helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
            helper.make_node("Add", ["sum", "h"], ["h2"]),
            helper.make_node("Identity", ["h2"], ["y"]),
        ]
        ends = {"x": shape, "h": [1, 4]}, {"y": [1, 4], "h2": [1, 4]}
        nodes[0].attribute.append(helper.make_attribute("noop_with_empty_axes", 1))
        graph = graph_of(nodes, *ends, {"axes": np.array(axes, np.int64)}, "sums")
        model = jaxrnn.load(make_model(graph), state={"h": "h2"})
        axis = 0 if batch else 1
        with pytest.raises(jaxrnn.InputError, match=f"{why}.*stack the frames along a new axis"):
            model.scan(model.params, model.init(batch), {"x": np.ones(recording, np.float32)}, time_axis=axis)


def test_axes_and_sizes_of_steps():
    """Axes are numbers of any integer type, and outputs without such an axis keep their frames on axis 0."""
    x = TensorProto.FLOAT
    nodes = [
        helper.make_node("Add", ["x", "h"], ["h2"]),
        helper.make_node("ReduceSum", ["h2"], ["y"], keepdims=0),
    ]
    inputs, outputs = [info("x", x, ["batch", 3]), info("h", x, ["batch", 3])], [info("y", x, []), info("h2", x, None)]
    model = jaxrnn.load(make_model(helper.make_graph(nodes, "sums", inputs, outputs)), state={"h": "h2"})
    frames = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    for axis in (2, np.int64(2), {"x": np.int32(-1), "y": 2}):
        found, _ = model.scan(model.params, model.init(), {"x": frames}, time_axis=axis)
        np.testing.assert_allclose(found["y"], np.cumsum(frames.sum((0, 1))))
    for axis, why in (
        ("time", "number of an axis"),
        (None, "number of an axis"),
        (3, "no axis 3"),
        (-4, "no axis -4"),
        ({"z": 2}, "time_axis: the model has no input or output 'z'; there is: x, h, y, h2"),
    ):
        with pytest.raises(jaxrnn.InputError, match=why):
            model.scan(model.params, model.init(), {"x": frames}, time_axis=axis)
    for size in (-1, 1.5):
        with pytest.raises(jaxrnn.InputError, match=f"size of 'batch' in dims must be a whole number.*not {size}"):
            model.init(dims={"batch": size})


@pytest.mark.parametrize("shared", ["state", "output"])
def test_streams_that_share_an_array_have_no_lengths(shared):
    x, n = TensorProto.FLOAT, TensorProto.INT64
    nodes = [helper.make_node("Add", ["x", "h"], ["h2"]), helper.make_node("Add", ["n", "one"], ["n2"])]
    inputs, outputs = [info("x", x, ["batch", 3]), info("h", x, ["batch", 3])], [info("h2", x, ["batch", 3])]
    if shared == "state":
        nodes += [helper.make_node("Identity", ["h2"], ["y"])]
        inputs, outputs = [*inputs, info("n", n, [1])], [info("y", x, None), *outputs, info("n2", n, [1])]
    else:
        nodes = [nodes[0], helper.make_node("ReduceSum", ["h2"], ["y"], keepdims=0)]
        outputs = [info("y", x, []), *outputs]
    graph = helper.make_graph(nodes, "sums", inputs, outputs, [numpy_helper.from_array(np.ones(1, np.int64), "one")])
    model = jaxrnn.load(make_model(graph), state={"h": "h2"} | ({"n": "n2"} if shared == "state" else {}))
    frames = np.ones((4, 2, 3), np.float32)
    with pytest.raises(jaxrnn.InputError, match=f"all streams share {'n' if shared == 'state' else 'y'!r}"):
        model.scan(model.params, model.init(2), {"x": frames}, lengths=[2, 4])
    outputs, state = model.scan(model.params, model.init(), {"x": frames[:, :1]}, lengths=[2])
    np.testing.assert_allclose(state["h"], np.full((1, 3), 2))
    assert not np.any(outputs["y"][2:])
