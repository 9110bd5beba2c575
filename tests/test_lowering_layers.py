"""Control flow, recurrent layers and streams as graphs of ONNX."""

from __future__ import annotations

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import ExportedStream, lengths_of
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from lowering_verifier import check_well_formed, lowered, operators_of, outputs_of, verify_lowering
from recurrent_reference import build, nodes
from refusals import check_refused
from stream_fuzzing.programs import program_of
from stream_fuzzing.trial import recording as whole_numbers
from stream_fuzzing.writing import INPUTS
from tiers import of_tiers
from written_out_cells import CHOICES, written_out

import jaxrnn
from jaxrnn import StreamError
from jaxrnn.cells.cell import GRU, LSTM, RNN, Activation, Weights
from jaxrnn.cells.forms import plain_forms
from jaxrnn.cells.recurrence import run_layer
from jaxrnn.errors import UnsupportedError
from jaxrnn.export.lowering import RULES
from jaxrnn.export.reshaping import reshape
from jaxrnn.jaxprs.scanning import step_with_layers
from jaxrnn.streaming import stream
from jaxrnn.streaming.measuring import drawn

WEIGHT = np.float32(np.random.default_rng(0).normal(size=(3, 3)))


@pytest.mark.parametrize("which", of_tiers([-3, 0, 1, 2, 7], quick=[1, 7]))
def test_branches(which):
    """Of two by a condition, of several by a number, one inside of another; they read what is around them."""

    def function(i, x):
        y = x * 2
        two = lax.cond(i > 0, lambda x: (x + y, y.sum()), lambda x: (x, jnp.float32(3)), x)
        four = lax.switch(i, [lambda x: x, lambda x: jnp.sin(x) + two[0], lambda x: x @ WEIGHT, jnp.negative], x)
        inner = lax.cond(i > 1, lambda: lax.cond(i > 2, lambda: x, lambda: y), lambda: WEIGHT[0])
        return two, four, inner

    model = verify_lowering(function, np.int32(which), np.float32([1, 2, 3]))
    assert operators_of(model.graph)["If"] == 6


@pytest.mark.parametrize("length", of_tiers([0, 1, 2, 5, 40], quick=[0, 2, 40]))
@pytest.mark.parametrize("reverse", [False, True])
def test_scans(length, reverse):
    """Short ones are written out, long ones are a Scan; carries of all types, some handed on, and outer values."""

    def body(carry, frames):
        h, count, same, mask = carry
        x, index = frames
        h = jnp.tanh(h @ WEIGHT + x + same)
        return (h, count + index, same, ~mask), (h.sum(), count, same, x, jnp.where(mask, 1, 2))

    def function(h, x, same):
        carry = (h, jnp.int8(3), same, True)
        return lax.scan(body, carry, (x, jnp.arange(length, dtype=jnp.int8)), reverse=reverse)

    x = np.random.default_rng(1).normal(size=(length, 3)).astype(np.float32)
    model = verify_lowering(function, np.float32([1, 0, -1]), x, np.float32([0.1, 0.2, 0.3]))
    assert operators_of(model.graph)["Scan"] == (length == 40)


def test_scans_of_nothing_but_a_carry():
    """A Scan has something to go through all the same; scans inside of scans, and of branches."""

    def inner(c, x):
        return lax.cond(x > 1, lambda c: c * 0.5 + 1, lambda c: c + x, c), c

    def outer(c, x):
        c, ys = lax.scan(inner, c, x + jnp.arange(40, dtype=jnp.float32))
        return c, ys.sum()

    verify_lowering(lambda c: lax.scan(lambda c, _: (jnp.sin(c) + 1, None), c, length=300), np.float32(0.5))
    verify_lowering(lambda c, x: lax.scan(outer, c, x), np.float32(0.5), np.arange(30, dtype=np.float32), roundings=16)


@pytest.mark.parametrize("limit", [-1.0, 0.0, 7.0, 100.0])
def test_loops_as_long_as_a_condition_holds(limit):
    """No trip at all too; with outer values in the condition and the body, and loops inside of it."""

    def function(limit, x):
        def body(carry):
            n, x, same = carry
            x = lax.fori_loop(0, n, lambda _, x: x + same, x)
            return n + 1, x + 1, same

        return lax.while_loop(lambda c: (c[1].sum() < limit) & (c[0] < 9), body, (jnp.int32(0), x, jnp.float32(0.5)))

    verify_lowering(function, np.float32(limit), np.float32([0, 0.25]))


def test_rules_write_the_shapes_of_the_function(monkeypatch):
    monkeypatch.setitem(RULES, "sin", lambda lowering, equation, x: reshape(lowering.writer, x, (1, 2)))
    with pytest.raises(UnsupportedError, match=r"'sin' .*wrote an array of shape \[1, 2\] in place of \[2\]"):
        lowered(jnp.sin, np.ones(2, np.float32))


def test_loops_of_a_batch():
    """Each row stops by its own condition."""

    def row(x, limit):
        return lax.while_loop(lambda c: c[0].sum() < limit, lambda c: (c[0] * 2 + 1, c[1] + 1, x), (x, 0, x))

    x, limits = np.float32([[0, 1], [5, -4], [9, 9], [-1, -1.5]]), np.float32([7, 50, 3, -9])
    verify_lowering(jax.vmap(row), x, limits)
    verify_lowering(jax.vmap(row), x, np.float32([-9, -9, -9, -9]), known=(1,))


def test_functions_with_rules_of_their_own():
    """Derivative rules, checkpoints and linear solves are the functions themselves."""

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (double(x), None), lambda _, g: (g,))

    def function(x):
        solve = lambda _, b: lax.squeeze(b[:, None] / 4, [1])  # noqa: E731
        solved = lax.custom_linear_solve(lambda v: v * 4, x, solve, solve)
        return double(x), jax.checkpoint(jnp.sin)(x), jax.nn.relu(x), solved

    verify_lowering(function, np.float32([-1, 0, 2]))


def test_refusals():
    """All that cannot be written is named at once, with its line and why; what prints or calls Python too."""

    def function(x):
        jax.debug.print("{}", x)
        y = lax.scan(lambda c, x: (c + lax.lgamma(x), None), x[0], x)[0]
        return y, jnp.linalg.qr(x[:, None] * x)[1], lax.digamma(x), jnp.bitwise_or(x.astype(jnp.int32), 5)

    with pytest.raises(UnsupportedError) as error:
        lowered(function, np.float32([1, 2]))
    lines = str(error.value).splitlines()
    assert lines[0] == "5 operations cannot be written in ONNX:"
    for line, words in zip(lines[1:], ("calls Python", "lgamma", "qr", "digamma", "opset=18"), strict=True):
        assert words in line
        assert "test_lowering_layers.py:" in line


def bits_of(seed):
    """Numbers of several keys and types, in which each bit counts."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), seed + 1), (2, 3))
    uniform = jax.random.uniform(keys[0, 1], (100,), jnp.float32)
    bits = [jax.random.bits(keys[1, 0], (100,), dtype) for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)]
    chosen = jax.lax.cond(seed > 1, lambda: keys[0, 2], lambda: keys[1, 2])
    places = jax.random.randint(chosen, (100,), -3, 200, jnp.int32)

    def step(key, _):
        key, own = jax.random.split(key)
        return key, jax.random.bernoulli(own, 0.3, (5,))

    return uniform, bits, places, jax.lax.scan(step, keys.T[2, 1], length=60)[1]


@pytest.mark.thorough
def test_random_numbers():
    """Those of a known key are constants; others are drawn in the graph, bit by bit."""
    verify_lowering(lambda x: x + jax.random.normal(jax.random.key(1), (3,), jnp.float32), np.float32([1, 2, 3]))
    verify_lowering(bits_of, np.int32(3), opset=18, roundings=0)
    normal = lambda seed: jax.random.normal(jax.random.key(seed), (1000,), jnp.float32)  # noqa: E731
    verify_lowering(normal, np.int32(3), opset=18, roundings=8)
    check_refused(UnsupportedError, "opset=18", lowered, normal, np.int32(3))
    with pytest.raises(UnsupportedError, match=r"key<rbg>.*draw the numbers outside"):
        lowered(lambda seed: jax.random.uniform(jax.random.key(seed, impl="rbg"), (3,), jnp.float32), np.int32(3))
    known = lambda data: jax.random.bits(jax.random.fold_in(jax.random.key(1, impl="rbg"), data))  # noqa: E731
    check_refused(UnsupportedError, "draw the numbers outside", lowered, known, np.int32(3))


#: Files of converters that write layers as loops, and the nodes that these become.
LOOPS = {
    "keras_gru": {"GRU": 2},
    "keras_gru_before": {"GRU": 1},
    "keras_lstm": {"LSTM": 1},
    "keras_lstm_last": {"LSTM": 1},
    "keras_simple": {"RNN": 1},
    "loop_cellloop": {"GRU": 1},
}


def lowered_layer(case, dtype, **options):
    """The graph of a layer whose weights are known."""
    operator, arrays, attributes, wanted, opset = case
    arrays = {name: array if name == "sequence_lens" else array.astype(dtype) for name, array in arrays.items()}
    weights = [name for name in arrays if name in ("W", "R", "B", "P")]
    x = [name for name in arrays if name not in weights]
    model = jaxrnn.load(build(operator, arrays, attributes, wanted, opset, set(x)))

    def function(*values):
        named = dict(zip([*x, *weights], values, strict=True))
        params = {name: named[name] for name in weights}
        return model.apply(params, {name: named[name] for name in x})

    with plain_forms():
        known = range(len(x), len(x) + len(weights))
        return verify_lowering(function, *(arrays[name] for name in (*x, *weights)), known=known, **options)


@given(nodes(), st.sampled_from((np.float32, np.float32, np.float64, np.float16)))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_feature(case, dtype):
    """One node where ONNX Runtime computes what the specification says, with no more moves than it needs."""
    operator, _, attributes, *_ = case
    lowered = lowered_layer(case, dtype, roundings=500)
    counts = operators_of(lowered.graph)
    differs = {"Softplus", "ThresholdedRelu"} & set(attributes.get("activations", ()))
    clips = operator == "LSTM" and "clip" in attributes
    assert counts[operator] == (0 if clips or differs or dtype == np.float64 else 1)


#: The operator of each kind of cell.
OPERATORS = {"gru after": "GRU", "gru before": "GRU", "lstm": "LSTM", "rnn": "RNN"}


@pytest.mark.thorough
@given(CHOICES, st.sampled_from((None, 1)))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_cells_that_are_written_out(choices, frames):
    """In loops of ONNX files: a node for each cell, of one frame too."""
    choices = choices if frames is None else {**choices, "time": frames}
    proto, inputs = written_out(choices)
    model = jaxrnn.load(proto)

    def function(*values):
        return model.apply(model.params, dict(zip(inputs, values, strict=True)))

    with plain_forms():
        counts = operators_of(verify_lowering(function, *inputs.values(), roundings=200).graph)
    cells = Counter(OPERATORS[kind] for kind in choices["kinds"])
    assert {name: counts[name] for name in cells} == cells
    assert not {"Loop", "Scan", "If"} & set(counts)


def masked(x, lengths):
    """A layer of several rows, whose frames exist here and there."""
    size = x.shape[-1]
    rng = np.random.default_rng(3)
    weights = Weights(*(jnp.asarray(0.5 * rng.normal(size=(1, 4 * size, size)), x.dtype) for _ in range(2)))
    carry = [jnp.full((1, x.shape[1], size), value, x.dtype) for value in (0.3, -0.2)]
    return run_layer([LSTM()], weights, x, carry, exists=lengths)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("frames", [1, 4])
def test_frames_that_do_not_exist(rows, frames):
    """They leave the carry alone, in rows without any frame too; where that is known, it costs no node."""
    rng = np.random.default_rng(frames)
    x = rng.normal(size=(frames, 3, 2)).astype(np.float32)
    for exists in (rng.random((frames, rows)) < 0.5, np.zeros((frames, rows), bool), np.ones((frames, rows), bool)):
        with plain_forms():
            graph = verify_lowering(masked, x, exists, roundings=50).graph
            assert operators_of(graph)["LSTM"] == 1
            known = operators_of(verify_lowering(masked, x, exists, known=[1], roundings=50).graph)
        assert not {"TopK", "ReduceSum", "Cast"} & set(known)
        if exists.all():
            assert known == {"LSTM": 1}


#: Layers that tract computes incorrectly as one node, by name: cells, directions, and frames that exist.
TRACT_IGNORES = {
    "activations": ([RNN(activations=(Activation("Relu"),))], "forward", False),
    "clip": ([GRU(clip=0.3)], "forward", False),
    "direction": ([LSTM()], "reverse", False),
    "coupled gates": ([LSTM(input_forget=True)], "forward", False),
    "masked directions": ([GRU(), GRU()], "bidirectional", True),
}


def layer(cells, direction, x, exists=None):
    """A layer with random weights and a carry, whose frames exist here and there."""
    size, rng = x.shape[-1], np.random.default_rng(3)
    shape = len(cells), cells[0].gates * size, size
    weights = Weights(*(jnp.asarray(0.5 * rng.normal(size=shape), x.dtype) for _ in range(2)))
    carry = [jnp.full((len(cells), x.shape[1], size), each, x.dtype) for each in (0.3, -0.2)]
    return run_layer(cells, weights, x, carry[: 1 + isinstance(cells[0], LSTM)], direction=direction, exists=exists)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("frames", of_tiers([1, 3, 60], quick=[3, 60]))
@pytest.mark.parametrize("cell", [LSTM(), GRU(), RNN()], ids=lambda cell: type(cell).__name__)
def test_frames_that_do_not_exist_for_tract(cell, rows, frames):
    """Frame by frame, written out or in a Scan, without a number of frames that is computed."""
    rng = np.random.default_rng(frames)
    x, exists = rng.normal(size=(frames, 3, 2)).astype(np.float32), rng.random((frames, rows)) < 0.5
    with plain_forms():
        model = verify_lowering(functools.partial(layer, [cell], "forward"), x, exists, roundings=50, target="tract")
    name = type(cell).__name__
    assert operators_of(model.graph)[name] == (0 if frames == 60 else frames)
    assert operators_of(model.graph)["Scan"] == (frames == 60)
    assert not lengths_of(model.graph)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRACT_IGNORES)
def test_layers_that_tract_computes_incorrectly_as_a_node(name):
    """They are a node for all engines, and are written out for tract."""
    cells, direction, masked = TRACT_IGNORES[name]
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(3, 2, 2)).astype(np.float32), *([rng.random((3, 2)) < 0.5] if masked else [])]
    function, operator = functools.partial(layer, cells, direction), type(cells[0]).__name__
    with plain_forms():
        assert operators_of(verify_lowering(function, *x, roundings=50).graph)[operator] == 1
        assert operators_of(verify_lowering(function, *x, roundings=50, target="tract").graph)[operator] == 0


def test_a_scan_of_a_function_is_a_layer():
    """Forwards and backwards, of one frame and of several; a cell that no operator of ONNX is stays a loop."""
    rng = np.random.default_rng(0)
    w, u = (rng.normal(size=(3, 12)).astype(np.float32) for _ in range(2))

    def lstm(x, w, u, other, *, reverse=False):
        def step(carry, frame):
            h, c = carry
            i, f, g, o = jnp.split(frame @ w + h @ u, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * (jnp.sin(c) if other else jnp.tanh(c))
            return (h, c), h

        return lax.scan(step, (jnp.zeros((2, 3), x.dtype),) * 2, x, reverse=reverse)

    for frames, reverse, other in ((5, False, False), (1, False, False), (4, True, False), (2, False, True)):
        x = rng.normal(size=(frames, 2, 3)).astype(np.float32)
        function = functools.partial(lstm, reverse=reverse)
        graph = verify_lowering(lambda x, w, u, f=function, o=other: f(x, w, u, o), x, w, u, known=(1, 2)).graph
        assert operators_of(graph)["LSTM"] == (not other)


def cell(kind, rng, features, hidden):
    """A cell of Flax as a function of arrays."""
    module = getattr(nnx, kind)(features, hidden, rngs=nnx.Rngs(rng))
    graph, state = nnx.split(module)
    return lambda carry, x: nnx.merge(graph, state)(carry, x)


@pytest.mark.thorough
def test_cells_in_a_step_are_layers_of_one_frame():
    """Cells of Flax beside a buffer of past frames and a dense layer, with less than half of the nodes."""
    lstm, gru = cell("LSTMCell", 0, 6, 5), cell("GRUCell", 1, 5, 4)
    dense = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def step(carry, x):
        (h, c), g, before = carry
        (h, c), y = lstm((h, c), jnp.concatenate([before, x], 1))
        g, y = gru(g, y)
        return ((h, c), g, x), jax.nn.sigmoid(y @ dense)

    zeros = [np.full((2, size), 0.1, np.float32) for size in (5, 5, 4, 3)]
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

    def function(run, x, h, c, g, before):
        return run(((h, c), g, before), x)

    with plain_forms():
        counts = [
            operators_of(verify_lowering(functools.partial(function, run), x, *zeros, roundings=50).graph)
            for run in (step, functools.partial(step_with_layers, step))
        ]
    assert counts[1]["LSTM"] == counts[1]["GRU"] == 1
    assert 2 * counts[1].total() < counts[0].total()


@pytest.mark.parametrize("name", of_tiers(LOOPS, [], [*LOOPS][:2]))
def test_loops_of_exporters_are_layers(models, tmp_path, name):
    """Streams of recurrent layers that a converter wrote as loops: a node for each, of less than half as many."""
    model = jaxrnn.load(models / "exports" / f"{name}.onnx")
    (info,) = model.inputs
    symbol = next(size for size in info.shape[1:] if isinstance(size, str))
    streamed = model.stream(symbol)
    step, flush = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(streamed, model.params, step, flush=flush)
    counts = operators_of(onnx.load(step).graph)
    assert {key: counts[key] for key in LOOPS[name]} == LOOPS[name]
    assert 2 * counts.total() < operators_of(model.proto.graph).total()
    assert not {"Loop", "Scan", "If"} & set(counts)
    x = drawn([6 if size == symbol else 1 if isinstance(size, str) else size for size in info.shape])
    found, expected = ExportedStream(step, flush).run({info.name: x}), model.apply(model.params, {info.name: x})
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("pulse", [1, 3])
def test_a_stream_of_rows_that_end_early(tmp_path, pulse):
    """``sequence_lens`` and the end of the recording: frames exist that neither rules out."""
    rng = np.random.default_rng(0)
    shapes = {"X": (7, 2, 3), "W": (1, 16, 3), "R": (1, 16, 4), "B": (1, 32)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = {"X": arrays["X"], "sequence_lens": np.array([4, 6], np.int32)}
    proto = build("LSTM", arrays | x, {"hidden_size": 4}, [True, True, True], 14, set(x))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "T"
    model = jaxrnn.load(proto)
    step, flush = tmp_path / "step.onnx", tmp_path / "flush.onnx"
    jaxrnn.export_onnx(model.stream("T", pulse), model.params, step, flush=flush)
    assert operators_of(onnx.load(step).graph)["LSTM"] == 1
    found = ExportedStream(step, flush).run(x)
    for name, value in model.apply(model.params, x).items():
        np.testing.assert_allclose(found[name], value, atol=1e-6)


STEPS = 5


def check(number):
    """One program; None where it is no stream."""
    program = program_of(3, number)
    with plain_forms():
        try:
            streamed = stream(program.function(), INPUTS, axes=0, pulse=None, constraints=program.constraints)
        except StreamError:
            return
        whole = whole_numbers(STEPS * streamed.pulse)
        frames = [
            {name: x[index * streamed.pulse : (index + 1) * streamed.pulse] for name, x in whole.items()}
            for index in range(STEPS)
        ]
        state, structure = jax.tree.flatten(streamed.init())

        def step(*arrays):
            before, inputs = arrays[: len(state)], arrays[len(state) :]
            return streamed.step(None, jax.tree.unflatten(structure, before), dict(zip(INPUTS, inputs, strict=True)))

        model = lowered(step, *state, *frames[0].values(), opset=18)
        compiled = jax.jit(step)
        check_well_formed(model)
        carry = [np.asarray(array) for array in state]
        for each in frames:
            arrays = [*carry, *each.values()]
            found = outputs_of(model, {f"x{index}": array for index, array in enumerate(arrays)})
            expected = [np.asarray(value) for value in jax.tree.leaves(compiled(*arrays))]
            for value, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(value, other)
            carry = found[len(found) - len(carry) :]


@pytest.mark.parametrize("number", of_tiers(range(6), [2], [5]))
def test_programs(number):
    """What they compute is whole numbers, and so exact."""
    check(number)
