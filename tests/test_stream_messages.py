"""What refusals say: of a file, its nodes and operators; the simplest thing to do, and all of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import model, node
from refusals import check_refused
from small_models import graph_of, make_model
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
        r"node 'mirror' \(Pad-13\) on float32\[1, T, 3\], int64\[6\]: it does not work for every length; recordings of "
        r"5 frames or more can be streamed: give `constraints=\['T >= 5'\]` if no others occur$",
    ),
    "a table of positions": (
        POSITIONS,
        r"node 'add' \(Add-14\) on float32\[1, T, 3\], float32\[min\(T, 512\), 3\]: .*recordings of 512 frames or "
        r"fewer can be streamed: give `constraints=\['T <= 512'\]` if no others occur$",
    ),
    "a length in a constant": (FIXED, "node 'add' .*the exporter fixed the length 20: export .* open .dynamic. time"),
    "a length in a shape": (
        RESHAPED,
        r"node 'fold' \(Reshape-14\) .*the shape \[1, 20, 3\] for every length.*exporter fixed the length, export",
    ),
    "both directions": (LSTM, r"node 'both' \(LSTM-14\) cannot be streamed: it runs backwards.*forwards only"),
    "a reversal": (REVERSED, r"node 'flip' \(Slice-13\) cannot be streamed: it reverses time"),
    "a softmax": (SOFTMAX, r"node 'attend' \(Softmax-13\) cannot be streamed: .*known only when the stream has ended"),
    "two rates": (
        TWO,
        r"node 'both' \(Concat-13\) on .*: two inputs have a time axis; `model\.stream\('U', dims=\{'T': '4\*U'\}\)` "
        r"says that T is 4\*U$",
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


@pytest.mark.thorough
def test_two_inputs_at_one_rate():
    proto = file_of(node("Concat", ["x", "far"], axis=2), x=("a", "t", 3), others=[("far", ("c", "d", 2))])
    loaded = jaxrnn.load(proto)
    inputs = {"x": np.ones((1, 4, 3), np.float32), "far": np.ones((1, 4, 2), np.float32)}
    for dims in ({}, {"d": "t"}):  # the join needs both to be equal
        assert loaded.stream("t", dims=dims).run({}, inputs)["y"].shape == (1, 4, 5)


@pytest.mark.thorough
def test_the_fix_is_shown_whole(tmp_path):
    onnx.save(mirrored([0, 160, 0, 0, 160, 0]), tmp_path / "m.onnx")
    shown = " ".join(call("inspect", tmp_path / "m.onnx").stdout.split())
    assert "give --shortest 161 if no others occur" in shown
    facts = call_json("stream", tmp_path / "m.onnx", "--symbol", "T", "--shortest", 161, "--random", "--frames", 200)
    assert facts["frames"] == 200


def test_rows_of_a_table_on_the_command_line(tmp_path):
    """What Python says by constraints, the command says by options; recordings keep to both."""
    onnx.save(POSITIONS, tmp_path / "m.onnx")
    file = (tmp_path / "m.onnx", "--symbol", "T", "--random")
    assert "give --longest 512 if no others occur" in call("stream", *file, status=2).stderr
    facts = call_json("stream", *file, "--longest", 512, "--frames", 500, "--verify")
    assert facts["frames"] == 500
    assert facts["verified"]
    assert call_json("stream", *file, "--longest", 10, "--pulse", 4)["frames"] == 10
    assert (
        "a recording of 600 frames is too long: the stream of "
        in call("stream", *file, "--longest", 512, "--frames", 600, status=2).stderr
    )
    assert (
        "no recording has at most --longest 2"
        in call("stream", *file, "--longest", 2, "--shortest", 3, status=2).stderr
    )


def test_the_slower_of_two_inputs():
    """Its length is a symbol; the other length is written as a multiple of it."""
    proto = file_of(
        node("Reshape", ["side", "shape"], ["four"], name="up"),
        node("Concat", ["x", "four"], name="both", axis=2),
        x=("B", "4*U", 3),
        others=[("side", ("B2", "U", 12))],
        shape=np.array([1, -1, 3]),
    )
    with pytest.raises(jaxrnn.StreamError, match=r"stream over the slower one: `model\.stream\('U'\)`$"):
        jaxrnn.load(proto).stream("4*U")


def test_the_obstacle_that_remains():
    """Not that of recordings that are too short: others are refused too, for another reason."""
    proto = file_of(
        node("Pad", ["x", "pads"], ["padded"], name="mirror", mode="reflect"),
        node("Reshape", ["padded", "shape"], name="fold"),
        pads=np.array([0, 4, 0, 0, 0, 0]),
        shape=np.array([1, 7, -1, 3]),
    )
    with pytest.raises(jaxrnn.StreamError, match=r"node 'fold' \(Reshape-14\)") as caught:
        jaxrnn.load(proto).stream("T")
    assert "mirror" not in str(caught.value)
    assert "polymorphism" not in str(caught.value)


FEW = np.ones((3, 4), np.float32)
#: What cannot be written: the function, options of the export, and what the message says.
EXPORTS = {
    "a function that ONNX lacks": (
        lambda x: jax.scipy.special.digamma(x),
        {},
        r"'digamma' \(test_stream_messages\.py:\d+ .*ONNX has no such function; compute it outside",
    ),
    "a decomposition": (lambda x: jnp.linalg.qr(x)[0], {}, r"\(test_stream_messages.*no matrix decompositions"),
    "a callback": (
        lambda x: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((3, 4), np.float32), x),
        {},
        r"calls Python, which a file cannot contain",
    ),
    "an operator of a later opset": (
        lambda x: x.at[x[0].astype(int) % 3].max(2.0),
        {},
        r"ScatterND has reduction='max' from opset 18 on: give `opset=18",
    ),
    "a type of a later opset": (
        lambda x: x.astype(jnp.float8_e4m3fn) * 2,
        {},
        r"Cast does not take float8_e4m3fn in opset 17, but in opset 19: give `opset=19",
    ),
    "bits": (lambda x: x.view(jnp.int16), {}, r"ONNX cannot reinterpret the bits of float32 as int16"),
    "a complex tangent": (
        lambda x: jnp.tan(jax.lax.complex(x, x)).real,
        {},
        r"'tan' \(test_stream_messages.*complex numbers: use real and imaginary parts",
    ),
    "a complex input": (lambda x: x.real, {"example": FEW + 1j}, None),
    "an old opset": (lambda x: x @ x.T, {"opset": 7}, None),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_messages_about_exports(name, tmp_path):
    """They name the line of the user's code, and the opset that would do."""
    function, options, words = EXPORTS[name]
    options = {"example": FEW, **options}
    if words is None:  # looks as if it could not be written
        jaxrnn.export_onnx(function, None, tmp_path / "f.onnx", **options)
        return
    check_refused(jaxrnn.UnsupportedError, words, jaxrnn.export_onnx, function, None, tmp_path / "f.onnx", **options)
    assert not [*tmp_path.iterdir()]


def test_a_node_that_cannot_be_exported(tmp_path):
    """By its name and operator in the model's own file."""
    scatter = node("ScatterElements", ["x", "places", "h"], ["written"], name="write", axis=1, reduction="max")
    nodes = [scatter, node("Neg", ["written"], ["y"], name="negate"), node("Tanh", ["h"], ["h_out"], name="keep")]
    ends = {"x": [1, 4], "h": [1, 2]}, {"y": [1, 4], "h_out": [1, 2]}
    proto = make_model(graph_of(nodes, *ends, {"places": np.array([[0, 1]])}), opset=18)
    words = r"^node 'write' \(ScatterElements-18\): ScatterND has reduction='max' from opset 18 on: give `opset=18`$"
    with pytest.raises(jaxrnn.UnsupportedError, match=words):
        jaxrnn.export_onnx(jaxrnn.load(proto), None, tmp_path / "step.onnx", step=True)


def merged(x):
    """Frames behind another axis, as one axis."""
    return x.T.reshape(-1)


#: Functions that are refused, and what the message says of each: why, and what to do.
FUNCTIONS = {
    "a cut of merged axes": (lambda x: merged(x)[3:], "slices an axis that merges.*slice before the axes are merged"),
    "a pad of merged axes": (
        lambda x: jnp.pad(merged(x), (3, 0)),
        "pads an axis that merges.*; pad before the axes are merged",
    ),
    "a sum of merged axes": (lambda x: jnp.cumsum(merged(x)), "merges time with another axis; split the axes first"),
    "a scan of merged axes": (
        lambda x: lax.scan(lambda c, frame: (c + frame, c), jnp.float32(0), merged(x))[1],
        "an axis that merges another axis with time; split the axes first",
    ),
    "axes merged in two ways": (
        lambda x: merged(x) + x.reshape(-1),
        "in different orders; merge the axes of both in the same order",
    ),
    "merged axes that leave": (
        merged,
        "^the function cannot be streamed: an output merges time.*; split the axes before the function returns",
    ),
    "a branch that ends late": (
        lambda x: x * lax.cond(jnp.float32(1) > 0, lambda: x.mean(), lambda: x.sum()),
        "a branch returns a value that is known only at the end; compute it outside of the branch",
    ),
    "a fixed number of parts": (
        lambda x: x.reshape(2, -1, 3),
        "a fixed number of parts.*; divide the recording into parts of a fixed length",
    ),
    "a pad that grows": (
        lambda x: jnp.pad(x, ((x.shape[0] // 2, 0), (0, 0))),
        r"padding \(floordiv\(S, 2\) in front.*; pad by a fixed number of frames",
    ),
    "a beginning that moves": (lambda x: x[x.shape[0] // 2 :], "it starts at frame .*; start at a fixed frame"),
    "a second copy": (
        lambda x: jnp.tile(x, (2, 1)),
        "its second copy of the recording starts only when the first has ended; repeat along another axis",
    ),
    "time as channels": (
        lambda x: lax.conv_general_dilated(x[None], jnp.ones((2, 20, 1)), (1,), "VALID"),
        r"the function works on 20 frames only: take sizes from x\.shape",
    ),
    "pairs of frames": (
        lambda x: x[:, None] - x[None],
        "an output has time on two axes, one element for each pair of frames; reduce it over one of the axes",
    ),
    "a fixed length": (
        lambda x: x + jnp.ones((20, 3)),
        r"the function works on 20 frames only: take sizes from x\.shape",
    ),
    "a table of NumPy": (
        lambda x: x + np.zeros((64, 3), np.float32)[: x.shape[0]],
        r"cut an array of JAX, and not of NumPy: jnp\.asarray\(table\)",
    ),
    "a table that is too short": (
        lambda x: x + jnp.zeros((64, 3))[: x.shape[0]],
        r"64 frames or fewer can be streamed: give `constraints=\['S <= 64'\]",
    ),
    "a multiple, which is easier to keep than a large least length": (
        lambda x: x if x.shape[0] % 2 * 39_684 <= x.shape[0] else 2 * x,
        r"multiple of 2 can be streamed: give `multiple=2` if no others",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_messages_about_functions(name):
    """Why, and what to do, at the line of the user's code."""
    function, words = FUNCTIONS[name]
    with pytest.raises(jaxrnn.StreamError, match=words) as caught:
        jaxrnn.stream(function, X, axes=0)
    assert name in ("merged axes that leave", "pairs of frames") or "test_stream_messages.py:" in str(caught.value)
