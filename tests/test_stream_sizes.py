"""What exporters and people write of sizes: tables of positions, one length in two words, tails that are padded."""

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
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import model, node
from stream_functions import conv, rnn
from streaming_verifier import check_gradients, check_values
from tiers import in_later_tier, of_tiers
from verifier import peer_outputs

import jaxrnn
from jaxrnn.streaming.dimensions import parts_of, value_of
from jaxrnn.streaming.lengths import Lengths, identities

TABLE = np.random.default_rng(0).normal(size=(64, 3))
WINDOW = np.hanning(4) + 0.5


def table(x):
    return jnp.asarray(TABLE, x.dtype)


def window(x):
    return jnp.asarray(WINDOW, x.dtype)


def overlapped_windows(x):
    """The envelope by which an inverse STFT is divided."""
    windows = jnp.tile(jnp.square(window(x))[None], (x.shape[0], 1))
    kernel = jnp.eye(4, dtype=x.dtype)[:, :, None]
    return lax.conv_transpose(windows[None], kernel, (2,), "VALID", dimension_numbers=("NTC", "TIO", "NTC"))[0]


def padded_blocks(size):
    def function(x):
        blocks = jnp.pad(x, ((0, -x.shape[0] % size), (0, 0))).reshape(-1, size, 3)
        return jnp.tanh(jnp.cumsum(blocks, 1).reshape(-1, 3)[: x.shape[0]])

    return function


AT_MOST = {"constraints": ("S <= 50",), "lengths": (1, 2, 5, 13, 50)}
CASES = {
    "positions": (lambda x: rnn(x + table(x)[: x.shape[0]]), AT_MOST),
    "positions from another on": (lambda x: x * table(x)[3 : x.shape[0] + 3], AT_MOST),
    "positions at a step": (lambda x: x[::2] + table(x)[: (x.shape[0] + 1) // 2], AT_MOST),
    "positions by a slice": (lambda x: x + lax.slice(table(x), (0, 0), (x.shape[0], 3)), AT_MOST),
    "positions by a slice at a stride": (
        lambda x: x + lax.slice(table(x), (1, 0), (2 * x.shape[0], 3), (2, 1)),
        {"constraints": ("S <= 32",), "lengths": (1, 2, 5, 13, 32)},
    ),
    "positions by a dynamic slice": (lambda x: x + lax.dynamic_slice(table(x), (2, 0), (x.shape[0], 3)), AT_MOST),
    "a column of the table": (lambda x: x + table(x)[: x.shape[0], 1:2], AT_MOST),
    "positions behind a look-ahead": (
        lambda x: conv(x + table(x)[: x.shape[0]], (0, 2)) * table(x)[: x.shape[0]],
        AT_MOST,
    ),
    "a window for each frame": (lambda x: x * jnp.tile(jnp.ones((1, 3), x.dtype) / 3, (x.shape[0], 1)), {}),
    "windows one behind the other": (lambda x: x * lax.tile(window(x), (x.shape[0] // 4,))[:, None], {"multiple": 4}),
    "windows beside a look-ahead": (
        lambda x: conv(x, (0, 2)) * lax.tile(window(x), (x.shape[0] // 4,))[:, None],
        {"multiple": 4},
    ),
    "the envelope of a spectrum": (overlapped_windows, {}),
    "one length in two words": (
        lambda x: (
            x[7::8] + jnp.cumsum(jnp.ones(((x.shape[0] - 8) // 8 + 1, 1), x.dtype), 0) * x[7::8][: x.shape[0] // 8]
        ),
        {"constraints": ("S >= 8",), "lengths": (8, 9, 17, 33)},
    ),
    "halves of halves": (
        lambda x: conv(conv(x, (2, 0), 2), (2, 0), 2) + jnp.ones(((x.shape[0] + 3) // 4, 3), x.dtype),
        {"lengths": (1, 2, 4, 7, 18)},
    ),
    "an odd tail that is padded": (padded_blocks(2), {}),
    "blocks with a tail that is padded": (padded_blocks(5), {"lengths": (1, 4, 5, 6, 17)}),
    "padding that leads nowhere": (
        lambda x: conv(jnp.pad(x, ((0, x.shape[0] % 2), (0, 0)), constant_values=2.0), (2, 0)),
        {"lengths": (1, 2, 3, 8)},
    ),
    "an index in each frame": (lambda x: jax.vmap(lambda row, k: row[k])(x, jnp.argmax(conv(x, (1, 1)), -1)), {}),
    "a piece of each frame": (
        lambda x: jax.vmap(lambda row, k: lax.dynamic_slice(row, (k,), (2,)))(x, jnp.argmax(x, -1)),
        {},
    ),
}


#: Cases whose equations are in other cases too.
SIMILAR = (
    "positions",
    "an odd tail that is padded",
    "an index in each frame",
    "halves of halves",
    "one length in two words",
)


#: Cases that share their rules with a quick case.
RELATED = (
    "a column of the table",
    "padding that leads nowhere",
    "positions at a step",
    "positions by a dynamic slice",
    "positions by a slice at a stride",
    "positions from another on",
    "the envelope of a spectrum",
    "windows one behind the other",
)


@pytest.mark.parametrize("name", of_tiers(CASES, {*CASES} - {*SIMILAR, *RELATED}, [*SIMILAR[:1], *RELATED[::4]]))
def test_values(name):
    function, options = CASES[name]
    check_values(function, (20, 3), **options)


@pytest.mark.parametrize("name", in_later_tier(["the envelope of a spectrum", *SIMILAR[:2]], SIMILAR[:1]))
def test_gradients(name):
    function, options = CASES[name]
    check_gradients(function, (20, 3), constraints=options.get("constraints", ()))


#: Of the kinds of tables, windows, lengths and pieces one each.
EXPORTED = ("positions", "positions behind a look-ahead", "windows beside a look-ahead", "halves of halves")
EXPORTED += ("blocks with a tail that is padded", "an index in each frame", "a piece of each frame")


@pytest.mark.parametrize("name", of_tiers(CASES, EXPORTED[::3], EXPORTED[1::3]))
def test_exported_files(name, tmp_path):
    function, options = CASES[name]
    options = {"lengths": (1, 2, 5), "constraints": (), **options, "pulses": (1, 2)}
    check_exported(function, (20, 3), tmp_path, **options)


def test_facts_of_tables():
    """A table is no input: it adds neither delay nor look-ahead."""
    streamed = check_values(CASES["positions by a slice"][0], (20, 3), **AT_MOST)
    assert (streamed.delay, streamed.look_ahead, streamed.receptive_field) == (0, 0, 1)
    with pytest.raises(jaxrnn.InputError, match="a recording of 51 frame"):
        streamed.run(None, np.ones((51, 3), np.float32))


@pytest.mark.nightly
@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=5, deadline=None)
def test_rows_at_random(start, stride, later, hop):
    """Any first row and step, beside a stream of any step and look-ahead."""

    def function(x):
        y = jnp.pad(x[later:], ((0, later), (0, 0)))[::hop]
        count = y.shape[0]
        rows = lax.slice(table(x), (start, 0), (start + stride * (count - 1) + 1, 3), (stride, 1))
        return y * rows

    check_values(function, (20, 3), constraints=["S <= 15"], lengths=(1, 4, 15), chunkings=((1,), (2, 1)))


PARTS = st.recursive(
    st.just("S"),
    lambda inner: st.one_of(
        st.builds("floordiv({} + {}, {})".format, inner, st.integers(-9, 9), st.integers(2, 6)),
        st.builds("mod({} + {}, {})".format, inner, st.integers(-9, 9), st.integers(2, 6)),
        st.builds("max({}, {})".format, inner, st.integers(0, 9)),
    ),
    max_leaves=3,
)


@pytest.mark.thorough
@given(st.lists(PARTS, min_size=1, max_size=5), st.sampled_from([(), ("S >= 5",), ("mod(S, 2) == 0",)]))
@settings(max_examples=40, deadline=None)
def test_sizes_that_are_said_to_be_equal_are(parts, constraints):
    allowed = Lengths(constraints)
    lengths = np.arange(1, 3000)
    lengths = lengths[allowed.allow(lengths)]
    for equality in identities(parts_of(" and ".join(parts)), allowed):
        assert np.all(value_of(equality, lengths)), equality


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(1, floordiv(S - 8, 8) + 1), (floordiv(S, 8),)", ["floordiv(S - 8, 8) == floordiv(S, 8) + -1"]),
        ("mod(S - 8, 8) and mod(S, 8)", ["mod(S - 8, 8) == mod(S, 8) + 0"]),
        ("floordiv(floordiv(S, 2), 2) floordiv(S, 4)", ["floordiv(floordiv(S, 2), 2) == floordiv(S, 4) + 0"]),
        ("floordiv(S + 1, 2) floordiv(S, 2)", ["floordiv(S + 1, 2) == -floordiv(S, 2) + 1*S + 0"]),
        ("mod(mod(S, 2) + S, 2)", ["mod(mod(S, 2) + S, 2) == 0"]),
        ("floordiv(S, 3) floordiv(S, 2) mod(S) mod(T, 2) max(S", []),
    ],
)
def test_sizes_in_other_words(text, found):
    assert identities(parts_of(text), Lengths(())) == found


def graph_of(nodes, x_shape, **constants):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return model(*nodes, inputs=inputs, initializers=initializers)


def bidirectional_over_frequency():
    """As tf2onnx writes Keras: lengths are those of an axis, repeated for every row."""
    nodes = [
        node("Transpose", ["x"], ["moved"], name="moved", perm=[1, 0, 2]),
        node("Shape", ["moved"], ["sizes"], name="sizes"),
        node("Gather", ["sizes", "first"], ["height"], name="height"),
        node("Gather", ["sizes", "second"], ["rows"], name="rows"),
        node("Expand", ["height", "rows"], ["lengths"], name="lengths"),
        node("ReverseSequence", ["moved", "lengths"], ["back"], name="back", batch_axis=1, time_axis=0),
        node("CumSum", ["back", "zero"], ["total"], name="total"),
        node("ReverseSequence", ["total", "lengths"], ["y"], name="forth", batch_axis=1, time_axis=0),
    ]
    return graph_of(nodes, ["T", 5, 2], first=np.array([0]), second=np.array([1]), zero=np.array(0))


def open_slices():
    nodes = [
        node("Slice", ["x", "start", "end", "axes", "step"], ["some"], name="some"),
        node("Slice", ["some", "last", "least", "axes2", "back"], ["y"], name="reversed"),
    ]
    values = {"start": [1], "end": [1_000_000_000], "axes": [0], "step": [1], "last": [-1], "axes2": [1], "back": [-1]}
    constants = {name: np.array(value) for name, value in values.items()}
    return graph_of(nodes, ["T", 5, 2], least=np.array([-1_000_000_000]), **constants)


@pytest.mark.parametrize("build", [bidirectional_over_frequency, open_slices])
def test_what_tf2onnx_writes(build):
    proto = build()
    loaded = jaxrnn.load(proto)
    streamed = loaded.stream("T", 2, constraints=["S >= 2"])
    for frames in (2, 3, 8):
        inputs = {"x": np.random.default_rng(frames).normal(size=(frames, 5, 2)).astype(np.float32)}
        expected = peer_outputs(proto, inputs)["y"]
        np.testing.assert_allclose(streamed.run({}, inputs)["y"], expected, atol=1e-5)


@pytest.mark.thorough
def test_lengths_with_an_offset():
    """Two frames and whole blocks: JAX is told what follows from the remainder."""
    check_values(
        lambda x: jnp.cumsum(x[2:].reshape(-1, 16, 3).sum(1), 0),
        (20, 3),
        constraints=["mod(S, 16) == 2", "S >= 18"],
        lengths=(18, 34, 66),
    )


def two_inputs(nodes, values):
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> two (float[T,4] x, float[U,4] noise, float[1,4] a) => '
        f"(float[T,4] y, float[1,4] p) <{values}> {{ {nodes} p = Tanh (a) }}"
    )
    return jaxrnn.load(proto)


def blocks_of(size):
    """Two inputs, one in blocks of frames, which are added."""
    nodes = "r = Reshape (x, cut) b = Reshape (r, flat) y = Add (b, noise)"
    return two_inputs(nodes, f"int64[3] cut = {{-1,{size},4}}, int64[2] flat = {{-1,4}}")


def test_inputs_that_a_node_adds_have_one_time_axis_whatever_else_is_unknown():
    asked = two_inputs("s = Add (x, noise) y = Add (s, a)", "float[1] one = {1}")
    with pytest.raises(jaxrnn.StateError, match="'a' -> 'p'"):  # a question that a stream does not ask
        _ = asked.state
    for loaded, multiple in ((asked, 1), (blocks_of(10), 10)):
        assert dict(loaded.dimensions) == {"T": "T", "U": "T"}
        assert [each.time_axis for each in loaded.stream("T", multiple=multiple).spec.inputs] == [None, 0, 0]
    blocks = blocks_of(11)  # no length that is tried is a multiple
    with pytest.raises(
        jaxrnn.InputError, match=r"not known whether U must be equal to T; `dims=\{'U': 'T'\}` if it is"
    ):
        blocks.stream("T", multiple=11)
    streamed = blocks.stream("T", multiple=11, dims={"U": "T"})
    assert [each.time_axis for each in streamed.spec.inputs] == [None, 0, 0]


def test_lengths_beside_large_numbers():
    """A table of all lengths up to the number would fill the memory."""

    def function(x):
        n = x.shape[0]
        inside = (jnp.arange(n) < n + 10**9) & (jnp.arange(n) < n - 2)
        return jnp.where(inside[:, None], x, 0.0) + jnp.float32(n + 10**9 > 3)

    x = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
    streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((7, 2), np.float32), axes=0)
    np.testing.assert_allclose(streamed.run(None, x), function(x))


def test_columns_of_different_lengths():
    x = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
    example = jax.ShapeDtypeStruct(x.shape, x.dtype)

    def sums(x):
        n = x.shape[0]
        return x.sum(0) * (jnp.array([n, 3]) + jnp.array([2 * n, n])).astype(x.dtype)

    np.testing.assert_allclose(jaxrnn.stream(sums, example, axes=0).run(None, x), sums(x), rtol=1e-5)

    def masked(x):
        n = x.shape[0]
        return jnp.where(jnp.arange(n)[:, None] < jnp.array([n, n - 2]), x, 0.0)

    with pytest.raises(jaxrnn.StreamError, match="known only when the stream has ended"):
        jaxrnn.stream(masked, example, axes=0)
