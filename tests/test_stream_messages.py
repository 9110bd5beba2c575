"""What refusals say: of a file, its nodes and operators; the simplest thing to do, and all of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import model, node
from test_cli import call, call_json

import jaxrnn

X = jax.ShapeDtypeStruct((20, 3), np.float32)
FLOAT = TensorProto.FLOAT


def file_of(*nodes, x=("B", "T", 3), others=(), **constants):
    inputs = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("x", x), *others)]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return model(*nodes, inputs=inputs, initializers=initializers)


def mirrored(pads):
    return file_of(node("Pad", ["x", "pads"], name="mirror", mode="reflect"), pads=np.array(pads))


POSITIONS = file_of(
    node("Shape", ["x"], ["sizes"], name="sizes"),
    node("Slice", ["sizes", "one", "two"], ["frames"], name="frames"),
    node("Slice", ["table", "zero", "frames", "zero"], ["rows"], name="rows"),
    node("Add", ["x", "rows"], name="add"),
    one=np.array([1]),
    two=np.array([2]),
    zero=np.array([0]),
    table=np.zeros((512, 3), np.float32),
)
FIXED = file_of(node("Add", ["x", "table"], name="add"), table=np.zeros((20, 3), np.float32))
RESHAPED = file_of(node("Reshape", ["x", "shape"], name="fold"), shape=np.array([1, 20, 3]))
LSTM = file_of(
    node("LSTM", ["x", "W", "R"], ["y"], name="both", direction="bidirectional", hidden_size=2),
    x=("T", 1, 3),
    W=np.zeros((2, 8, 3), np.float32),
    R=np.zeros((2, 8, 2), np.float32),
)
TWO = file_of(
    node("Reshape", ["side", "shape"], ["four"], name="up"),
    node("Concat", ["x", "four"], name="both", axis=2),
    others=[("side", ("B2", "U", 12))],
    shape=np.array([1, -1, 3]),
)
REVERSED = file_of(
    node("Slice", ["x", "last", "least", "one", "last"], name="flip"),
    last=np.array([-1]),
    least=np.array([-(2**63)]),
    one=np.array([1]),
)
SOFTMAX = file_of(node("Softmax", ["x"], name="attend", axis=1))

FILES = {
    "mirrored frames": (
        mirrored([0, 4, 0, 0, 0, 0]),
        r"node 'mirror' \(Pad-13\) on float32\[1, T, 3\], int64\[6\]: it works for some lengths only; recordings of 5 "
        r"frames or more can be streamed: say constraints=\['S >= 5'\] if others need not work$",
    ),
    "a table of positions": (
        POSITIONS,
        r"node 'add' \(Add-14\) on float32\[1, T, 3\], float32\[min\(T, 512\), 3\]: .*recordings of 512 frames or "
        r"fewer can be streamed: say constraints=\['S <= 512'\] if others need not work$",
    ),
    "a length in a constant": (FIXED, "node 'add' .*the exporter fixed the length 20: export .* open .dynamic. time"),
    "a length in a shape": (
        RESHAPED,
        r"node 'fold' \(Reshape-14\) .*one shape, \[1, 20, 3\], whatever.*exporter fixed the length, export",
    ),
    "both directions": (LSTM, r"node 'both' \(LSTM-14\) cannot be streamed: it runs backwards.*forwards only"),
    "a reversal": (REVERSED, r"node 'flip' \(Slice-13\) cannot be streamed: it reverses time"),
    "a softmax": (SOFTMAX, r"node 'attend' \(Softmax-13\) cannot be streamed: .*known only when the stream has ended"),
    "two rates": (
        TWO,
        r"node 'both' \(Concat-13\) on .*: two inputs move in time; model\.stream\('U', dims=\{'T': '4\*U'\}\) says "
        r"that T is 4\*U$",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_messages_about_files(name):
    """They name nodes and operators, call the length by its name, and have no word of JAX."""
    proto, words = FILES[name]
    with pytest.raises(jaxrnn.StreamError, match=words) as caught:
        jaxrnn.load(proto).stream("T")
    for python in ("jnp.", "lax.", "jax.", "primitive", "polymorphism", "test_stream", "'sub'", "'rev'", "'scan'"):
        assert python not in str(caught.value)


def test_two_inputs_at_one_rate():
    proto = file_of(node("Concat", ["x", "far"], axis=2), x=("a", "b", 3), others=[("far", ("c", "d", 2))])
    loaded = jaxrnn.load(proto)
    inputs = {"x": np.ones((1, 4, 3), np.float32), "far": np.ones((1, 4, 2), np.float32)}
    for dims in ({}, {"d": "b"}):  # the join needs both to be equal
        assert loaded.stream("b", dims=dims).run({}, inputs)["y"].shape == (1, 4, 5)


def test_the_fix_is_shown_whole(tmp_path):
    onnx.save(mirrored([0, 160, 0, 0, 160, 0]), tmp_path / "m.onnx")
    shown = " ".join(call("inspect", tmp_path / "m.onnx").stdout.split())
    assert "say --shortest 161 if others need not work" in shown
    facts = call_json("stream", tmp_path / "m.onnx", "--symbol", "T", "--shortest", 161, "--random", "--frames", 200)
    assert facts["frames"] == 200


def test_a_length_that_a_function_has_in_it():
    with pytest.raises(jaxrnn.StreamError, match=r"the function works on 20 frames only: take sizes from x\.shape"):
        jaxrnn.stream(lambda x: x + jnp.ones((20, 3)), X, axes=0)


def test_a_table_of_numpy():
    table = np.zeros((64, 3), np.float32)
    with pytest.raises(jaxrnn.StreamError, match=r"cut an array of JAX, and not of NumPy: jnp\.asarray\(table\)"):
        jaxrnn.stream(lambda x: x + table[: x.shape[0]], X, axes=0)


def test_a_table_that_is_too_short():
    table = jnp.zeros((64, 3))
    with pytest.raises(jaxrnn.StreamError, match=r"64 frames or fewer can be streamed: say constraints=\['S <= 64'\]"):
        jaxrnn.stream(lambda x: x + table[: x.shape[0]], X, axes=0)


def test_a_multiple_comes_before_a_large_least_length():
    """Of two things that would do, the one that is easier to keep."""

    def function(x):
        return x if x.shape[0] % 2 * 39_684 <= x.shape[0] else 2 * x

    with pytest.raises(jaxrnn.StreamError, match=r"multiple of 2 can be streamed: say multiple=2 if others"):
        jaxrnn.stream(function, X, axes=0)
