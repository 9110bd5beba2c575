"""Functions and files that are seldom written: they stream, or an error of the project's own says what is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import check_exported
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from onnx import TensorProto, helper
from plain_graphs import ADD, WEIGHT, model
from refusals import check_refused
from streaming_verifier import check_values
from tiers import in_later_tier, of_tiers

import jaxrnn

X = jax.ShapeDtypeStruct((20, 3), np.float32)


def doublings(value):
    """How often a number is doubled until it is large: another number of rounds for each."""
    return lax.while_loop(lambda carry: carry[0] < 10, lambda carry: (2 * carry[0] + 1, carry[1] + 1), (abs(value), 0))[
        1
    ]


def repeated(value):
    return lax.fori_loop(0, jnp.int32(4 * abs(value)), lambda _, total: total + value, jnp.zeros((), value.dtype))


def halved(frame):
    return lax.while_loop(lambda frame: jnp.sum(frame**2) > 0.1, lambda frame: frame / 2, frame)


def grown(start, later):
    return lax.while_loop(lambda value: value < 5, lambda value: abs(value) + abs(later) + 0.5, start)


def powers(x):
    counts = jnp.array([1, 2, 3])
    return jax.vmap(lambda n, row: lax.fori_loop(0, n, lambda _, row: 1.5 * row, row), (0, 1), 1)(counts, x)


LOOPS = {
    "a condition for each frame": (jax.vmap(doublings), (20,), 0),
    "a bound for each frame": (jax.vmap(repeated), (20,), 0),
    "a condition for each element": (jax.vmap(jax.vmap(doublings)), (20, 3), 0),
    "a condition for each element, time behind": (jax.vmap(jax.vmap(doublings)), (3, 20), 1),
    "a condition on all of a frame": (jax.vmap(halved), (20, 3), 0),
    "a bound for each row": (powers, (20, 3), 0),
    "frames of other delays": (
        lambda x: jax.vmap(grown)(jnp.pad(x, (2, 0))[:-2], x) + jnp.pad(jax.vmap(doublings)(x)[2:], (0, 2)),
        (20,),
        0,
    ),
}


@pytest.mark.parametrize("name", in_later_tier(LOOPS, ["a bound for each frame", "frames of other delays"]))
def test_loops_with_a_condition_for_each_frame(name):
    function, shape, axis = LOOPS[name]
    check_values(function, shape, axis, constraints=["S >= 3"], lengths=(3, 8))


@pytest.mark.thorough
def test_such_loops_in_exported_files(tmp_path):
    check_exported(jax.vmap(doublings), (20,), tmp_path, lengths=(1, 5))
    check_exported(jax.vmap(repeated), (20,), tmp_path, lengths=(1, 5))


@pytest.mark.thorough
def test_a_loop_depends_on_all_that_it_reads():
    streamed = check_values(lambda x: jax.vmap(grown)(x[:-2], x[2:]), (20,), constraints=["S >= 3"], lengths=(3, 8))
    assert (streamed.look_ahead, streamed.receptive_field) == (2, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.while_loop(lambda x: jnp.any(jnp.abs(x) > 1), lambda x: x / 2, x),
        lambda x: jax.vmap(lambda row: lax.while_loop(lambda r: jnp.max(r) > 1, lambda r: r / 2, row), 1, 1)(x),
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.cumsum(c[1], 0)), (0, x))[1],
    ],
    ids=["all frames decide", "all frames of a row decide", "a total inside"],
)
def test_loops_that_need_all_of_time(function):
    """The first of them gave other numbers than on the whole recording."""
    with pytest.raises(jaxrnn.StreamError, match=r"'while'.*remembers past frames, or sums over time"):
        jaxrnn.stream(function, X, axes=0)


@pytest.mark.nightly
@given(st.data())
@settings(max_examples=4, deadline=None)
def test_loops_at_random(data):
    """Rounds, what is carried and the condition differ from frame to frame."""
    bound = data.draw(st.integers(1, 6))
    growth = data.draw(st.sampled_from([1.25, 2.0, 3.5]))
    shift = data.draw(st.integers(0, 3))

    def rounds(frame, other):
        def body(carry):
            frame, count = carry
            return growth * jnp.abs(frame) + 0.25 + jnp.abs(other), count + 1

        return lax.while_loop(lambda carry: (carry[0] < 5) & (carry[1] < bound), body, (frame, 0))

    def function(x):
        return jax.vmap(rounds)(x, jnp.pad(x, (shift, 0))[: x.shape[0]])

    check_values(function, (20,), lengths=(1, 2, 9), chunkings=((1,), (3, 1)))


def dithered(impl):
    def function(x):
        def step(carry, frame):
            key, total = carry
            key, own = jax.random.split(key)
            return (key, total + frame), frame + total + jax.random.normal(own, frame.shape, frame.dtype)

        start = jax.random.key(0, impl=impl), jnp.zeros(x.shape[1:], x.dtype)
        (key, _), y = lax.scan(step, start, x)
        return y, jax.random.key_data(key)

    return function


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_random_numbers_in_a_carry(impl):
    check_values(dithered(impl), (20, 3))
    streamed = jaxrnn.stream(dithered(impl), X, axes=0)
    assert str(streamed.state[1]).startswith("scan.carry0: carry, uint32")
    if impl == "rbg":
        return  # under vmap, JAX draws other numbers with these keys
    batch = streamed.init(2)
    (y, _), batch = jax.jit(streamed.step)(None, batch, np.zeros((2, 1, 3), np.float32))
    np.testing.assert_array_equal(y[0], y[1])


def test_keys_that_are_inputs_and_outputs():
    keys = jax.random.split(jax.random.key(0), 20)
    with pytest.raises(jaxrnn.StreamError, match=r"x\['key'\] contains random keys.*jax\.random\.wrap_key_data"):
        jaxrnn.stream(lambda a: a["x"], {"x": X, "key": keys}, axes=0)
    with pytest.raises(jaxrnn.StreamError, match=r"an output contains random keys.*jax\.random\.key_data"):
        jaxrnn.stream(lambda x: (x, jax.random.key(0)), X, axes=0)


def spiral(x):
    """A complex recurrence."""
    z = x.astype(np.complex64)
    return jnp.abs(lax.scan(lambda c, frame: ((0.5 + 0.5j) * c + frame,) * 2, jnp.zeros(3, np.complex64), z)[1])


def turned(x):
    """A complex recurrence with a choice and a loop of unknown length inside."""

    def step(carry, frame):
        carry = lax.cond(jnp.real(carry[0]) > 0, lambda c: 0.5j * c, lambda c: c + frame, carry)
        carry = lax.while_loop(lambda c: jnp.max(jnp.abs(c)) > 0.5, lambda c: c * (0.5 + 0.1j), carry)
        return carry, jnp.real(carry) - jnp.imag(carry)

    return lax.scan(step, jnp.zeros(3, np.complex64), x.astype(np.complex64))[1]


def combined(x):
    def affine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    decays = jnp.full(x.shape, 0.5 + 0.5j, np.complex64)
    return jnp.abs(jaxrnn.signal.associative_scan(affine, (decays, x.astype(np.complex64)))[1])


@pytest.mark.parametrize("function", of_tiers([spiral, turned, combined], [], [spiral, turned]))
def test_complex_recurrences_in_exported_files(function, tmp_path):
    check_exported(function, (20, 3), tmp_path, lengths=(1, 5, 9), pulses=(1, 2, 5))


def long_spiral(x):
    """So many steps that they are one node in the file."""
    y = x.astype(np.complex64)
    return jnp.real(lax.scan(lambda c, frame: (jnp.exp(0.1j * c) * (c + frame),) * 2, jnp.zeros(3, np.complex64), y)[1])


def test_a_complex_loop_that_is_one_node(tmp_path):
    check_exported(long_spiral, (200, 3), tmp_path, lengths=(3, 130), pulses=(64,))
    graph = onnx.load(tmp_path / "step_64.onnx").graph
    assert "Scan" in {node.op_type for node in graph.node}


ROLLS = {
    "time to the end": (lambda x: jnp.roll(x, -3, 0), {"constraints": ["S >= 4"]}),
    "another axis": (lambda x: jnp.roll(x, 1, 1), {}),
    "sizes of NumPy": (
        lambda x: lax.concatenate([x, lax.dynamic_slice(x, (0, 0), (x.shape[0], np.int64(2)))], np.int64(1)),
        {},
    ),
    "the largest": (lambda x: lax.argmax(x, np.int64(1), np.int32).astype(np.float32), {}),
}


@pytest.mark.parametrize("name", ROLLS)
def test_numbers_of_numpy_in_exported_files(name, tmp_path):
    function, options = ROLLS[name]
    check_exported(function, (20, 3), tmp_path, lengths=(4, 9), pulses=(1, 2), **options)


def test_a_compiled_file_with_other_parameters(tmp_path):
    params = {"w": np.full(3, 2, np.float32)}
    streamed = jaxrnn.stream(lambda p, a: {"y": a["x"] * p["w"]}, {"x": X}, axes=0, params=params)
    jaxrnn.save_compiled(streamed, tmp_path / "m.jaxrnn", params=params)
    compiled = jaxrnn.load_compiled(tmp_path / "m.jaxrnn")
    frame = {"x": np.ones((1, 3), np.float32)}
    for wrong, words in (
        (params, "are a list of 1 array.*, like its attribute params, not a dict"),
        (3, "not an? int"),
        ([], r"not 0 array\(s\)"),
        ([np.ones(4, np.float32)], r"params\[0\] must be float32\[3\], not float32\[4\]"),
        (["w"], r"params\[0\] must be float32\[3\], not str"),
    ):
        calls = [
            lambda wrong=wrong: compiled.step(wrong, compiled.init(), frame),
            lambda wrong=wrong: compiled.scan(wrong, compiled.init(), frame),
            lambda wrong=wrong: compiled.flush(wrong, compiled.init()),
            lambda wrong=wrong: jaxrnn.Runner(compiled, wrong)(frame),
            lambda wrong=wrong: _pushed(jaxrnn.StreamPool(compiled, wrong, 2), frame),
        ]
        for call in calls:
            check_refused(jaxrnn.InputError, words, call)
    outputs, _ = compiled.step([np.ones(3, np.float32)], compiled.init(), frame)
    np.testing.assert_array_equal(outputs["y"], frame["x"])


def _pushed(pool, frame):
    handle = pool.open()
    pool.push(handle, frame)
    return pool.run()


def damaged(place):
    """A file with bytes that are no text at a place."""
    proto = model(ADD, inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])], initializers=[WEIGHT])
    place(proto)
    data = proto.SerializeToString()
    assert b"odd_text" in data
    return data.replace(b"odd_text", b"odd\xff\xfetxt")


DAMAGED = {
    "a value of a node": lambda proto: proto.graph.node[0].metadata_props.add(key="k", value="odd_text"),
    "a key of a node": lambda proto: proto.graph.node[0].metadata_props.add(key="odd_text", value="v"),
    "an initializer": lambda proto: proto.graph.initializer[0].metadata_props.add(key="k", value="odd_text"),
    "an input": lambda proto: proto.graph.input[0].metadata_props.add(key="k", value="odd_text"),
    "the text of a node": lambda proto: setattr(proto.graph.node[0], "doc_string", "odd_text"),
    "the text of an input": lambda proto: setattr(proto.graph.input[0], "doc_string", "odd_text"),
    "an overload": lambda proto: setattr(proto.graph.node[0], "overload", "odd_text"),
    "a denotation": lambda proto: setattr(proto.graph.input[0].type.tensor_type.shape.dim[0], "denotation", "odd_text"),
    "the text of an attribute": lambda proto: proto.graph.node[0].attribute.add(
        name="a", type=1, f=1.0, doc_string="odd_text"
    ),
    "an operator set": lambda proto: proto.opset_import.add(domain="odd_text", version=1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_text_that_is_not_utf_8(name):
    with pytest.raises(jaxrnn.ModelError, match=r"odd.*is not valid UTF-8; the file is damaged"):
        jaxrnn.load(damaged(DAMAGED[name]))


@pytest.mark.thorough
def test_a_description_of_the_whole_graph_may_be_anything():
    loaded = jaxrnn.load(damaged(lambda proto: setattr(proto.graph, "doc_string", "odd_text")))
    assert loaded(x=np.ones((2, 3), np.float32))["y"].shape == (2, 3)
