"""Steps with explicit state: against ONNX Runtime, packed and plain, scanned, in chunks, and in batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper
from refusals import check_refused
from small_models import graph_of, layers_model, make_model
from tiers import of_tiers
from verifier import assert_same, peer_outputs

import jaxrnn
from jaxrnn.steps import ArraySpec
from jaxrnn.steps.specs import bind

#: Name: sizes of open dimensions besides the batch, and inputs to bind.
CASES = {
    "dtln_1": ({}, {}),
    "dtln_2": ({}, {}),
    "gtcrn": ({}, {}),
    "silero_vad": ({"input_dim_1": 576}, {"sr": 16000}),
    "silero_vad_16k_op15": ({"sequence": 576}, {"sr": 16000}),
    "predictor_net": ({}, {}),
}
#: Silero's other file is the same network behind a branch that folds.
NAMES = tuple(name for name in CASES if name != "silero_vad")
STEPS = 12


@pytest.fixture(scope="module", params=of_tiers(NAMES, ("dtln_1", "predictor_net"), ()))
def case(request, models):
    dims, static = CASES[request.param]
    path = models / f"{request.param}.onnx"
    return path, jaxrnn.load(path, static=static), dims, static


def recording(model, dims, batch=None, steps=STEPS, seed=0):
    """Frames stacked in front; a batch that the file fixed is a leading axis of every frame."""
    rng = np.random.default_rng(seed)
    lead = () if batch is None or model.spec.batch_symbol is not None else (batch,)
    arrays = {}
    for info in model.spec.inputs:
        sizes = {**dims, model.spec.batch_symbol: batch or 1}
        shape = (steps, *lead, *(size if isinstance(size, int) else sizes[size] for size in info.shape))
        values = rng.normal(size=shape) * 0.3 if info.dtype.kind == "f" else rng.integers(0, 60, shape)
        arrays[info.name] = values.astype(info.dtype)
    return arrays


def frame(frames, index):
    return {name: array[index] for name, array in frames.items()}


def by_steps(model, params, state, frames):
    step = jax.jit(model.step)
    outputs = []
    for index in range(len(next(iter(frames.values())))):
        result, state = step(params, state, frame(frames, index))
        outputs.append(result)
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *outputs), state


def close(found, expected):
    """Equal names, dtypes and shapes, and equal to 1e-5 of the largest value (or of 1, where that is larger)."""
    for a, b in zip(found, expected, strict=True):
        limits = {name: 1e-5 * max(1.0, float(np.max(np.abs(value)))) for name, value in b.items()}
        assert_same(dict(a), dict(b), limits)


def test_steps_equal_onnxruntime(case):
    path, model, dims, static = case
    frames = recording(model, dims)
    outputs, state = by_steps(model, model.params, model.init(), frames)
    carried = {name: np.asarray(value) for name, value in model.init().items()}
    bound = {name: np.asarray(value) for name, value in static.items()}
    for index in range(STEPS):
        expected = peer_outputs(path, {**frame(frames, index), **carried, **bound})
        carried = {variable.name: expected[variable.output] for variable in model.state}
        shown = {name: value for name, value in expected.items() if name in outputs}
        close([{name: value[index] for name, value in outputs.items()}], [shown])
    close([state], [carried])


@pytest.mark.thorough
def test_packed_scanned_and_in_chunks(case):
    _, model, dims, _ = case
    frames = recording(model, dims)
    expected = by_steps(model, model.params, model.init(), frames)
    packed = model.pack(model.params, dims=dims)
    assert packed.folded
    close(by_steps(model, packed, model.init(), frames), expected)
    scan = jax.jit(model.scan)
    for params in (model.params, packed):
        close(scan(params, model.init(), frames), expected)
    parts, state = [], model.init()
    for start, stop in ((0, 1), (1, 8), (8, STEPS)):
        outputs, state = scan(model.params, state, {name: array[start:stop] for name, array in frames.items()})
        parts.append(outputs)
    close((jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts), state), expected)
    close([model.apply(packed, {**frame(frames, 0), **model.init()})],
          [model.apply(model.params, {**frame(frames, 0), **model.init()})])  # fmt: skip


def test_a_packed_model_without_steps():
    """The transposed weights of a layer over whole recordings are arguments, for any length."""
    model = jaxrnn.load(layers_model())
    assert not model.pack(model.params).folded  # the sizes are open
    packed = model.pack(model.params, dims={"T": 9, "batch": 2})
    assert any(array.shape == model.params["R"].shape[:0:-1] for array in packed.folded)
    rng = np.random.default_rng(0)
    apply = jax.jit(model.apply)
    for time, batch in ((9, 2), (5, 3), (1, 1)):
        x = {"x": rng.normal(size=(time, batch, 3)).astype(np.float32)}
        expected = model.apply(model.params, x)
        close([apply(packed, x), model.apply(packed, x)], [expected] * 2)
        assert time == 1 or "transpose" not in str(jax.make_jaxpr(model.apply)(packed, x))
        twice = jax.jit(jax.vmap(model.apply, (None, 0)))(packed, {"x": np.stack([x["x"], x["x"]])})
        close([{name: value[1] for name, value in twice.items()}], [expected])
    tuned = {**model.params, "R": model.params["R"] * 2}
    close([apply(model.pack(tuned, dims={"T": 2, "batch": 1}), x)], [model.apply(tuned, x)])


@pytest.mark.thorough
def test_a_batch_is_its_rows_and_lengths_are_honoured(case):
    _, model, dims, _ = case
    lengths = np.array([STEPS, 5, 0])
    frames = recording(model, dims, batch=3)
    symbol = model.spec.batch_symbol
    outputs, state = jax.jit(model.scan)(model.params, model.init(3), frames, lengths=lengths)
    declared = {info.name: info.shape for info in (*model.spec.inputs, *model.spec.outputs)}
    declared |= {variable.name: variable.shape for variable in model.state}

    def row(name, array, index, lead):
        if symbol is None:
            return jnp.take(array, index, lead)
        sizes = array.shape[lead:]
        axis = next((a for a, size in enumerate(declared[name]) if isinstance(size, str) and sizes[a] == 3), None)
        return array if axis is None else jax.lax.slice_in_dim(array, index, index + 1, axis=axis + lead)

    for index, length in enumerate(lengths):
        mine = {name: row(name, array, index, 1)[:length] for name, array in frames.items()}
        start = model.init()
        expected = by_steps(model, model.params, start, mine) if length else ({}, start)
        close([{name: row(name, value, index, 0) for name, value in state.items()}], [expected[1]])
        for name, value in outputs.items():
            shown = row(name, value, index, 1)
            if length:
                np.testing.assert_allclose(shown[:length], expected[0][name], atol=2e-5)
            np.testing.assert_array_equal(shown[length:], 0)
    poisoned = {
        name: np.where(_exists(array.shape, lengths, 1 if symbol is None else 1 + declared[name].index(symbol)),
                       array, np.nan if array.dtype.kind == "f" else 0).astype(array.dtype)
        for name, array in frames.items()
    }  # fmt: skip
    again, same = jax.jit(model.scan)(model.params, model.init(3), poisoned, lengths=lengths)
    close([again, same], [outputs, state])


def _exists(shape, lengths, axis):
    mask = np.arange(shape[0])[:, None] < lengths[None]
    return mask.reshape(tuple(shape[0] if d == 0 else len(lengths) if d == axis else 1 for d in range(len(shape))))


def loops(jaxpr):
    return [eqn.primitive.name for eqn in jaxpr.eqns if eqn.primitive.name in ("scan", "while")]


def test_a_step_has_no_loop_and_a_scan_one(case):
    path, model, dims, _ = case
    frames = recording(model, dims)
    jaxpr = jax.make_jaxpr(model.step)(model.params, model.init(), frame(frames, 0))
    if path.stem != "gtcrn":  # whose bidirectional GRUs run over frequency inside every frame
        assert loops(jaxpr) == []
        jaxpr = jax.make_jaxpr(model.scan)(model.params, model.init(), frames)
        # One for each of its recurrent layers.
        assert str(jaxpr).count("scan[") == {"dtln_1": 2, "dtln_2": 2, "predictor_net": 2}.get(path.stem, 1)
    assert "while" not in loops(jaxpr)


@pytest.mark.thorough
def test_internal_state_has_no_steps(models):
    """The nodes that forget are named, and stream is pointed to."""
    for name, node in (("filter_net", "/gru_s/GRU_1"), ("keyword_net", "/lstm/LSTM"), ("wave_net", "/gru/GRU")):
        model = jaxrnn.load(models / f"{name}.onnx")
        for act in (model.init, lambda model=model: model.step(model.params, {}, {})):
            check_refused(jaxrnn.StateError, f"{node}.*stream", act)


@pytest.mark.thorough
def test_the_files_own_initial_value():
    """An input with a default value in the file is where the state starts, if names or a caller say so."""
    node = helper.make_node
    start = np.array([[1.0, -2.0]], np.float32)
    nodes = [node("Mul", ["h", "x"], ["hx"]), node("Tanh", ["hx"], ["h_out"]), node("Neg", ["h_out"], ["y"])]
    row = [1, 2]
    proto = make_model(graph_of(nodes, {"x": row, "h": row}, {"y": row, "h_out": row}, {"h": start}))
    assert list(jaxrnn.load(proto, state={}).params) == ["h"]
    assert jaxrnn.load(proto).params == {}
    model = jaxrnn.load(proto, state={"h": "h_out"})
    assert model.params == {}
    for state in (model.init(), {name: value[1] for name, value in model.init(3).items()}):
        np.testing.assert_array_equal(state["h"], start)
    x = np.array([[0.5, 0.25]], np.float32)
    outputs, state = model.step({}, model.init(), {"x": x})
    np.testing.assert_allclose(state["h"], np.tanh(start * x), atol=1e-7)
    np.testing.assert_array_equal(model.apply({}, {"x": x})["y"], outputs["y"])
    pool = jaxrnn.StreamPool(model, {}, 2)
    np.testing.assert_array_equal(pool.state(pool.open())["h"], start)


@pytest.mark.nightly
def test_memory_does_not_grow(models):
    """Ten thousand steps leave no more arrays alive than ten."""
    model = jaxrnn.load(models / "predictor_net.onnx")
    step, state = jax.jit(model.step), model.init()
    inputs = frame(recording(model, {}), 0)
    alive = []
    for index in range(10_000):
        _, state = step(model.params, state, inputs)
        if index in (10, 9_999):
            jax.block_until_ready(state)
            alive.append(len(jax.live_arrays()))
    assert alive[1] <= alive[0]


def test_a_step_can_be_exported(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    state, one = model.init(), frame(recording(model, {}), 0)
    exported = jax.export.export(jax.jit(model.step))(model.params, state, one)
    close(exported.call(model.params, state, one), model.step(model.params, state, one))


@pytest.mark.thorough
def test_frames_joined_along_an_axis(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    frames = recording(model, {})
    joined = {"input_2": frames["input_2"].reshape(1, STEPS, 257)}
    outputs, state = model.scan(model.params, model.init(), joined, time_axis=1)
    expected, end = model.scan(model.params, model.init(), frames)
    close([outputs, state], [{"activation_2": expected["activation_2"].reshape(1, STEPS, 257)}, end])
    stacked = {"input_2": np.moveaxis(frames["input_2"], 0, 2)}
    outputs, state = model.scan(model.params, model.init(), stacked, time_axis=2)
    close([outputs, state], [{"activation_2": jnp.moveaxis(expected["activation_2"], 0, 2)}, end])


def test_a_wrong_state_says_which_entry(models):
    model = jaxrnn.load(models / "predictor_net.onnx")
    state = model.init(2)
    inputs = frame(recording(model, {}, batch=2), 0)
    wrong = {
        r"'h' must be float32\[2, batch, 96\].*float16": {**state, "h": state["h"].astype(jnp.float16)},
        r"'h' must be .*not float32\[2, 2, 95\]": {**state, "h": state["h"][..., :95]},
        r"'c' is float32\[2, 3, 96\]: the batch differs": {**state, "c": jnp.zeros((2, 3, 96))},
        r"there is no state 'hh' \(did you mean 'h'\?\)": {**state, "hh": state["h"]},
        r"state 'c' is missing": {"h": state["h"]},
        r"'h' must be .*not list": {**state, "h": [0.0]},
        r"must be a dict": [state],
    }
    for message, bad in wrong.items():
        check_refused(jaxrnn.StateError, message, model.step, model.params, bad, inputs)
    check_refused(jaxrnn.InputError, "is state", model.step, model.params, state, {**inputs, "h": state["h"]})
    check_refused(jaxrnn.InputError, "'batch' is 3 here, but 2", model.step, model.params, model.init(3), inputs)


def test_a_lifted_batch_says_what_inputs_need(models):
    model = jaxrnn.load(models / "dtln_1.onnx")
    for call, batch, shape, options, words in (
        (model.step, 4, (1, 1, 257), {}, "leading axis of 4"),
        (model.scan, 4, (2, 4, 1, 1, 257), {"lengths": [1, 2]}, "lengths must be 4 integers"),
        (model.scan, None, (257,), {}, "recording has an additional axis"),
    ):
        x = {"input_2": np.zeros(shape, np.float32)}
        check_refused(jaxrnn.InputError, words, call, model.params, model.init(batch), x, **options)


def test_a_second_step_never_compiles(models, caplog):
    model = jaxrnn.load(models / "dtln_1.onnx")
    step, state = jax.jit(model.step), model.init()
    frames = recording(model, {})
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        for index in range(STEPS):
            _, state = step(model.params, state, frame(frames, index))
    compiled = [r.getMessage() for r in caplog.records if "XLA compilation of jit(step)" in r.getMessage()]
    assert len(compiled) == 1


def test_lengths_mask_the_batch_and_no_other_open_dimension():
    """The state ``mem`` has another open dimension in front of its batch, here of the same size."""
    nodes = [helper.make_node("Add", ["x", "s"], ["sn"]), helper.make_node("Add", ["x", "mem"], ["memn"])]
    shapes = {"s": ["N", 3], "mem": ["M", "N", 3]}
    graph = graph_of(nodes, {"x": ["N", 3], **shapes}, {name + "n": shape for name, shape in shapes.items()})
    model = jaxrnn.load(make_model(graph), state={"s": "sn", "mem": "memn"})
    x, start = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32), model.init(2, dims={"M": 2})
    _, state = model.scan({}, start, {"x": x}, lengths=np.array([5, 2]))
    expected = np.stack([x[:, 0].sum(0), x[:2, 1].sum(0)])
    np.testing.assert_allclose(state["s"], expected, rtol=1e-5)
    np.testing.assert_allclose(state["mem"], np.broadcast_to(expected, (2, 2, 3)), rtol=1e-5)
    with pytest.raises(jaxrnn.InputError, match="there is no input 'y'"):
        model.scan({}, start, {"x": x, "y": x})


def test_the_files_own_values_may_have_the_batch():
    own = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    node, shape = helper.make_node("Add", ["x", "h"], ["hn"]), [1, "A", 4]
    graph = graph_of([node], {"x": shape, "h": shape}, {"hn": shape}, {"h": own})
    model = jaxrnn.load(make_model(graph), state={"h": "hn"})
    np.testing.assert_array_equal(model.init(4)["h"], own)
    with pytest.raises(
        jaxrnn.StateError, match=r"the first value of 'h' in the file is float32\[1, 4, 4\], which does not fit"
    ):
        model.init(3)


def test_a_step_without_state_takes_a_batch_from_its_inputs():
    graph = graph_of([helper.make_node("Tanh", ["x"], ["y"])], {"x": [1, 3]}, {"y": [1, 3]})
    model = jaxrnn.load(make_model(graph))
    x = np.random.default_rng(0).normal(size=(5, 4, 1, 3)).astype(np.float32)
    np.testing.assert_allclose(model.step({}, model.init(4), {"x": x[0]})[0]["y"], np.tanh(x[0]), rtol=1e-6)
    np.testing.assert_allclose(model.scan({}, {}, {"x": x})[0]["y"], np.tanh(x), rtol=1e-6)
    outputs, _ = model.scan({}, {}, {"x": x}, lengths=np.array([5, 1, 0, 3]))
    np.testing.assert_allclose(outputs["y"][1, :, 0, 0], np.tanh(x[1, :, 0, 0]) * [1, 0, 0, 1], rtol=1e-6)


def test_numbers_keep_their_values():
    with pytest.raises(jaxrnn.InputError, match="values that do not fit int32"):
        bind([ArraySpec("x", np.dtype("int32"), (2,))], {"x": np.array([2**40, 2])})
    with pytest.raises(jaxrnn.InputError, match="complex numbers do not fit the type float32"):
        bind([ArraySpec("x", np.dtype("float32"), (2,))], {"x": [1 + 2j, 3j]})
