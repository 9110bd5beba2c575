"""Streams and steps of real networks as files: equal to the offline model, and loaded again with their state."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from exported_files import ExportedStream, session
from test_export_step import assert_close

import jaxrnn

#: By network, its time axis.
STREAMS = {
    "keyword_net": "S",
    **dict.fromkeys(("wave_net", "filter_net", "dual_path_net"), "S"),
    "exports/conv_gru_script": "T",
    "exports/keras_lstm_last": "unk__87",
}
#: By network, inputs that are fixed, open sizes, and the size of its outputs where they may be much smaller.
STEPS = {
    "dtln_2": ({}, {}, 0),
    "dtln_1": ({}, {}, 0),
    "gtcrn": ({}, {}, 0),
    "silero_vad_16k_op15": ({"sr": 16000}, {"sequence": 576}, 1),  # a probability
}


def first_is_quick(names):
    """One network in every run, the others in the thorough tier."""
    first, *others = names
    return [first, *(pytest.param(name, marks=pytest.mark.thorough) for name in others)]


def assert_found(path):
    """The state that a file says it has is the one that is found without its metadata."""
    proto = onnx.load(path)
    del proto.metadata_props[:]
    stated, found = jaxrnn.load(path), jaxrnn.load(proto)
    assert [(each.input, each.output) for each in found.state] == [(each.input, each.output) for each in stated.state]
    return stated


@pytest.mark.parametrize("name", first_is_quick(STREAMS))
def test_streams(name, models, tmp_path):
    model = jaxrnn.load(models / f"{name}.onnx")
    streamed = model.stream(STREAMS[name], pulse=None)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, model.params, paths[0], flush=paths[1])
    stream, rng = ExportedStream(*paths), np.random.default_rng(0)
    for frames in (1, 7):
        inputs = {}
        for each in streamed.spec.inputs:
            shape = list(each.sizes)
            if each.time_axis is not None:
                shape[each.time_axis] = frames * shape[each.time_axis]
            inputs[each.name] = rng.standard_normal(shape).astype(each.dtype)
        assert_close(stream.run(inputs), model.apply(model.params, inputs))
    loaded = assert_found(paths[0])
    state = loaded.init()
    pulse = {each.name: inputs[each.name][tuple(map(slice, each.sizes))] for each in streamed.spec.inputs}
    outputs, state = loaded.step(loaded.params, state, pulse)
    given = _run(paths[0], {**pulse, **dict(np.load(tmp_path / "step.first_state.npz"))})
    assert_close({**outputs, **{each.output: state[each.name] for each in loaded.state}}, given)


def _run(path, inputs):
    opened = session(path)
    names = [value.name for value in opened.get_outputs()]
    return dict(zip(names, opened.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", first_is_quick(STEPS))
def test_steps(name, models, tmp_path):
    """A step has the names of its file for all arrays, and is the same step."""
    static, dims, scale = STEPS[name]
    path = tmp_path / "step.onnx"
    model = jaxrnn.load(models / f"{name}.onnx", static=static)
    jaxrnn.export_onnx(model, None, path, step=True, dims=dims)
    loaded = jaxrnn.load(path) if name == "gtcrn" else assert_found(path)  # it takes long
    assert [(each.input, each.output) for each in loaded.state] == [(each.input, each.output) for each in model.state]
    assert {each.name for each in loaded.inputs} == {each.name for each in model.inputs}
    assert {each.name for each in loaded.outputs} == {each.name for each in model.outputs}
    rng, opened = np.random.default_rng(0), session(path)
    carried, again, state = model.init(), loaded.init(), dict(np.load(tmp_path / "step.first_state.npz"))
    names = [value.name for value in opened.get_outputs()]
    for _ in range(4):
        x = {each.name: rng.standard_normal(each.sizes).astype(each.dtype) for each in loaded.spec.inputs}
        expected, carried = model.step(model.params, carried, x)
        outputs, again = loaded.step(loaded.params, again, x)
        given = dict(zip(names, opened.run(None, {**x, **state}), strict=True))
        state = {each.input: given[each.output] for each in model.state}
        assert_close(outputs, expected, scale)
        assert_close({name: given[name] for name in expected}, expected, scale)
        assert_close(state, carried)


def test_a_step_with_sizes_of_its_own_in_the_state_is_verified(models, tmp_path):
    """They are given once, and everything that runs the step takes them."""
    model = jaxrnn.load(models / "exports" / "step_attend_script.onnx")
    assert model.pack(model.params, dims={"S": 20}).folded
    jaxrnn.export_onnx(model, None, tmp_path / "step.onnx", step=True, dims={"S": 20})
    report = jaxrnn.export.verify_export(model, model.params, tmp_path / "step.onnx")
    assert report.ok
    assert report.checks
