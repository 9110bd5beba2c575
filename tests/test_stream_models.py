"""Real models with a time axis, streamed: exact against `apply`, for every length and pulse, and their gradients."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from jax.extend.core import ClosedJaxpr
from onnx import TensorProto, helper
from refusals import check_refused
from small_models import graph_of, make_model
from streaming_verifier import assert_same
from test_cli import call
from tiers import of_tiers
from verifier import run_session, session

import jaxrnn
from benchmarks.built import NETWORKS
from jaxrnn._jax.context import exact_types
from jaxrnn.model.streaming import first_states
from jaxrnn.streaming import transform
from jaxrnn.streaming.checking import POISON, InPulses
from jaxrnn.streaming.dimensions import is_symbolic
from jaxrnn.streaming.measuring import drawn

#: By model: the smallest pulse, and delay by output.
MODELS = {
    "filter_net": (1, {"mask": 2, "coefs": 2, "snr": 2}),
    "dual_path_net": (1, {"enhanced": 0}),
    "keyword_net": (2, {"logits": 1}),
    "wave_net": (64, {"clean": 0}),
}

#: Networks that are built with random weights, and delay by output.
BUILT = {
    "convolutional_recurrent": {"y": 0},
    "deep_filter": {"enhanced": 2, "level": 2},
    "dual_path": {"enhanced": 2, "level": 2},
}


@pytest.fixture(scope="module")
def load(models):
    """Loads each model once."""
    return functools.cache(lambda name: jaxrnn.load(models / f"{name}.onnx"))


def inputs_of(model, frames, seed=0):
    return {
        info.name: drawn([frames if size == "S" else size for size in info.shape], np.float32, seed + place)
        for place, info in enumerate(model.inputs)
    }


def offline_of(model):
    """The model on whole recordings: in ONNX Runtime, or in JAX where that fails, such as on too few frames."""
    opened, refusals = session(model.proto), ort.capi.onnxruntime_pybind11_state

    def run(inputs):
        try:
            return run_session(opened, inputs)
        except (refusals.InvalidArgument, refusals.Fail):
            return jax.jit(model.apply)(model.params, inputs)

    return run


def axes_of(model):
    """The time axes in the order of the leaves of a dict of inputs."""
    return [info.shape.index("S") for info in sorted(model.inputs, key=lambda info: info.name)]


@pytest.mark.thorough
def test_a_step_has_one_mask_for_all_chunks_of_a_delay(load):
    """All that `filter_net` masks comes at its rate with a delay of two frames."""
    model = load("filter_net")
    streamed = model.stream()
    arguments = model.params, streamed.init(), inputs_of(model, 1)
    assert str(jax.make_jaxpr(streamed.step)(*arguments)).count(" = ge ") == 1


@pytest.mark.parametrize("name", of_tiers(MODELS, (), []))
def test_every_length_and_pulse(load, name, monkeypatch):
    """Streamed equals offline for lengths 1 to 40 (times the strides, and in between) and pulses 1, 2, 3 and 7, with
    NaN in every frame that does not exist. Offline is ONNX Runtime, which needs no compiling for each length."""
    model, (smallest, delay) = load(name), MODELS[name]
    monkeypatch.setattr(transform, "PLACEHOLDER", POISON)
    streamed = model.stream(pulse=smallest)
    assert streamed.smallest_pulse == smallest
    assert streamed.delay == delay
    runner = InPulses(streamed, model.params)
    between = range(1, 40, 3) if 1 < smallest < 64 else (100, 333) if smallest == 64 else ()
    offline, room = offline_of(model), 7 * smallest
    with exact_types():
        for frames in (*(smallest * count for count in range(1, 41)), *between):
            inputs = inputs_of(model, frames, frames)
            expected = offline(inputs)
            for size in (1, 2, 3, 7):
                found = runner.run(inputs, frames, [size * smallest], room)
                assert_same(found, expected, 1e-5, f"{name}, {frames} frames, pulses of {size * smallest}")
        mixed = runner.run(inputs, frames, [size * smallest for size in (2, 7, 1, 3)], room)
        assert_same(mixed, expected, 1e-5, f"{name}, pulses of mixed size")


@pytest.mark.parametrize("name", of_tiers(BUILT, [], [*BUILT][:1]))
def test_networks_that_are_built(name, monkeypatch):
    """Those that benchmarks stream: look-ahead, filters over frames, transposed convolutions, layers inside a frame."""
    monkeypatch.setattr(transform, "PLACEHOLDER", POISON)
    model, delays = jaxrnn.load(NETWORKS[name]()), BUILT[name]
    streamed = model.stream()
    assert streamed.delay == delays
    runner, offline = InPulses(streamed, model.params), offline_of(model)
    for frames in (1, 2, 9):
        inputs = inputs_of(model, frames, frames)
        assert_same(runner.run(inputs, frames, [1]), offline(inputs), 1e-5, f"{name}, {frames} frames")


@pytest.mark.parametrize("name", of_tiers(["keyword_net", "dual_path_net"], [], []))
def test_gradients(load, name):
    """Gradients through the streamed run, of inputs and parameters, are the offline ones."""
    model, (smallest, _) = load(name), MODELS[name]
    streamed = model.stream(pulse=2 * smallest)
    inputs = inputs_of(model, 9 * smallest)

    def loss(run):
        return lambda params, inputs: sum(jnp.mean(y**2) for y in run(params, inputs).values())

    with exact_types():
        found = jax.jit(jax.grad(loss(streamed.run), (0, 1)))(model.params, inputs)
        expected = jax.jit(jax.grad(loss(model.apply), (0, 1)))(model.params, inputs)
    for part, other in zip(found, expected, strict=True):
        norm = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in other.values()))
        assert norm > 0
        for key, leaf in other.items():
            assert float(jnp.linalg.norm((part[key] - leaf).ravel())) <= 1e-4 * max(
                float(jnp.linalg.norm(leaf.ravel())), 1e-3 * norm
            ), key


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_no_symbol_is_left(load, name):
    """Neither the step nor the flush holds a symbolic dimension, at any depth."""
    model, (smallest, _) = load(name), MODELS[name]
    streamed = model.stream(pulse=3 * smallest)
    with exact_types():
        state, inputs = streamed.init(), inputs_of(model, 3 * smallest)
        step = jax.make_jaxpr(streamed.step)(model.params, state, inputs)
        flush = jax.make_jaxpr(streamed.flush)(model.params, state, inputs, 1)
        gradient = jax.make_jaxpr(jax.grad(lambda p: sum(map(jnp.sum, streamed.step(p, state, inputs)[0].values()))))
        for jaxpr in (step, flush, gradient(model.params)):
            assert count_dimensions(jaxpr) > 100


def count_dimensions(closed):
    """The number of dimensions looked at in a jaxpr and all that its parameters hold; none may be symbolic."""
    count = 0
    for variable in (*closed.jaxpr.invars, *closed.jaxpr.constvars):
        count += check_shape(variable.aval.shape)
    for equation in closed.jaxpr.eqns:
        for variable in equation.outvars:
            count += check_shape(getattr(variable.aval, "shape", ()))
        for value in jax.tree.leaves(equation.params, is_leaf=lambda item: hasattr(item, "eqns")):
            if hasattr(value, "eqns"):
                inner = value if hasattr(value, "consts") else ClosedJaxpr(value, ())
                count += count_dimensions(inner)
            assert "_DimExpr" not in type(value).__name__, equation
    return count


def check_shape(shape):
    """The rank of a shape, which must not hold a symbolic dimension."""
    assert not any(map(is_symbolic, shape)), shape
    return len(shape)


def test_state_leads_back_to_the_nodes(load):
    """The state is named after the nodes of the file."""
    model = load("filter_net")
    nodes = {node.name for node in model.proto.graph.node}
    entries = {entry.name: entry for entry in model.stream().state}
    for name, entry in entries.items():
        if entry.kind != "counter":
            assert name.rsplit(".", 1)[0] in nodes, name
    assert {name for name, entry in entries.items() if entry.kind == "carry"} == {
        "/gru/GRU.carry",
        "/gru_b/GRU.carry",
        "/gru_b/GRU_1.carry",
        "/gru_s/GRU.carry",
        "/gru_s/GRU_1.carry",
    }
    assert entries["/path/conv/Conv.sums"].shape == (4, 1, 10, 96)


def test_a_bidirectional_model_is_refused(load):
    """The refusal names the file, the primitive, the node and the hint."""
    with pytest.raises(
        jaxrnn.StreamError, match=r"ocr_net.*: node '/lstm/LSTM' \(LSTM-\d+\).*backwards.*forwards only"
    ):
        load("ocr_net").stream("width")


def test_a_dimension_that_no_input_has_is_an_error(load):
    with pytest.raises(jaxrnn.InputError, match="no input has a dimension 'T'; dimensions left open: S"):
        load("filter_net").stream("T")


def test_a_pulse_that_does_not_fit_names_the_smallest_ones(load):
    with pytest.raises(jaxrnn.StreamError, match=r"a pulse of 3 frame.*a multiple of 2 frames, such as 2, 4, 6"):
        load("keyword_net").stream(pulse=3)


def tokens_model():
    """Tokens through an embedding into a GRU whose initial state is an input."""
    rng = np.random.default_rng(0)
    shapes = {"table": (7, 3), "W": (1, 12, 3), "R": (1, 12, 4)}
    weights = {name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "tokens"], ["embedded"]),
        node("Transpose", ["embedded"], ["x"], perm=[1, 0, 2]),
        node("GRU", ["x", "W", "R", "", "", "h0"], ["Y", "h"], hidden_size=4, linear_before_reset=1),
        node("Squeeze", ["Y", "one"], ["y"]),
    ]
    inputs = {"tokens": (TensorProto.INT64, ["batch", "S"]), "h0": [1, "batch", 4]}
    return make_model(graph_of(nodes, inputs, {"y": None, "h": None}, weights | {"one": np.array([1])}, "tokens"))


@pytest.mark.thorough
def test_tokens_and_a_held_initial_state():
    """64-bit inputs are taken as they are, whatever ``jax_enable_x64`` says; the state begins with a constant input."""
    model = jaxrnn.load(tokens_model())
    streamed = model.stream(pulse=2)
    inputs = {"tokens": np.array([[1, 2, 3, 6, 0]]), "h0": drawn((1, 1, 4))}
    found, expected = jax.jit(streamed.run)(model.params, inputs), model(inputs)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    with pytest.raises(jaxrnn.InputError, match="depends on constants"):
        streamed.init()
    state = streamed.init(constants={"h0": inputs["h0"]})
    y, state = jax.jit(streamed.step)(model.params, state, {**inputs, "tokens": inputs["tokens"][:, :2]})
    np.testing.assert_allclose(y["y"], expected["y"][:2], rtol=1e-5, atol=1e-6)
    tail = {"tokens": inputs["tokens"][:, 2:], "h0": inputs["h0"]}
    np.testing.assert_allclose(streamed.flush(model.params, state, tail, 3).outputs["h"], expected["h"], rtol=1e-5)


@pytest.mark.thorough
def test_states_that_are_left_out_begin_as_init(tmp_path):
    """A whole recording begins from the state before the first frame: zeros, or the values in the file."""
    tokens = np.array([[1, 2, 3, 6, 0]])
    path = tmp_path / "tokens.onnx"
    onnx.save(tokens_model(), path)
    np.savez(tmp_path / "in.npz", tokens=tokens)
    plain = jaxrnn.load(path)
    # The step of a batch of streams has the batch of the other inputs.
    two = first_states(plain, plain.inputs, {"tokens": np.zeros((2, 5), np.int64)})
    assert {name: array.shape for name, array in two.items()} == {"h0": (1, 2, 4)}
    assert first_states(plain, plain.inputs) == {}
    expected, streamed = plain({"tokens": tokens, "h0": np.zeros((1, 1, 4), np.float32)}), plain.stream()
    recordings = [{"tokens": tokens}]
    results = [streamed.run(plain.params, *recordings), *streamed.run_prefixes(plain.params, recordings)]
    for options in (["run"], ["stream", "--symbol", "S"]):
        call(*options, path, "--inputs", tmp_path / "in.npz", "--output", tmp_path / f"{options[0]}.npz")
        with np.load(tmp_path / f"{options[0]}.npz") as found:
            results.append(dict(found))
    for found in results:
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    check_refused(jaxrnn.InputError, r"missing input.*x\['tokens'\]", streamed.run, plain.params, {})


@pytest.mark.thorough
def test_a_cell_that_begins_from_the_first_frame():
    """A GRU whose initial state is computed from the first frame, by a rule of its own for derivatives."""
    rng = np.random.default_rng(0)
    shapes = {"V": (3, 4), "W": (1, 12, 3), "R": (1, 12, 4)}
    weights = {name: (0.4 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    node = helper.make_node
    nodes = [
        node("Gather", ["x", "zero"], ["first"], axis=0),
        node("MatMul", ["first", "V"], ["moved"]),
        node("Unsqueeze", ["moved", "axis"], ["h0"]),
        node("GRU", ["x", "W", "R", "", "", "h0"], ["y"], hidden_size=4, linear_before_reset=1),
    ]
    constants = weights | {"zero": np.array(0), "axis": np.array([0])}
    model = jaxrnn.load(make_model(graph_of(nodes, {"x": ["S", 1, 3]}, {"y": None}, constants)))
    for pulse in (1, 3):
        streamed = model.stream(pulse=pulse)
        for frames in (1, 2, 7):
            inputs = {"x": drawn((frames, 1, 3))}
            found = jax.jit(streamed.run)(model.params, inputs)["y"]
            np.testing.assert_allclose(found, model(inputs)["y"], atol=1e-6)
