"""The protocol of a pure step: objects of one's own run wherever a model does, and as they are or from a file."""

from __future__ import annotations

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from refusals import check_refused
from test_cli_stream import gru_step_model
from tiers import of_tiers

import jaxrnn
from jaxrnn.profiling import profile_model
from jaxrnn.steps import ArraySpec, Flushed, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left
from jaxrnn.steps.stepper import Bound

FLOAT = np.dtype("float32")


class Smoother:
    """An exponential mean of float32[2]: a step of whole frames, with parameters of its own."""

    spec = StepSpec(
        "smoother",
        inputs=(ArraySpec("x", FLOAT, (2,)),),
        outputs=(OutputSpec("y", FLOAT, (2,)),),
        state=(StateSpec("mean", FLOAT, (2,)),),
    )

    def __init__(self):
        self.params = {"keep": jnp.float32(0.75)}

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"mean": jnp.ones(2, jnp.float32)}, batch)

    def step(self, params, state, inputs):
        mean = params["keep"] * state["mean"] + (1 - params["keep"]) * inputs["x"]
        return {"y": mean}, {"mean": mean}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)

    def expected(self, x):
        mean, means = np.ones(2), []
        for frame in x:
            mean = 0.75 * mean + 0.25 * frame
            means.append(mean)
        return {"y": np.array(means)}


class Delayed:
    """Frames of float32[2] one frame late, in pulses of 2, and their sum at the end."""

    spec = StepSpec(
        "delayed",
        inputs=(ArraySpec("x", FLOAT, (2, 2), time_axis=0),),
        outputs=(
            OutputSpec("sum", FLOAT, (2,), at_end=True),
            OutputSpec("y", FLOAT, (2, 2), time_axis=0, delay=1, rate=Fraction(1)),
        ),
        state=(StateSpec("last", FLOAT, (2,), kind="delay"), StateSpec("sum", FLOAT, (2,), kind="total")),
        pulse=2,
        look_ahead=0,
        receptive_field=1,
    )

    def init(self, batch=None, *, params=None, constants=None):
        zeros = jnp.zeros(2, jnp.float32)
        return in_batch(self.spec, {"last": zeros, "sum": zeros}, batch)

    def step(self, params, state, inputs):
        x = inputs["x"]
        late = jnp.concatenate([state["last"][None], x[:-1]])
        return {"y": late, "sum": None}, {"last": x[-1], "sum": state["sum"] + x.sum(0)}

    def flush(self, params, state, tail=None, valid=None):
        exists = jnp.arange(2, dtype=jnp.int32)[:, None] < valid
        x = jnp.where(exists, tail["x"], np.float32(0))
        rest = jnp.concatenate([state["last"][None], x])
        return Flushed({"y": rest, "sum": state["sum"] + x.sum(0)}, {"y": jnp.int32(1 + valid), "sum": None})

    def expected(self, x):
        return {"y": x, "sum": x.sum(0)}


OWN = {"steps": Smoother(), "stream": Delayed()}


def compiled(stepper, folder):
    path = folder / "own.jaxrnn"
    jaxrnn.save_compiled(stepper, path)
    return jaxrnn.load_compiled(path)


@pytest.fixture(params=["own", "compiled"])
def forms(request, tmp_path):
    """Each stepper, as it is or from a file."""
    return {name: own if request.param == "own" else compiled(own, tmp_path) for name, own in OWN.items()}


def recording(frames, seed=0):
    return np.random.default_rng(seed).normal(size=(frames, 2)).astype(np.float32)


def cut(spec, x):
    """The whole steps of a recording, and its tail."""
    if not spec.streams:
        return [{"x": frame} for frame in x], ()
    whole = len(x) - len(x) % spec.pulse
    return [{"x": x[i : i + spec.pulse]} for i in range(0, whole, spec.pulse)], ({"x": x[whole:]}, len(x) - whole)


def joined(spec, pieces, rest):
    """The outputs of a recording, by the spec alone."""
    result = {}
    for output in spec.outputs:
        if output.at_end:
            result[output.name] = rest[output.name]
        elif output.time_axis is None:
            result[output.name] = np.stack([piece[output.name] for piece in pieces])
        else:
            parts = [*(piece[output.name] for piece in pieces), rest[output.name]]
            result[output.name] = np.concatenate(parts, output.time_axis)[output.delay :]
    return result


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", OWN)
def test_a_runner(forms, name):
    stepper, x = forms[name], recording(7)
    run = jaxrnn.Runner(stepper)
    for _ in range(2):  # a flush begins anew
        steps, tail = cut(stepper.spec, x)
        equal(joined(stepper.spec, [run(each) for each in steps], run.flush(*tail)), OWN[name].expected(x))
    assert run.state.keys() == {"jaxrnn.network", *(entry.name for entry in stepper.spec.state)}


@pytest.mark.parametrize("name", OWN)
def test_a_pool(forms, name):
    stepper = forms[name]
    pool = jaxrnn.StreamPool(stepper, None, capacity=3)
    recordings = {pool.open(): recording(frames, seed=frames) for frames in (7, 4)}
    pieces = {stream: [] for stream in recordings}
    for stream, x in recordings.items():
        for each in cut(stepper.spec, x)[0]:
            pool.push(stream, each)
    while outputs := pool.run():
        for stream, piece in outputs.items():
            pieces[stream].append(piece)
    for stream, x in recordings.items():
        rest = pool.flush(stream, *cut(stepper.spec, x)[1])
        equal(joined(stepper.spec, pieces[stream], rest), OWN[name].expected(x))


@pytest.mark.thorough
@pytest.mark.parametrize("name", OWN)
def test_a_file_says_the_same(name, tmp_path):
    own, loaded = OWN[name], compiled(OWN[name], tmp_path)
    assert loaded.spec == own.spec
    params = getattr(own, "params", None)
    x = {"x": recording(4)[:2] if own.spec.streams else recording(1)[0]}
    batch = {"x": np.stack([x["x"], 2 * x["x"]])}
    for state, given in ((None, x), (2, batch)):
        expected = (jax.vmap(own.step, (None, 0, 0)) if state else own.step)(params, own.init(state), given)
        found = loaded.step(None, loaded.init(state), given)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_allclose, found, expected)
        mapped = jax.vmap(loaded.step, (None, None, 0))(loaded.params, loaded.init(), batch)
        jax.tree.map(np.testing.assert_allclose, mapped, loaded.step(None, loaded.init(2), batch))


@pytest.mark.parametrize("name", of_tiers(OWN, [*OWN][:1]))
def test_a_profile(forms, name):
    profiled = profile_model(forms[name])
    assert profiled.label == f"{OWN[name].spec.label}: {'pulse of 2' if name == 'stream' else 'step'}"
    assert profiled.seconds > 0


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(jaxrnn.StateError, match=r"'mean' is float32\[2\] before a step and float32\[4\] after it"):
        jaxrnn.save_compiled(Growing(), tmp_path / "grows.jaxrnn")
    half = type("Half", (), {"spec": Smoother.spec, "init": None, "step": None})()
    for take in (jaxrnn.Runner, profile_model):
        check_refused(jaxrnn.InputError, "has no flush", take, half)
    for batch in (-1, 1.5, True):
        check_refused(jaxrnn.InputError, "batch must be a number of streams", Smoother().init, batch)
    assert not list(tmp_path.iterdir())


def test_a_spec_is_the_same_from_json():
    for own in OWN.values():
        assert StepSpec.from_json(own.spec.to_json()) == own.spec


def test_many_pulses_in_one_call():
    """A scan is step after step, of one stream and of a batch, and `run` is the whole."""

    def smooth(x):
        level = jnp.cumsum(x["x"], axis=0) / (1 + jnp.arange(x["x"].shape[0], dtype=jnp.float32))[:, None]
        return {"y": level + x["level"], "halves": x["x"][::2], "sum": x["x"].sum(0), "level": x["level"]}

    example = {"x": jax.ShapeDtypeStruct((10, 2), FLOAT), "level": jax.ShapeDtypeStruct((2,), FLOAT)}
    streamed = jaxrnn.stream(smooth, example, axes={"x": 0, "level": None}, pulse=2)
    x, level = recording(9), np.float32([1, 2])
    outputs, state = streamed.scan(None, streamed.init(), {"x": x[:8], "level": level})
    after, pieces = streamed.init(), []
    for i in range(0, 8, 2):
        piece, after = streamed.step(None, after, {"x": x[i : i + 2], "level": level})
        pieces.append(piece)
    assert outputs["sum"] is None
    np.testing.assert_array_equal(outputs["level"], level)
    for name in ("y", "halves"):
        np.testing.assert_allclose(outputs[name], np.concatenate([piece[name] for piece in pieces]), rtol=1e-6)
    jax.tree.map(np.testing.assert_allclose, state, after)
    both = {"x": np.stack([x[:8], 2 * x[:8]]), "level": np.stack([level] * 2)}
    batched, _ = streamed.scan(None, streamed.init(2), both)
    np.testing.assert_allclose(batched["y"][0], outputs["y"], rtol=1e-6)
    equal(streamed.run(None, {"x": x, "level": level}), smooth({"x": x, "level": level}))
    with pytest.raises(jaxrnn.InputError, match=r"9 input frame.* not a whole number of pulses of 2"):
        streamed.scan(None, streamed.init(), {"x": x, "level": level})


@pytest.mark.parametrize("name", OWN)
def test_many_steps_of_a_file(name, tmp_path):
    """A scan is step after step, of one stream, of a batch, and mapped; an object of one's own needs none itself."""
    own, loaded, x = OWN[name], compiled(OWN[name], tmp_path), recording(6)
    expected, state = Bound(own).scan(own.init(), {"x": x})
    outputs, after = loaded.scan(None, loaded.init(), {"x": x})
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), (outputs, after), (expected, state))
    frames = 0 if own.spec.streams else 1
    both = np.stack([2 * x, x], frames)
    batched, _ = loaded.scan(None, loaded.init(2), {"x": both})
    mapped, _ = jax.vmap(loaded.scan, (None, None, 0))(loaded.params, loaded.init(), {"x": np.stack([2 * x, x])})
    np.testing.assert_allclose(np.moveaxis(batched["y"], frames, 0)[1], expected["y"], rtol=1e-6)
    np.testing.assert_allclose(mapped["y"][1], expected["y"], rtol=1e-6)
    with pytest.raises(jaxrnn.InputError, match=r"needs a leading axis of 3|must be 3, not 2"):
        loaded.scan(None, loaded.init(3), {"x": both})


@pytest.mark.thorough
def test_many_steps_in_a_batch_with_a_name(tmp_path):
    onnx.save(gru_step_model("streams"), tmp_path / "gru.onnx")
    model = jaxrnn.load(tmp_path / "gru.onnx", state={"h": "h_out"})
    jaxrnn.save_compiled(model, tmp_path / "gru.jaxrnn")
    loaded, rng = jaxrnn.load_compiled(tmp_path / "gru.jaxrnn"), np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 1, 1, 3)).astype(np.float32)  # streams, frames, and a frame of one stream
    inputs = {"x": x, "gain": np.ones((3, 5, 1), np.float32)}
    mapped, _ = jax.vmap(loaded.scan, (None, None, 0))(loaded.params, loaded.init(), inputs)
    named = {"x": np.concatenate(x, axis=2), "gain": inputs["gain"][0]}
    outputs, _ = loaded.scan(None, loaded.init(3), named)
    expected, _ = model.scan(model.params, model.init(3), named)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(mapped["y"], axis=3), expected["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_recording_through_a_model_in_steps(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    frames = {"input_2": np.random.default_rng(0).normal(size=(5, 1, 1, 257)).astype(np.float32)}
    expected, _ = model.scan(model.params, model.init(), frames)
    jax.tree.map(np.testing.assert_array_equal, model.run(model.params, frames), expected)
    one = {name: array[:, None] for name, array in frames.items()}
    batched = model.run(model.params, one, batch=1)
    assert batched["activation_2"].shape == (5, 1, 1, 1, 257)
    np.testing.assert_allclose(batched["activation_2"][:, 0], expected["activation_2"], atol=1e-5)


@pytest.mark.thorough
def test_a_batch_with_a_name(tmp_path):
    """A file whose batch is a dimension of its own arrays: one stream of it in a runner and a pool, also compiled."""
    onnx.save(gru_step_model("streams"), tmp_path / "gru.onnx")
    model = jaxrnn.load(tmp_path / "gru.onnx", state={"h": "h_out"})
    symbol = model.spec.batch_symbol
    assert symbol == "streams"
    jaxrnn.save_compiled(model, tmp_path / "gru.jaxrnn")
    rng = np.random.default_rng(0)
    frames = [
        {each.name: rng.normal(size=each.sized({symbol: 1}).sizes).astype(each.dtype) for each in model.spec.inputs}
        for _ in range(4)
    ]
    run = jaxrnn.Runner(model)
    expected = [run(frame) for frame in frames]
    for stepper in (model, jaxrnn.load_compiled(tmp_path / "gru.jaxrnn")):
        state = stepper.init(3)
        assert {entry.name: state[entry.name].shape for entry in stepper.spec.state} == {
            entry.name: entry.sized({symbol: 3}).sizes for entry in stepper.spec.state
        }
        with pytest.raises(jaxrnn.InputError, match=r"is 3 here, but 1|must be 3, not 1"):
            stepper.step(stepper.params, state, frames[0])
        run, pool = jaxrnn.Runner(stepper), jaxrnn.StreamPool(stepper, None, 2)
        first, second = pool.open(), pool.open()
        for frame, wanted in zip(frames, expected, strict=True):
            equal(run(frame), wanted)
            pool.push(first, frame)
            pool.push(second, {name: -array for name, array in frame.items()})
            equal(pool.run()[first], wanted)
        assert pool.flush(first) == {}


class Growing(Smoother):
    """A state that each step makes longer, which the spec does not say."""

    def step(self, params, state, inputs):
        return {"y": state["mean"][:2]}, {"mean": jnp.concatenate([inputs["x"], state["mean"]])}


class Forgetful(Delayed):
    """A stream whose flush gives nothing, although frames may be left."""

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


class Wide(Smoother):
    """A state of 64 bits."""

    DOUBLE = np.dtype("float64")
    spec = StepSpec(
        "wide",
        inputs=(ArraySpec("x", DOUBLE, (2,)),),
        outputs=(OutputSpec("y", DOUBLE, (2,)),),
        state=(StateSpec("mean", DOUBLE, (2,)),),
    )

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"mean": jnp.asarray(np.full(2, 0.1))}, batch)

    def step(self, params, state, inputs):
        return {"y": state["mean"]}, {"mean": state["mean"] + inputs["x"]}


def test_nothing_is_cut_or_lost_in_silence(tmp_path):
    frame = {"x": np.ones(2, np.float32)}
    run = jaxrnn.Runner(Growing())
    check_refused(jaxrnn.StateError, r"'mean' is float32\[2\] before a step and float32\[4\] after", run, frame)
    with pytest.raises(jaxrnn.InputError, match=r"without outputs, so that the 1 frame\(s\) of the tail would be"):
        jaxrnn.Runner(Forgetful()).flush({"x": np.ones((1, 2), np.float32)})
    with pytest.raises(jaxrnn.InputError, match="keeps nothing back, so that a tail would be lost"):
        Forgetful().flush(None, Forgetful().init(), {"x": np.ones((1, 2), np.float32)}, 1)
    jaxrnn.save_compiled(Forgetful(), tmp_path / "forgetful")
    assert jaxrnn.load_compiled(tmp_path / "forgetful").spec.pulse == 2


class Plain(Smoother):
    """A state in JAX's default type of floats."""

    def init(self, batch=None, *, params=None, constants=None):
        return in_batch(self.spec, {"mean": jnp.zeros(2)}, batch)


def test_a_first_state_in_the_default_type_can_be_compiled(tmp_path):
    frame = {"x": np.ones(2, np.float32)}
    jaxrnn.save_compiled(Plain(), tmp_path / "plain.jaxrnn")
    equal(jaxrnn.Runner(jaxrnn.load_compiled(tmp_path / "plain.jaxrnn"))(frame), jaxrnn.Runner(Plain())(frame))


def test_a_state_of_64_bits_keeps_them_or_is_refused():
    """An object of one's own runs under the caller's configuration of JAX, which may have no 64-bit types."""
    with pytest.raises(jaxrnn.StateError, match=r"'mean' must be float64\[2\].*not float32\[2\]"):
        jaxrnn.Runner(Wide())
    zeros = {"x": np.zeros(2)}
    with jax.enable_x64(True):
        assert jaxrnn.Runner(Wide())(zeros)["y"].tolist() == [0.1, 0.1]
        pool = jaxrnn.StreamPool(Wide(), None, 2)
        name = pool.open()
        pool.push(name, zeros)
        assert pool.run()[name]["y"].tolist() == [0.1, 0.1]
