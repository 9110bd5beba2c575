"""Exports for one engine: recurrent layers in the form that tract runs, and the same numbers in all engines."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import lengths_of, session
from recurrent_reference import build
from refusals import check_refused
from tiers import of_tiers

import jaxrnn
from jaxrnn.errors import InputError
from jaxrnn.export import verify_export

RNG = np.random.default_rng(0)
#: Gates, and attributes that tract ignores in a node.
LAYERS = {"LSTM": (4, {}), "GRU": (3, {"linear_before_reset": 1}), "RNN": (1, {"activations": ["Relu"]})}


def streamed(operator, pulse):
    """A stream of a layer after two frames of look-ahead, so that frames before the start do not exist in steps."""
    gates, attributes = LAYERS[operator]
    shapes = {"X": (7, 1, 3), "W": (1, 5 * gates, 3), "R": (1, 5 * gates, 5), "B": (1, 10 * gates)}
    arrays = {name: (0.5 * RNG.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    wanted = [True] * (3 if operator == "LSTM" else 2)
    proto = build(operator, arrays, {"hidden_size": 5, **attributes}, wanted, 14, {"X"})
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    layer = jaxrnn.load(proto)

    def function(params, inputs):
        x = inputs["x"]
        y = layer.apply(params, {"X": (x + jnp.pad(x, ((0, 2), (0, 0)))[2:])[:, None]})
        return {"y": y["Y"][:, 0, 0], "last": y["Y_h"]}

    x = {"x": np.zeros((7, 3), np.float32)}
    return jaxrnn.stream(function, x, axes=0, params=layer.params, pulse=pulse), layer.params


STREAMS = {f"{name}, {pulse}": (name, pulse) for name in LAYERS for pulse in (3, 40)}


@pytest.fixture(scope="module", params=of_tiers(STREAMS, ["GRU, 40"], thorough=()))
def exported(request, tmp_path_factory):
    """A stream, its parameters, and its step and flush for tract."""
    (stream, params), folder = streamed(*STREAMS[request.param]), tmp_path_factory.mktemp("files")
    written = jaxrnn.export_onnx(stream, params, folder / "step.onnx", flush=folder / "flush.onnx", target="tract")
    return stream, params, written


def test_no_number_of_frames_is_computed(exported):
    """The same stream for all engines has one."""
    stream, params, written = exported
    assert not lengths_of(onnx.load(written.step.path).graph)
    assert not lengths_of(onnx.load(written.flush.path).graph)
    flush = written.flush.path.with_name("all.onnx")
    jaxrnn.export_onnx(stream, params, flush.with_name("step_for_all.onnx"), flush=flush)
    assert lengths_of(onnx.load(flush).graph)


@pytest.mark.thorough
def test_every_recording_has_the_same_numbers(exported):
    stream, params, written = exported
    offline = lambda inputs: stream.run(params, inputs)  # noqa: E731
    report = verify_export(stream, params, written.step.path, offline=offline)
    assert report.ok, report


def test_the_facts_name_the_engine(exported):
    *_, written = exported
    assert written.step.facts.target == written.flush.facts.target == "tract"
    for each in (written.step, written.flush):
        told = {entry.key: entry.value for entry in onnx.load(each.path).metadata_props}
        assert json.loads(told["jaxrnn"])["target"] == "tract"
    assert jaxrnn.load(written.step.path).spec.state


def test_the_files_run_in_tract(exported):
    tract = pytest.importorskip("tract", reason="tract is not installed: pip install tract")
    *_, written = exported
    first = dict(np.load(written.step.path.with_name("step.first_state.npz")))
    rng = np.random.default_rng(1)
    for each in (written.step, written.flush):
        opened = session(each.path)
        feeds = dict(first)
        for entry in opened.get_inputs():
            if entry.name not in feeds:
                kind = np.int32 if entry.type == "tensor(int32)" else np.float32
                feeds[entry.name] = np.asarray(2 if kind is np.int32 else rng.normal(size=entry.shape), kind)
        network = tract.onnx().load(str(each.path)).into_model()
        places = [network.input_name(index) for index in range(network.input_count())]
        found = network.into_runnable().run([feeds[name] for name in places])
        for value, expected in zip(found, opened.run(None, feeds), strict=True):
            np.testing.assert_allclose(value.to_numpy(), expected, atol=1e-5)


def step_of_equal_dimensions():
    """A step whose input and state each name the batch, and whose input has an open number of frames."""
    shapes = {"X": (3, 2, 3), "W": (1, 15, 3), "R": (1, 15, 5), "initial_h": (1, 2, 5)}
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    proto = build("GRU", arrays, {"hidden_size": 5}, [True, True], 14, {"X", "initial_h"})
    names = {"X": ("frames", "rows", None), "initial_h": (None, "streams", None)}
    for value in proto.graph.input:
        for dim, name in zip(value.type.tensor_type.shape.dim, names[value.name], strict=True):
            if name is not None:
                dim.dim_param = name
    return jaxrnn.load(proto, state={"initial_h": "Y_h"})


def test_sizes_of_equal_dimensions_may_all_be_given(tmp_path):
    """The size of the batch among the sizes is the batch, by either name."""
    model, path = step_of_equal_dimensions(), tmp_path / "step.onnx"
    for dims in ({"rows": 2}, {"streams": 2}, {"rows": 2, "streams": 2}):
        jaxrnn.export_onnx(model, None, path, step=True, dims={"frames": 4, **dims})
        assert [each.shape for each in session(path).get_inputs()] == [[4, 2, 3], [1, 2, 5]]
        assert verify_export(model, model.params, path).ok
    refused = {
        "rows, streams to be equal: give one size": {"dims": {"frames": 4, "rows": 2, "streams": 3}},
        "dims` gives 2 for the batch, 'rows', and `batch` gives 3: leave out one": {
            "dims": {"frames": 4, "streams": 2},
            "batch": 3,
        },
        r"give the size of frames \(axis 0 of 'X'\), as in `dims=": {"dims": {"rows": 2}},
        "the size of the batch, 'rows', must be a whole number": {"dims": {"frames": 4, "rows": 0}},
    }
    for words, options in refused.items():
        check_refused(InputError, words, jaxrnn.export_onnx, model, None, path, step=True, **options)
