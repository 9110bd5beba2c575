"""Which recordings a stream takes: constraints and multiples are checked wherever a length is known."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import ExportedStream, check_exported
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from plain_graphs import node
from refusals import check_refused
from small_models import graph_of, make_model
from streaming_verifier import check_values
from test_cli import call_json
from tiers import of_tiers

import jaxrnn
from jaxrnn.streaming.lengths import Lengths

X = jax.ShapeDtypeStruct((20, 3), np.float32)
CONSTRAINTS = {
    ("S <= 5",): lambda n: n <= 5,
    ("S >= 3",): lambda n: n >= 3,
    ("mod(S, 2) == 0",): lambda n: n % 2 == 0,
    ("mod(S, 3) == 1", "S >= 4"): lambda n: n % 3 == 1 and n >= 4,
    ("S >= 2", "S <= 6"): lambda n: 2 <= n <= 6,
    ("S <= 100000000",): lambda n: True,
    ("floordiv(S, 2) >= 2", "mod(S, 2) <= 0"): lambda n: n >= 4 and n % 2 == 0,
}


def means(x):
    return (x[:-1] + x[1:]) / 2 if x.shape[0] > 1 else x


def look_ahead(x):
    return x + jnp.pad(x[1:], ((0, 1), (0, 0)))


@pytest.mark.parametrize(
    ("constraints", "multiple"),
    of_tiers(
        itertools.product(CONSTRAINTS, (1, 2)),
        [(each, 1) for each in [*CONSTRAINTS][1::4]],
        thorough=[*((each, 1) for each in [*CONSTRAINTS][3::4]), (("mod(S, 3) == 1", "S >= 4"), 2)],
    ),
)
def test_constraints_are_checked(constraints, multiple):
    """`run` and `flush` refuse every length that does not meet them, however it is cut, and no other."""
    allowed = CONSTRAINTS[constraints]
    streamed = jaxrnn.stream(lambda x: 2 * x, X, axes=0, pulse=multiple, multiple=multiple, constraints=constraints)
    flush, step = jax.jit(streamed.flush), jax.jit(streamed.step)
    for units in range(9):
        x = np.ones((units * multiple, 3), np.float32)
        given, state = [], streamed.init()
        for start in range(0, len(x), multiple):
            output, state = step(None, state, x[start : start + multiple])
            given.append(output)
        last = flush(None, state)
        if allowed(units):
            assert streamed.run(None, x).shape == x.shape
            streamed.flush(None, state)
            assert not np.any(np.isnan([*given, np.zeros((multiple, 3))]))
            continue
        for refused in (lambda x=x: streamed.run(None, x), lambda state=state: streamed.flush(None, state)):
            check_refused(jaxrnn.InputError, "does not satisfy `.*constraints=", refused)
        assert np.all(np.isnan(last.outputs)) or not last.outputs.size or int(last.counts) == 0


@pytest.mark.parametrize("future", [None, 2])
def test_the_name_of_the_length_in_a_file(future):
    """A recording that is too short is refused in the name of the dimension."""
    graph = graph_of([node("MaxPool", ["x"], kernel_shape=[3])], {"x": [1, 2, "time"]}, {"y": None})
    streamed = jaxrnn.load(make_model(graph)).stream("time", constraints=["time >= 3"], future=future)
    words = r"model 'g'.* a recording of 2 frame\(s\) does not satisfy `constraints=\['time >= 3'\]`"
    check_refused(jaxrnn.InputError, words, streamed.run, {}, {"x": np.ones((1, 2, 2), np.float32)})


@pytest.mark.parametrize("frames", [1, 2, 4, 7])
def test_a_live_stream_that_ends_at_a_length_that_is_not_allowed(frames):
    """The flush of a runner and of a pool raises the error of `run`; the stream goes on, and may end later."""
    x = np.arange(12, dtype=np.float32)
    options = {"pulse": 2, "constraints": ["S >= 3", "mod(S, 3) == 0"]}
    mirrored = lambda inputs: {"y": jnp.pad(inputs["x"], (2, 2), mode="reflect")[4:]}  # noqa: E731
    streamed = jaxrnn.stream(mirrored, {"x": x}, axes=0, **options)
    run, pool = jaxrnn.Runner(streamed, None), jaxrnn.StreamPool(streamed, None, 2)
    stream = pool.open()
    whole = frames - frames % 2
    pieces = []
    for start in range(0, whole, 2):
        pulse = {"x": x[start : start + 2]}
        pieces.append(run(pulse)["y"])
        pool.push(stream, pulse)
        pool.run()
    for flush in (run.flush, functools.partial(pool.flush, stream)):
        with pytest.raises(jaxrnn.InputError, match=rf"a recording of {frames} frame\(s\) does not satisfy"):
            flush({"x": x[whole:frames]})
    end = 9 if frames > 3 else 3
    pieces += [run({"x": x[start : start + 2]})["y"] for start in range(whole, end - 1, 2)]
    pieces.append(run.flush({"x": x[end - 1 : end]})["y"])
    delay = streamed.spec.delay["y"]
    np.testing.assert_array_equal(np.concatenate(pieces)[delay:], mirrored({"x": x[:end]})["y"])


def test_a_step_beyond_the_largest_length():
    streamed = jaxrnn.stream(lambda x: 2 * x, X, axes=0, pulse=2, constraints=["S <= 5"])
    step, state, x = jax.jit(streamed.step), streamed.init(), np.ones((2, 3), np.float32)
    for _ in range(2):
        output, state = step(None, state, x)
        np.testing.assert_array_equal(output, 2 * x)
    with pytest.raises(jaxrnn.InputError, match=r"exceeds 5 frames, the limit of constraints=\['S <= 5'\]"):
        streamed.step(None, state, x)
    for _ in range(3):
        output, state = step(None, state, x)
        assert np.all(np.isnan(output))
    batch = {name: jnp.stack([array, streamed.init()[name]]) for name, array in state.items()}
    check_refused(jaxrnn.InputError, "exceeds 5 frames", streamed.step, None, batch, np.ones((2, 2, 3), np.float32))
    outputs, _ = step(None, batch, np.ones((2, 2, 3), np.float32))
    assert np.isnan(outputs[0]).all()
    assert not np.isnan(outputs[1]).any()
    with pytest.raises(jaxrnn.InputError, match="exceeds 5 frames"):
        streamed.scan(None, streamed.init(), np.ones((6, 3), np.float32))


def test_streams_within_constraints_are_exact():
    check_values(means, (20, 3), lengths=(2, 3, 5), constraints=["S >= 2", "S <= 5"])
    check_values(means, (20, 3), lengths=(2, 4, 8), constraints=["mod(S, 2) == 0", "S >= 2"])


@pytest.mark.thorough
def test_exported_files_know_the_constraints(tmp_path):
    options = {"constraints": ["S >= 2", "S <= 6", "mod(S, 2) == 0"]}
    check_exported(look_ahead, (20, 3), tmp_path, lengths=(2, 4, 6), pulses=(1, 2), **options)
    exported = ExportedStream(tmp_path / "step_1.onnx", tmp_path / "flush_1.onnx")
    odd = exported.run({"x": np.ones((3, 3), np.float32)})["y"]
    assert np.isnan(odd[-1]).all()
    long = exported.run({"x": np.ones((8, 3), np.float32)})["y"]
    assert np.isnan(long[5:]).all()
    assert not np.isnan(long[:5]).any()


def test_a_batch_is_refused_for_one_stream_of_it():
    streamed = jaxrnn.stream(lambda x: 2 * x, X, axes=0, constraints=["mod(S, 2) == 0"])
    state = streamed.init(2)
    tail = np.ones((2, 3, 3), np.float32)
    streamed.flush(None, state, tail, np.array([2, 0], np.int32))
    with pytest.raises(jaxrnn.InputError, match="a recording of 3 frame"):
        streamed.flush(None, state, tail, np.array([2, 3], np.int32))
    outputs, _ = jax.jit(streamed.flush)(None, state, tail, np.array([2, 3], np.int32))
    assert np.isnan(outputs[1]).all()
    assert not np.isnan(outputs[0]).any()


def test_a_recording_that_is_no_multiple():
    streamed = jaxrnn.stream(lambda x: x.reshape(-1, 4, 3), X, axes=0, pulse=4, multiple=4)
    with pytest.raises(
        jaxrnn.InputError, match="a recording must have a multiple of 4 frames, as `multiple` requires, not 6"
    ):
        streamed.run(None, np.ones((6, 3), np.float32))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"constraints": ["S == 6"]}, "allow only S = 6.*call the function itself"),
        ({"constraints": ["S >= 3", "S <= 3"]}, "allow only S = 3"),
        ({"constraints": ["S <= 1"]}, "allow only S = 1"),
        ({"constraints": ["T >= 2"]}, "'T' is not 'S', the number of input frames"),
        ({"constraints": ["S >= T"]}, "'T' is not 'S'"),
        ({"constraints": "S >= 2"}, r"a list of strings such as \['S >= 3'\]"),
        ({"constraints": None}, "a list of strings"),
        ({"constraints": [3]}, "not 3: it is not a string"),
        ({"constraints": ["S >= 5", "S <= 4"]}, "no length satisfies|constraints must be"),
        ({"constraints": ["S <= 5000000000"]}, "below 2,147,483,648"),
        ({"multiple": 2.5}, "multiple must be a positive number of frames, not 2.5"),
        ({"multiple": "2"}, "not '2'"),
        ({"multiple": True}, "not True"),
    ],
)
def test_arguments(options, words):
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, jnp.tanh, X, axes=0, **options)


@given(
    st.lists(
        st.one_of(
            st.builds("S >= {}".format, st.integers(0, 30)),
            st.builds("S <= {}".format, st.integers(2, 60)),
            st.builds("mod(S, {0}) == {1}".format, st.integers(2, 7), st.integers(0, 1)),
            st.builds("floordiv(S, {0}) >= {1}".format, st.integers(2, 5), st.integers(0, 5)),
        ),
        max_size=3,
    ),
    st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_what_a_count_that_stops_growing_must_tell(constraints, unit):
    """Beyond the settled count, a length is allowed as the same place in any later unit is."""
    try:
        lengths = Lengths(constraints)
    except jaxrnn.StreamError:
        return
    totals = np.arange(1000)
    expected = np.ones(1000, bool)
    for each in constraints:
        spelling = each.replace("mod(S, ", "np.mod(n, ").replace("floordiv(S, ", "np.floor_divide(n, ")
        expected &= eval(spelling.replace("S", "n"), {"np": np, "n": totals})
    np.testing.assert_array_equal(lengths.allow(totals), expected)
    assert lengths.most == (None if expected[900:].any() else int(np.flatnonzero(expected)[-1]))
    settled = lengths.settled(unit)
    if settled is not None:
        counts = np.minimum(totals // unit, settled)
        np.testing.assert_array_equal(lengths.allow(counts * unit + totals % unit), expected)


def two_inputs():
    """A model of two inputs over time, whose dimensions bear unrelated names."""
    nodes, inputs = [node("Relu", ["x"]), node("Relu", ["side"], ["z"], name="m")], {"x": ["B", "T", 3]}
    return jaxrnn.load(make_model(graph_of(nodes, {**inputs, "side": ["B", "U", 2]}, {"y": None, "z": None})))


@pytest.mark.parametrize(
    ("symbol", "options", "words"),
    [
        (("B", "T"), {}, r"no input has a dimension \('B', 'T'\); dimensions left open: B, T, U"),
        (None, {}, "name the time dimension with `symbol=NAME`; possible dimensions: T, U$"),
        ("T", {"dims": {"B": "T"}}, "x: .* has T on 2 axes"),
        ("T", {"dims": {"B": "U"}}, r"must give 'B' a size from 1 on, or a multiple of T such as '4\*T', not 'U'"),
        ("T", {"dims": {"B": 0}}, "must give 'B' a size from 1 on"),
        ("T", {"dims": {"B": 2.5}}, "must give 'B' a size from 1 on"),
        ("T", {"dims": {"T": 4}}, "dims`: 'T' is time, and stays open; dimensions that take a size: B, U"),
        ("T", {"dims": {"F": 4}}, "dims`: there is no dimension 'F'; dimensions that take a size: B, U"),
    ],
)
def test_dimensions_of_a_model(symbol, options, words):
    check_refused(jaxrnn.InputError, words, two_inputs().stream, symbol, **options)


def test_the_only_dimension_that_can_be_time():
    """Other than a batch and dimensions with a size; `S` is the default name among several."""

    def moving(model, **options):
        return [each.name for each in model.stream(**options).spec.inputs if each.time_axis is not None]

    assert moving(two_inputs(), dims={"U": 1}) == ["x"]
    assert moving(two_inputs(), dims={"T": "4*U"}) == ["side", "x"]
    graph = graph_of([node("Relu", ["x"])], {"x": ["rows", "S", 3]}, {"y": None})
    assert moving(jaxrnn.load(make_model(graph))) == ["x"]


@pytest.mark.thorough
def test_dimensions_that_are_related():
    streamed = two_inputs().stream("U", dims={"T": "4*U"})
    x, side = np.ones((1, 12, 3), np.float32), np.ones((1, 3, 2), np.float32)
    outputs = streamed.run({}, {"x": x, "side": side})
    assert {name: array.shape for name, array in outputs.items()} == {"y": (1, 12, 3), "z": (1, 3, 2)}
    with pytest.raises(jaxrnn.InputError, match="frames"):
        streamed.run({}, {"x": x[:, :11], "side": side})


def test_the_smallest_pulse_is_what_one_gets():
    assert jaxrnn.stream(lambda x: x[::6], X, axes=0).pulse == 6
    assert jaxrnn.stream(lambda x: x.reshape(-1, 4, 3), X, axes=0, multiple=4).pulse == 4
    strided = [node("Slice", ["x", "zero", "end", "one", "step"])]
    constants = {"zero": [0], "end": [2**62], "one": [1], "step": [3]}
    graph = graph_of(strided, {"x": ["B", "S", 3]}, {"y": None}, constants)
    assert jaxrnn.load(make_model(graph)).stream().pulse == 3


@pytest.mark.thorough
def test_the_command_times_one_stream(tmp_path):
    """Whatever the batch is called: tf2onnx names every dimension by a number."""
    shape = ["unk__1", "unk__2", 3]
    onnx.save(make_model(graph_of([node("Relu", ["x"])], {"x": shape}, {"y": shape})), tmp_path / "m.onnx")
    facts = call_json("stream", tmp_path / "m.onnx", "--symbol", "unk__2", "--random", "--frames", 4)
    assert facts["dims"] == {"unk__1": 1, "unk__2": 4}
    given = call_json(
        "stream", tmp_path / "m.onnx", "--symbol", "unk__2", "--random", "--frames", 4, "--dim", "unk__1=2"
    )
    assert given["dims"] == {"unk__1": 2, "unk__2": 4}


def spaced(x):
    """Return frames with numbers around and between them."""
    return lax.pad(x, np.float32(3), [(2, 2, 1), (0, 0, 0)])


def upsampled(x):
    kernel = jnp.arange(1.0, 5.0).reshape(4, 1, 1)
    numbers = ("NWC", "WIO", "NWC")
    return 1 + lax.conv_general_dilated(x[None], kernel, (1,), [(6, 6)], (4,), dimension_numbers=numbers)[0]


#: Functions that give frames or other numbers for an empty recording.
OF_NOTHING = {
    "transposed convolutions": lambda x: upsampled(upsampled(x)),
    "numbers between frames": lambda x: (spaced(x), jnp.cumsum(spaced(x), 0), spaced(x)[1:].sum(0)),
    "spaced windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), ((3, 3), (0, 0)), (3, 1)),
    "cut and padded": lambda x: jnp.pad(x[1:], ((0, 2), (0, 0)), constant_values=7),
    "the length as a number": lambda x: spaced(x).shape[0] + x.sum(0),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_empty_recordings(name):
    function = OF_NOTHING[name]
    check_values(function, (20, 1), lengths=(0, 1, 3), chunkings=((1,),))


def test_empty_recordings_whose_length_is_not_known():
    """JAX assumes a frame, so the last frame of no frames has the length 1, and frames that look ahead the length 0."""
    example = jax.ShapeDtypeStruct((9, 1), np.float32)
    joined, padded = lambda x: jnp.concatenate([x, x[-1:]]), lambda x: jnp.pad(x[1:], ((0, 1), (0, 0)))
    for function in (joined, padded, lambda x: x[-1:], lambda x: (x, jnp.concatenate([x[:1], x[:1] * 2]))):
        streamed = jaxrnn.stream(function, example, axes=0)
        check_refused(
            jaxrnn.InputError,
            r"0 frame\(s\) does not satisfy .*S >= 1",
            streamed.run,
            None,
            np.ones((0, 1), np.float32),
        )
