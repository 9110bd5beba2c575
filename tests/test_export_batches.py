"""Files for any number of streams: `jaxrnn.export_onnx(batch="N")`."""

from __future__ import annotations

import functools

import jax
import numpy as np
import onnx
import pytest
from exported_files import ExportedStream
from refusals import check_refused
from test_export_step import Smoother, assert_close, filter_params, filter_stream, filtered, recording
from verifier import run_session, session

import jaxrnn
from jaxrnn.export.verification import verify_export

#: A step over a batch of its own, with the body in the middle.
_STEP = """
<ir_version: 9, opset_import: ["": 17]>
m (float[N, 4] x, float[2, N, 4] h) => (float[{out}] y, float[2, N, 4] h_next)
<int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
    both = Unsqueeze (x, zero)
    sum = Add (h, both)
    h_next = Tanh (sum)
    {body}
}}"""


def step_of(body, out="N"):
    return jaxrnn.load(onnx.parser.parse_model(_STEP.format(body=body, out=out)), state={"h": "h_next"})


def run(model, feeds):
    return run_session(model, {name: np.asarray(array) for name, array in feeds.items()})


@pytest.mark.thorough
def test_a_stream_and_its_flush(tmp_path):
    params = filter_params()
    streamed = filter_stream(params, 4)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    written = jaxrnn.export_onnx(streamed, params, paths[0], flush=paths[1], batch="N")
    facts = written.step.facts
    assert (facts.batch, {each.shape[0] for each in (*facts.spec.inputs, *facts.spec.outputs)}) == ("N", {"N"})
    assert {array.shape[0] for array in facts.first.values()} == {1}
    report = verify_export(streamed, params, paths[0], offline=functools.partial(filtered, params))
    assert report.ok
    assert len(report.cases) % 2 == 0
    for batch in (1, 2, 5):
        x = {"x": np.stack([recording(10, seed)["x"] for seed in range(batch)])}
        assert_close(ExportedStream(*paths, batch).run(x), jax.vmap(functools.partial(filtered, params))(x))


def test_a_stepper_of_ones_own_is_loaded_again(tmp_path):
    """Streams have a first state of their own, which the file has once."""
    path = tmp_path / "step.onnx"
    facts = jaxrnn.export_onnx(Smoother(), np.float32(0.75), path, batch="N").step.facts
    model, rng = jaxrnn.load(path), np.random.default_rng(0)
    assert facts.first.keys() == Smoother().init().keys()
    for batch in (1, 2, 5):
        state, own = model.init(batch), Smoother().init(batch)
        inputs = {
            each.name: rng.standard_normal((batch, *each.shape)).astype(each.dtype) for each in Smoother().spec.inputs
        }
        expected, after = jax.vmap(Smoother().step, (None, 0, 0))(np.float32(0.75), own, inputs)
        names = {names.input: own for own, names in facts.state.items()}
        for name, own_name in names.items():
            np.testing.assert_array_equal(state[name], own[own_name])
        feeds = {facts.inputs[name]: array for name, array in inputs.items()} | dict(state)
        found = run(session(onnx.load(path)), feeds)
        outputs, new = model.step(model.params, state, {facts.inputs[name]: each for name, each in inputs.items()})
        for name, array in expected.items():
            np.testing.assert_allclose(found[facts.outputs[name]], array, rtol=1e-6)
            np.testing.assert_allclose(outputs[facts.outputs[name]], array, rtol=1e-6)
        for name, own_name in names.items():
            np.testing.assert_allclose(new[name], after[own_name], rtol=1e-6)
    again = jaxrnn.export_onnx(model, None, tmp_path / "again.onnx", step=True)
    assert (again.step.facts.batch, again.step.facts.spec.inputs[0].sizes[0]) == (1, 1)
    other = jaxrnn.export_onnx(model, None, tmp_path / "again.onnx", step=True, batch="M")
    assert (other.step.facts.batch, other.step.facts.spec.inputs[0].symbols) == ("M", ["M"])


#: Bodies that a file has for any number of streams, and others, with the sizes of the output.
OPEN = {
    "a size": (
        "t = Transpose <perm = [1, 0, 2]> (h_next)  shape = Constant <value_ints = [-1, 8]> ()  y = Reshape (t, shape)",
        "N, 8",
    ),
    "sizes of a constant": (
        "n = Shape <start = 0, end = 1> (x)  ones = ConstantOfShape <value = float[1] {3}> (n)"
        "  column = Unsqueeze (ones, one)  y = Concat <axis = 1> (x, column)",
        "N, 5",
    ),
    "a multiple and an offset": (
        "n = Shape <start = 0, end = 1> (x)  two = Add (one, one)  m = Mul (n, two)  k = Sub (m, one)"
        "  whole = Cast <to = 7> (x)  moved = Add (whole, k)  y = Cast <to = 1> (moved)",
        "N, 4",
    ),
}
REFUSED = {
    "a multiple": ("flat = Constant <value_ints = [-1]> ()  y = Reshape (h_next, flat)", "M", "'y' has the sizes"),
    "a square": (
        "n = Shape <start = 0, end = 1> (x)  m = Mul (n, n)  whole = Cast <to = 7> (x)"
        "  moved = Add (whole, m)  y = Cast <to = 1> (moved)",
        "N, 4",
        "node '.*' .Add. has a constant",
    ),
    "a number": (
        "n = Shape <start = 0, end = 1> (x)  f = Cast <to = 1> (n)"
        "  m = ReduceMax <axes = [0, 2], keepdims = 0> (h_next)  y = Mul (m, f)",
        "N",
        "node '.*' .Mul. has a constant",
    ),
}


@pytest.mark.parametrize("name", sorted(OPEN))
def test_steps_with_a_batch_of_their_own(tmp_path, name):
    model, path = step_of(*OPEN[name]), tmp_path / "step.onnx"
    jaxrnn.export_onnx(model, None, path, step=True, batch="streams")
    file, rng = session(onnx.load(path)), np.random.default_rng(0)
    assert verify_export(model, None, path).ok
    for batch in (1, 2, 5):
        x, state = rng.standard_normal((batch, 4)).astype(np.float32), model.init(batch)
        outputs, after = model.step(model.params, state, {"x": x})
        found = run(file, {"x": x, **state})
        for name, array in {**outputs, "h_next": after["h"]}.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_no_file_can_say_is_refused(tmp_path, name):
    body, out, words = REFUSED[name]
    model, path = step_of(body, out), tmp_path / "step.onnx"
    assert jaxrnn.export_onnx(model, None, path, step=True, batch=2) is not None
    words = f"{words}.*with 3, 7 and 11 streams.*`batch=8`"
    check_refused(jaxrnn.UnsupportedError, words, jaxrnn.export_onnx, model, None, path, step=True, batch="N")
    for wrong in ("2", "a b"):
        words = "a name for an open number"
        check_refused(jaxrnn.InputError, words, jaxrnn.export_onnx, model, None, path, step=True, batch=wrong)
