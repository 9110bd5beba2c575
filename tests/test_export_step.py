"""`jaxrnn.export_onnx` of streams, steps and functions: files that run alone, and that jaxrnn loads again."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import ExportedStream, facts_of
from flax import nnx
from jax import lax
from onnx import helper
from refusals import check_refused
from small_models import graph_of, make_model
from tiers import of_tiers
from verifier import peer_outputs, run_session, session

import jaxrnn
from jaxrnn.export.verification import verify_export
from jaxrnn.steps import ArraySpec, OutputSpec, StateSpec, StepSpec, in_batch, nothing_left

#: Of numbers of the size of the largest one: sums of few terms in another order, through a recurrence that forgets.
TOLERANCE = 1e-5

EXAMPLE = {"x": jax.ShapeDtypeStruct((20, 2), np.float32)}
_LAYOUT = ("NCH", "OIH", "NCH")


def filtered(params, inputs):
    """A convolution with look-ahead, one with a stride, a recurrence, and values that are known at the end."""
    x = inputs["x"]
    y = lax.conv_general_dilated(x.T[None], params["w"], (1,), ((1, 2),), dimension_numbers=_LAYOUT)
    low = lax.conv_general_dilated(y, params["v"], (2,), ((3, 0),), dimension_numbers=_LAYOUT)

    def step(h, frame):
        h = jnp.tanh(frame + h * params["decay"])
        return h, h

    _, after = lax.scan(step, params["start"], y.squeeze(0).T)
    return {"y": after, "low": low.squeeze(0).T, "total": jnp.sum(x, 0), "peak": jnp.max(x, 0)}


def filter_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w": (2, 2, 4), "v": (3, 2, 4), "decay": (2,), "start": (2,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def filter_stream(params, pulse=2):
    return jaxrnn.stream(filtered, EXAMPLE, axes=0, params=params, pulse=pulse, multiple=2)


def recording(frames, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((frames, 2)).astype(np.float32)}


def assert_close(found, expected, scale=0.0):
    """Arrays by name are those that are expected, up to roundings of numbers of their size, or of a larger scale."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype), name
        size = max(scale, np.abs(value).max(initial=1e-6))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE * size)


# -- streams


@pytest.mark.thorough
@pytest.mark.parametrize(("pulse", "lengths"), [(2, (8, 2)), (6, (20, 18, 4))])
def test_a_stream_with_its_flush(tmp_path, pulse, lengths):
    """Frames that do not exist are NaN, and nothing reads them."""
    params = filter_params()
    path, flush = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    written = jaxrnn.export_onnx(filter_stream(params, pulse), params, path, flush=flush)
    assert written is not None
    assert sorted(written.files) == sorted(tmp_path.iterdir()) == [flush, tmp_path / "step.first_state.npz", path]
    names = [{each.name for each in onnx.load(file).graph.initializer} for file in (path, flush)]
    assert all("v" in each for each in names)  # one parameter has one name
    stream = ExportedStream(path, flush)
    for frames in lengths:
        x = recording(frames, frames)
        assert_close(stream.run(x), jax.jit(filtered)(params, x))


@pytest.mark.thorough
def test_a_batch_of_streams(tmp_path):
    params = filter_params()
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(filter_stream(params, 4), params, paths[0], flush=paths[1], batch=3)
    x = {"x": np.stack([recording(10, seed)["x"] for seed in range(3)])}
    assert_close(ExportedStream(*paths).run(x), jax.vmap(functools.partial(filtered, params))(x))


def test_sizes_and_rates_are_numbers_of_any_type(tmp_path):
    params = filter_params()
    texts = []
    for batch, rate in ((2, 100), (np.int64(2), np.float32(100))):
        jaxrnn.export_onnx(filter_stream(params, 4), params, tmp_path / "step.onnx", batch=batch, frame_rate=rate)
        texts.append((tmp_path / "step.onnx").read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.thorough
def test_a_file_is_loaded_with_its_state_and_its_first_state(tmp_path):
    params = filter_params()
    streamed = filter_stream(params, 4)
    jaxrnn.export_onnx(streamed, params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    model = jaxrnn.load(tmp_path / "step.onnx")
    assert [(each.name, each.output) for each in model.state] == [
        (each.name, f"{each.name}_next") for each in streamed.state
    ]
    file = model.step_file
    assert file is not None
    assert (file.spec.pulse, file.spec.delay, file.spec.rate, file.spec.look_ahead, file.spec.receptive_field) == (
        streamed.pulse,
        streamed.delay,
        streamed.rate,
        streamed.look_ahead,
        streamed.receptive_field,
    )
    state, before = model.init(), streamed.init(params=params)
    with np.load(tmp_path / "step.first_state.npz") as archive:
        assert {*archive} == {*state}
        for name, value in streamed.entries(before).items():
            if state[name].shape == value.shape and name != "count":  # the layout of plain forms
                np.testing.assert_array_equal(np.sort(state[name], None), np.sort(value, None))
            np.testing.assert_array_equal(state[name], archive[name])
    x = recording(12)["x"]
    for start in range(0, 12, 4):
        frames = {"x": x[start : start + 4]}
        outputs, state = model.step(model.params, state, frames)
        expected, before = streamed.step(params, before, frames)
        if start:  # frames before frame 0 may be anything
            assert_close(outputs, {name: value for name, value in expected.items() if value is not None})
    assert jaxrnn.load(tmp_path / "flush.onnx").state == ()


@pytest.mark.thorough
def test_state_is_found_without_metadata(tmp_path):
    """By the flow of elements and by names, as in any other file."""
    params = filter_params()
    jaxrnn.export_onnx(filter_stream(params, 4), params, tmp_path / "step.onnx")
    proto = onnx.load(tmp_path / "step.onnx")
    del proto.metadata_props[:]
    stated, found = jaxrnn.load(tmp_path / "step.onnx").state, jaxrnn.load(proto).state
    assert [(each.input, each.output) for each in found] == [(each.input, each.output) for each in stated]


def test_first_states_of_all_kinds(tmp_path):
    """Numbers, lists, infinities, and more elements than anybody would read."""
    rng = np.random.default_rng(0)
    start = {"small": rng.standard_normal(3).astype(np.float32), "large": rng.standard_normal((70, 70)).astype("f4")}

    def held(params, inputs):
        def step(carry, x):
            carry = {name: value * np.float32(0.5) + x for name, value in carry.items()}
            return carry, {name: jnp.sum(value) for name, value in carry.items()}

        _, sums = lax.scan(step, params, inputs["x"])
        return {**sums, "least": jnp.min(inputs["x"]), "count": jnp.sum(jnp.ones_like(inputs["x"], jnp.int32))}

    example = {"x": jax.ShapeDtypeStruct((9,), np.float32)}
    streamed = jaxrnn.stream(held, example, axes=0, params=start)
    jaxrnn.export_onnx(streamed, start, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    firsts = {each["name"]: each["first"] for each in facts_of(tmp_path / "step.onnx")["state"]}
    kinds = {str(type(first).__name__) for first in firsts.values()}
    assert kinds == {"dict", "list", "str", "int"}
    assert "Infinity" in firsts.values()
    state = jaxrnn.load(tmp_path / "step.onnx").init()
    with np.load(tmp_path / "step.first_state.npz") as archive:
        for name, value in state.items():
            assert np.asarray(value).tobytes() == archive[name].tobytes(), name
    x = {"x": rng.standard_normal(7).astype(np.float32)}
    assert_close(ExportedStream(tmp_path / "step.onnx", tmp_path / "flush.onnx").run(x), held(start, x))


@pytest.mark.thorough
def test_names_that_a_file_cannot_have_twice(tmp_path):
    def twice(params, inputs):
        total = jnp.cumsum(inputs["x"]) * params["x"]
        return {"x": total, "valid": inputs["valid"], "x_count": total + inputs["valid"], "cumsum.total": total}

    params = {"x": np.float32(3)}
    example = {name: jax.ShapeDtypeStruct((9,), np.float32) for name in ("x", "valid")}
    streamed = jaxrnn.stream(twice, example, axes=0, params=params, pulse=2)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, params, paths[0], flush=paths[1])
    values = np.arange(7, dtype=np.float32)
    x = {"x": values, "valid": -values}
    assert_close(ExportedStream(*paths).run(x), twice(params, x))
    assert {"x_out", "valid_out"} <= {output.name for output in session(paths[0]).get_outputs()}


# -- steps


class Smoother:
    """An exponential mean of float32[2], how many frames there were, and an entry without elements."""

    spec = StepSpec(
        "smoother",
        inputs=(ArraySpec("x", np.dtype("float32"), (2,)),),
        outputs=(OutputSpec("y", np.dtype("float32"), (2,)), OutputSpec("n", np.dtype("int32"), ())),
        state=(
            StateSpec("mean", np.dtype("float32"), (2,)),
            StateSpec("empty", np.dtype("float32"), (0, 3)),
            StateSpec("n", np.dtype("int32"), ()),
        ),
    )

    def init(self, batch=None, *, params=None, constants=None):
        first = {"mean": jnp.full(2, 1.5, jnp.float32), "empty": jnp.zeros((0, 3), jnp.float32), "n": jnp.int32(0)}
        return in_batch(self.spec, first, batch)

    def step(self, params, state, inputs):
        mean = params * state["mean"] + (1 - params) * inputs["x"]
        return {"y": mean, "n": state["n"]}, {**state, "mean": mean, "n": state["n"] + 1}

    def flush(self, params, state, tail=None, valid=None):
        return nothing_left(self.spec, tail, valid)


@pytest.mark.parametrize("batch", [None, np.int64(3)])  # sizes may be numbers of NumPy
def test_a_stepper_of_ones_own(tmp_path, batch):
    written = jaxrnn.export_onnx(Smoother(), np.float32(0.75), tmp_path / "step.onnx", batch=batch)
    assert written is not None
    rng, lead = np.random.default_rng(0), () if batch is None else (batch,)
    state, expected = dict(written.step.facts.first_inputs), Smoother().init(batch)
    opened, model = session(tmp_path / "step.onnx"), jaxrnn.load(tmp_path / "step.onnx")
    loaded = model.init()
    step = Smoother().step if batch is None else jax.vmap(Smoother().step, (None, 0, 0))
    for index in range(3):
        x = {"x": rng.standard_normal((*lead, 2)).astype(np.float32)}
        given = run_session(opened, {**x, **state})
        outputs, expected = step(np.float32(0.75), expected, x)
        again, loaded = model.step(model.params, loaded, x)
        np.testing.assert_allclose(given["y"], outputs["y"], rtol=1e-6)
        np.testing.assert_array_equal(given["n"], np.full(lead, index))
        np.testing.assert_allclose(again["y"], given["y"], rtol=1e-6)
        state = {each.input: given[str(each.output)] for each in written.step.facts.state.values()}


class Oscillator(Smoother):
    """A step without inputs."""

    spec = dataclasses.replace(Smoother.spec, label="oscillator", inputs=())

    def step(self, params, state, inputs):
        return super().step(params, state, {"x": jnp.ones(2, jnp.float32)})


def test_a_step_without_inputs(tmp_path):
    """In all forms: such a step has no recordings, but a number of steps."""
    jaxrnn.export_onnx(Oscillator(), np.float32(0.5), tmp_path / "step.onnx")
    report = verify_export(Oscillator(), np.float32(0.5), tmp_path / "step.onnx")
    assert report.ok, report
    jaxrnn.save_compiled(Oscillator(), tmp_path / "step.jaxrnn", params=np.float32(0.5))
    for run in (
        jaxrnn.Runner(Oscillator(), np.float32(0.5)),
        jaxrnn.Runner(jaxrnn.load_compiled(tmp_path / "step.jaxrnn")),
    ):
        np.testing.assert_array_equal([run({})["y"] for _ in range(2)], [[1.25, 1.25], [1.125, 1.125]])


@pytest.mark.thorough
def test_complex_numbers_are_pairs(tmp_path):
    """Engines have no type for them: inputs, outputs and state have a last axis with the real part first."""

    def turned(params, inputs):
        return {"y": jnp.cumsum(inputs["x"], 0) * params["turn"], "half": jnp.real(inputs["x"])}

    params = {"turn": np.complex64(0.6 + 0.8j)}
    rng = np.random.default_rng(0)
    x = {"x": (rng.standard_normal((7, 2)) + 1j * rng.standard_normal((7, 2))).astype(np.complex64)}
    streamed = jaxrnn.stream(turned, {"x": jax.ShapeDtypeStruct((9, 2), np.complex64)}, axes=0, params=params, pulse=3)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, params, paths[0], flush=paths[1])
    found = ExportedStream(*paths).run({"x": np.stack([x["x"].real, x["x"].imag], -1)})
    expected = jax.jit(turned)(params, x)
    assert_close(found, {**expected, "y": np.stack([expected["y"].real, expected["y"].imag], -1)})
    model = jaxrnn.load(paths[0])
    states = [each for each in model.state if each.name != "count"]
    assert [(each.dtype, each.shape[-1]) for each in states] == [(np.float32, 2)] * 2  # the two parts of a total


@pytest.mark.parametrize("batch", of_tiers([None, 3], [None]))
def test_a_joined_state(tmp_path, batch):
    """One vector for each type holds the entries that the metadata list: the same numbers, bit for bit."""
    params = filter_params()
    streamed = filter_stream(params, 4)
    runs = {}
    for join in (False, True):
        paths = tmp_path / f"step_{join}.onnx", tmp_path / f"flush_{join}.onnx"
        jaxrnn.export_onnx(streamed, params, paths[0], flush=paths[1], batch=batch, join_state=join)
        x = recording(10) if batch is None else {"x": np.stack([recording(10, seed)["x"] for seed in range(batch)])}
        runs[join] = ExportedStream(*paths)
        runs[join].outputs = runs[join].run(x)
    for name, expected in runs[False].outputs.items():
        np.testing.assert_array_equal(runs[True].outputs[name], expected)
    listed = {each["input"]: each for each in runs[True].facts["state"]}
    assert {*listed} == {"state_float32", "state_int32"}
    for name, each in listed.items():
        ends = np.cumsum([np.prod(part["shape"], dtype=int) for part in each["parts"]])
        assert each["shape"] == [*(() if batch is None else (batch,)), ends[-1]]
        for part, end in zip(each["parts"], ends, strict=True):
            entry = runs[False].first[part["name"]]
            vector = runs[True].first[name][..., end - np.prod(part["shape"], dtype=int) : end]
            np.testing.assert_array_equal(vector.reshape(entry.shape), entry)
    model = jaxrnn.load(tmp_path / "step_True.onnx")
    assert {each.name for each in model.state} == {*listed}
    jaxrnn.export_onnx(model, None, tmp_path / "again.onnx", step=True)
    again = [{**each, "name": ""} for each in facts_of(tmp_path / "again.onnx")["state"]]
    assert again == [{**each, "name": ""} for each in listed.values()]
    report = verify_export(model, None, tmp_path / "again.onnx")
    assert report.ok, report


def test_a_joined_state_of_complex_numbers_totals_and_models(tmp_path):
    def turned(params, inputs):
        before = jnp.pad(inputs["x"][:-1], (1, 0))
        return {"y": jnp.cumsum(inputs["x"], 0) * params, "change": jnp.real(inputs["x"] * params - before)}

    example = {"x": jax.ShapeDtypeStruct((9,), np.complex64)}
    streamed = jaxrnn.stream(turned, example, axes=0, params=np.complex64(2), pulse=3)
    paths = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, np.complex64(2), paths[0], flush=paths[1], join_state=True)
    x = {"x": (np.arange(7) + 1j * np.arange(7, 0, -1)).astype(np.complex64)}
    expected = turned(np.complex64(2), x)
    found = ExportedStream(*paths).run({"x": np.stack([x["x"].real, x["x"].imag], -1)})
    assert_close(found, {**expected, "y": np.stack([expected["y"].real, expected["y"].imag], -1)})
    assert verify_export(streamed, np.complex64(2), paths[0]).ok
    # In half precision, totals stay float32, in a vector of their own.
    jaxrnn.export_onnx(streamed, np.complex64(2), paths[0], flush=paths[1], join_state=True, dtype="float16")
    types = {each.name: each.type for each in session(paths[0]).get_inputs()}
    assert types["state_float32"] == "tensor(float16)"
    assert types["state_float32_total"] == "tensor(float)"
    assert verify_export(streamed, np.complex64(2), paths[0]).ok
    # The state of a step is compared by its entries.
    written = jaxrnn.export_onnx(Smoother(), np.float32(0.75), paths[0], join_state=True)
    assert written is not None
    np.testing.assert_array_equal(written.step.facts.first_inputs["state_float32"], [1.5, 1.5])
    assert [each.name for each in jaxrnn.load(paths[0]).state] == ["state_float32", "state_int32"]
    report = verify_export(Smoother(), np.float32(0.75), paths[0])
    assert report.ok
    compared = {each.name for check in report.cases for each in check.outputs}
    assert compared == {"y", "n", "state mean", "state empty", "state n"}


# -- functions


def test_functions(tmp_path):
    """Of an array, of arrays by name with nested parameters, of a module."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3)).astype(np.float32)
    params = {"layers": [{"w": rng.standard_normal((3, 4)).astype(np.float32)}, {"b": np.float32(2)}]}
    module = nnx.Linear(3, 5, rngs=nnx.Rngs(0))

    def nested(params, inputs):
        return {"product": inputs["a"] @ params["layers"][0]["w"] + params["layers"][1]["b"], "same": inputs["a"]}

    for function, given, example, inputs in (
        (jnp.tanh, None, x, {"x": x}),
        (nested, params, {"a": jax.ShapeDtypeStruct((2, 3), np.float32)}, {"a": x}),
        (module, None, x, {"x": x}),
    ):
        path = tmp_path / "function.onnx"
        written = jaxrnn.export_onnx(function, given, path, example=example)
        assert written is not None
        assert written.step.facts.kind == "function"
        assert list(tmp_path.iterdir()) == [path]
        argument = inputs if isinstance(example, dict) else inputs["x"]
        expected = function(argument) if given is None else function(given, argument)
        expected = expected if isinstance(expected, dict) else {"y": expected}
        assert_close(peer_outputs(path, inputs), expected)
        assert_close(jaxrnn.load(path)(inputs), expected)
    jaxrnn.export_onnx(lambda x: jnp.maximum(x, 0) * 3 + 1, None, path, example=x)
    assert not jaxrnn.load(path).params  # numbers of a formula
    jaxrnn.export_onnx(jnp.tanh, None, path, example=x.astype(np.float64))  # which JAX makes float32 of
    assert jaxrnn.load(path).inputs[0].dtype == np.float32
    jaxrnn.export_onnx(nested, params, path, example={"a": x})
    assert "layers.0.w" in {each.name for each in onnx.load(path).graph.initializer}


@pytest.mark.thorough
def test_a_loaded_step_is_exported_again_with_its_facts(tmp_path):
    """In another opset, say: what comes before frame 0 is no less so."""
    params = filter_params()
    for batch in (None, 3):
        jaxrnn.export_onnx(filter_stream(params, 4), params, tmp_path / "step.onnx", batch=batch)
        model = jaxrnn.load(tmp_path / "step.onnx")
        jaxrnn.export_onnx(model, None, tmp_path / "again.onnx", step=True, opset=18, label="the stream of filtered")
        before, after = facts_of(tmp_path / "step.onnx"), facts_of(tmp_path / "again.onnx")
        moved = "files", "inputs", "outputs", "state"
        assert {key: value for key, value in after.items() if key not in moved} == {
            key: value for key, value in before.items() if key not in moved
        }
        assert after["outputs"] == [each for each in before["outputs"] if each["output"] is not None]
        assert after["inputs"] == before["inputs"]
        assert [{**each, "name": ""} for each in after["state"]] == [{**each, "name": ""} for each in before["state"]]
        assert onnx.load(tmp_path / "again.onnx").opset_import[0].version == 18
        with pytest.raises(jaxrnn.InputError, match="has no frames left at the end"):
            jaxrnn.export_onnx(model, None, tmp_path / "again.onnx", step=True, flush=tmp_path / "flush.onnx")


def noted_model(frames):
    """A GRU over ``[frames, 1, 6]`` with metadata and doc strings."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"W": draw((1, 12, 6)).astype(np.float32), "R": draw((1, 12, 4)).astype(np.float32)}
    inputs, outputs = {"x": [frames, 1, 6]}, {"Y": [frames, 1, 1, 4]}
    state = (["h"], ["h_out"]) if frames == 1 else ([""], [""])
    node = helper.make_node("GRU", ["x", "W", "R", "", "", *state[0]], ["Y", *state[1]], hidden_size=4, name="gru")
    if frames == 1:
        inputs["h"], outputs["h_out"] = [1, 1, 4], [1, 1, 4]
    file = make_model(graph_of([node], inputs, outputs, weights))
    file.doc_string, file.graph.input[0].doc_string = "Trained on speech.", "log-mel frames"
    for key, text in (("sample_rate", "16000"), ("jaxrnn.weights", '["W"]'), ("onnx.infer", "done")):
        file.metadata_props.add(key=key, value=text)
    return jaxrnn.load(file)


@pytest.mark.parametrize("frames", [1, "T"])
def test_texts_of_the_file_stay_and_names_are_chosen(frames, tmp_path):
    model, path = noted_model(frames), tmp_path / "step.onnx"
    kind = {"step": True} if frames == 1 else {}
    stepper, state = (model, "h_out") if frames == 1 else (model.stream("T"), "gru.carry_next")
    options = {"metadata": {"language": "de"}, "names": {"x": "feats", state: "new"}, **kind}
    jaxrnn.export_onnx(stepper, model.params, path, **options)
    assert verify_export(stepper, model.params, path).ok
    written = onnx.load(path)
    metadata = {each.key: each.value for each in written.metadata_props if not each.key.startswith("jaxrnn")}
    assert metadata == {"sample_rate": "16000", "language": "de"}
    assert written.doc_string.endswith("\nTrained on speech.")
    assert written.graph.input[0].doc_string.endswith("log-mel frames")
    assert written.graph.input[0].name == "feats"
    assert "new" in [each.name for each in written.graph.output]
    again = jaxrnn.load(path)
    assert "new" in [each.output for each in again.state]
    for names, words in (({"z": "q"}, "no input or output 'z'"), ({"x": "Y"}, "'Y' is no name, or the name of two")):
        check_refused(jaxrnn.InputError, words, jaxrnn.export_onnx, stepper, model.params, path, names=names, **kind)
    for metadata in ({"jaxrnn.kind": "step"}, {"a": 1}):
        check_refused(
            jaxrnn.InputError, "no text", jaxrnn.export_onnx, stepper, model.params, path, metadata=metadata, **kind
        )
