"""Axes that a file fixes, opened by ``dims={"x": {0: "time"}}``.

A case makes a file for a length, with this length in its constants, as exporters write it. The file of one length,
opened, must give the numbers of the files of other lengths.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

import jaxrnn
from jaxrnn.cli import main
from jaxrnn.errors import InputError, ModelError, StateError
from jaxrnn.model.opening import search
from jaxrnn.settings.models import ModelSettings
from tests.refusals import check_refused
from tests.tiers import of_tiers

LENGTHS = (12, 7, 31)


def made(
    text: str, weights: dict[str, tuple[int, ...]], constants: dict[str, np.ndarray], opset: int
) -> onnx.ModelProto:
    """Return a model from ONNX's text form, with random weights that do not depend on the length."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape).astype(np.float32) / 3 for name, shape in weights.items()}
    for name, array in (arrays | constants).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


CASES: dict[str, object] = {}


def case(weights=None, dims=None, opset=17):
    """Register a function from a length to the text of a graph and to its constants."""

    def register(function):
        def build(n: int, **options) -> onnx.ModelProto:
            text, constants = function(n, **options)
            return made(text, weights or {}, constants, opset)

        build.dims = dims or {"x": {1: "time"}}
        CASES[function.__name__] = build
        return build

    return register


@case({"w": (8, 6), "v": (6, 5)})
def reshapes(n, batch=2):
    return (
        f"""g (float[{batch},{n},8] x) => (float[{batch},{n},5] y) {{
            a = Reshape(x, flat)  b = MatMul(a, w)  c = Tanh(b)  d = Reshape(c, back)
            e = Transpose<perm=[1,0,2]>(d)  f = Reshape(e, flat6)  g = MatMul(f, v)  h = Reshape(g, time_major)
            y = Transpose<perm=[1,0,2]>(h) }}""",
        {
            "flat": ints(batch * n, 8),
            "back": ints(batch, n, 6),
            "flat6": ints(n * batch, 6),
            "time_major": ints(n, batch, 5),
        },
    )


@case({"W": (1, 24, 8), "R": (1, 24, 6)}, {"x": {1: "batch"}})
def states_of_a_batch(n):
    return (
        f"""g (float[5,{n},8] x) => (float[5,{n},6] y) {{
            a, h, c = LSTM<hidden_size=6>(x, W, R, , lens, h0, c0)  y = Squeeze(a, one) }}""",
        {
            "h0": np.zeros((1, n, 6), np.float32),
            "c0": np.zeros((1, n, 6), np.float32),
            "one": ints(1),
            "lens": np.full(n, 5, np.int32),
        },
    )


@case({"W": (1, 24, 8), "R": (1, 24, 6)}, {"x": {0: "time"}})
def lengths_of_sequences(n):
    return (
        f"""g (float[{n},2,8] x) => (float[{n},2,6] y) {{
            a, h, c = LSTM<hidden_size=6>(x, W, R, , lens)  y = Squeeze(a, one) }}""",
        {"one": ints(1), "lens": np.full(2, n, np.int32)},
    )


@case({"k": (6, 4, 5), "w": (6, 3)}, {"x": {2: "time"}})
def strides(n):
    frames = (n + 4 - 5) // 2 + 1
    return (
        f"""g (float[1,4,{n}] x) => (float[1,{frames},3] y) {{
            a = Conv<kernel_shape=[5], pads=[2,2], strides=[2]>(x, k)  b = Transpose<perm=[0,2,1]>(a)
            c = Reshape(b, flat)  d = MatMul(c, w)  y = Reshape(d, back) }}""",
        {"flat": ints(frames, 6), "back": ints(1, frames, 3)},
    )


@case({"v": (1, 1, 8)})
def masks_of_ones(n):
    return (
        f"""g (float[1,{n},8] x) => (float[1,{n},8] y) {{
            a = Expand(v, wide)  b = Mul(x, a)  c = ConstantOfShape<value = float[1] {{2.0}}>(line)  d = Mul(b, c)
            e = Mul(d, ones)  f = Tile(half, times)  y = Add(e, f) }}""",
        {
            "wide": ints(1, n, 8),
            "line": ints(1, n, 1),
            "ones": np.full((1, n, 1), 3, np.float32),
            "half": np.full((1, 1, 1), 0.5, np.float32),
            "times": ints(1, n, 1),
        },
    )


@case()
def slices_and_indices(n):
    return (
        f"""g (float[1,{n},8] x) => (float[1,{n},8] y, float[1,{n},8] z) {{
            a = Slice(x, zero, end, one)  b = Gather<axis=1>(a, frames)  c = Gather<axis=1>(x, backwards)
            d = Slice(x, last, least, one, minus)  y = Sub(b, c)  p = Cast<to=1>(frames)  q = Unsqueeze(p, outer)
            z = Mul(d, q) }}""",
        {
            "zero": ints(0),
            "end": ints(n),
            "one": ints(1),
            "frames": np.arange(n),
            "backwards": np.arange(n)[::-1].copy(),
            "last": ints(n - 1),
            "least": ints(-(2**63)),
            "minus": ints(-1),
            "outer": ints(0, 2),
        },
    )


@case()
def sizes_of_resize(n):
    return (
        f"""g (float[1,{n},8] x) => (float[1,{n},8] y) {{
            a = Transpose<perm=[0,2,1]>(x)
            b = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(a, , , twice)
            c = AveragePool<kernel_shape=[2], strides=[2]>(b)
            d = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(c, , , same)
            e = Add(a, d)  y = Transpose<perm=[0,2,1]>(e) }}""",
        {"twice": ints(1, 8, 2 * n), "same": ints(1, 8, n)},
    )


@case({"w": (8, 8)}, {"x": {0: "time"}})
def a_loop_over_frames(n, hidden=8):
    return (
        f"""g (float[{n},8] x) => (float[{n},8] y, float[8] last) {{
            last, y = Loop(trips, go, start) <body = b (int64 i, bool c, float[8] h)
                => (bool d, float[8] k, float[8] o) {{
                f = Gather(x, i)  s = Add(f, h)  t = MatMul(w, s)  k = Tanh(t)
                o = Identity(k)  j = Add(i, one)  d = Less(j, limit) }}> }}""",
        {
            "trips": np.asarray(n),
            "go": np.asarray(True),
            "start": np.zeros(8, np.float32),
            "one": np.asarray(1),
            "limit": np.asarray(n),
        },
    )


@case({"w": (8, 24), "o": (8, 8)})
def attention(n):
    return (
        f"""g (float[2,{n},8] x) => (float[2,{n},8] y) {{
            p = MatMul(x, w)  q, k, v = Split<axis=2>(p, parts)
            q1 = Reshape(q, heads)  k1 = Reshape(k, heads)  v1 = Reshape(v, heads)
            q2 = Transpose<perm=[0,2,1,3]>(q1)  k2 = Transpose<perm=[0,2,3,1]>(k1)  v2 = Transpose<perm=[0,2,1,3]>(v1)
            s = MatMul(q2, k2)  s1 = Mul(s, scale)  s2 = Add(s1, mask)  a = Softmax<axis=-1>(s2)  r = MatMul(a, v2)
            t = Transpose<perm=[0,2,1,3]>(r)  u = Reshape(t, joined)  y = MatMul(u, o) }}""",
        {
            "parts": ints(8, 8, 8),
            "heads": ints(2, n, 2, 4),
            "scale": np.float32(0.5),
            "joined": ints(2, n, 8),
            "mask": np.zeros((1, 1, n, n), np.float32),
        },
    )


def banded(n, *bounds, hidden, shown, dtype=np.float32):
    """A mask of n rows and n columns that shows columns up to some frames before and after the row."""
    apart = np.arange(n) - np.arange(n)[:, None]
    return np.where((apart >= -bounds[0]) & (apart <= bounds[1]), shown, hidden).astype(dtype)


@case({"w": (8, 8)})
def masks_from_frames_to_frames(n):
    return (
        f"""g (float[2,{n},8] x) => (float[2,{n},8] y) {{
            k = Transpose<perm=[0,2,1]>(x)  a = MatMul(x, k)  b = Add(a, causal)  c = Softmax<axis=-1>(b)
            d = MatMul(c, x)  e = MatMul(d, w)  f = Unsqueeze(a, one)  s = Where(near, f, low)  t = Squeeze(s, one)
            u = Softmax<axis=-1>(t)  v = MatMul(u, e)  r = Mul(a, later)  q = MatMul(r, v)  y = Tanh(q) }}""",
        {
            "causal": banded(n, 99, 0, hidden=-np.inf, shown=0)[None],
            "near": banded(n, 3, 1, hidden=False, shown=True, dtype=bool)[None, None].repeat(2, 0),
            "later": banded(n, 0, 99, hidden=0, shown=0.5),
            "low": np.float32(-1e9),
            "one": ints(1),
        },
    )


def values(model, n: int, at: dict) -> dict[str, np.ndarray]:
    """Apply a model to random inputs of a length."""
    random = np.random.default_rng(1)
    inputs = {}
    for spec in model.inputs:
        shape = [n if axis in at.get(spec.name, {}) else size for axis, size in enumerate(spec.shape)]
        inputs[spec.name] = random.standard_normal(shape).astype(np.float32)
    return {name: np.asarray(value) for name, value in model.apply(model.params, inputs).items()}


def check(build, first: int, lengths, dims=None, **options) -> jaxrnn.model.Model:
    dims = build.dims if dims is None else dims
    model = jaxrnn.load(build(first, **options), dims=dims)
    for n in lengths:
        there = values(jaxrnn.load(build(n, **options)), n, build.dims)
        here = values(model, n, build.dims)
        for name in there:
            np.testing.assert_allclose(here[name], there[name], rtol=1e-5, atol=1e-6, err_msg=f"{name} at {n}")
    return model


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    """A file of one length, opened, is the file of each other length."""
    model = check(CASES[name], LENGTHS[0], LENGTHS)
    assert any("equal those of the file" in line for line in model.opened)


@pytest.mark.parametrize("name", ["reshapes"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_batch(name, first):
    """The batch is opened, also where the file has a batch of 1."""
    build = functools.partial(CASES[name], 12)
    model = jaxrnn.load(build(batch=first), dims={"x": {0: "batch"}})
    for n in (1, 2, 5):
        there = values(jaxrnn.load(build(batch=n)), n, {"x": {0: "batch"}})
        here = values(model, n, {"x": {0: "batch"}})
        np.testing.assert_allclose(here["y"], there["y"], rtol=1e-5, atol=1e-6)
    assert any("as if it were alone" in line for line in model.opened)


@pytest.mark.parametrize("first", [2, 3, 5, 6, 8])
@pytest.mark.parametrize("name", ["reshapes", "strides", "attention", "states_of_a_batch", "slices_and_indices"])
def test_lengths_that_other_sizes_have(name, first):
    """A length that is also a number of features, heads or streams is opened right, or the file is refused."""
    with contextlib.suppress(ModelError):  # refused, or asked
        check(CASES[name], first, (first + 1, 17))


def attending(mask, n=12):
    """The text of a graph that adds a mask to the scores of n frames, and its constants."""
    return (
        f"""g (float[1,{n},8] x) => (float[1,{n},8] y) {{
            k = Transpose<perm=[0,2,1]>(x)  a = MatMul(x, k)  b = Add(a, mask)  c = Softmax<axis=-1>(b)
            y = MatMul(c, x) }}""",
        {"mask": mask},
        "node 'b' (Add-14).*'mask' .12, 12.",
    )


def test_an_opened_causal_mask_streams():
    text, constants, _ = attending(banded(12, 5, 0, hidden=-np.inf, shown=0))
    model = jaxrnn.load(made(text, {}, constants, 17), dims={"x": {1: "time"}})
    assert "the mask 'mask' is by the column minus the row: -inf, 0.0 from -5 on, -inf from 1 on" in model.opened
    streamed = model.stream("time")
    assert streamed.receptive_field == 6
    x = {"x": np.random.default_rng(0).standard_normal((1, 40, 8)).astype(np.float32)}
    np.testing.assert_allclose(streamed.run({}, x)["y"], model.apply({}, x)["y"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "tf_crop_and_resize"])
def test_scales_that_leave_time_alone(mode):
    """Features are resized, frames are not."""
    text = """g (float[1,12,4] x) => (float[1,12,9] y) { y = Resize<mode="linear", coordinate_transformation_mode="%s">(
        x, roi, scales) }"""
    constants = {"scales": np.float32([1, 1, 2.25]), "roi": np.float32([0, 0, -0.5, 1, 1, 1])}
    mode = "align_corners" if mode == "linear" else mode
    model = jaxrnn.load(made(text % mode, {}, constants, 13), dims={"x": {1: "time"}})
    assert any("ONNX Runtime at time=19" in line for line in model.opened)


REFUSALS: dict[str, tuple] = {
    "a mask of chunks": attending((np.arange(12) // 3 >= np.arange(12)[:, None] // 3).astype(np.float32)),
    "a mask of every second frame": attending((np.subtract.outer(np.arange(12), np.arange(12)) % 2).astype(np.float32)),
    "a mask that hides one corner": attending(banded(12, 10, 12, hidden=-np.inf, shown=0)),
    "a mask of rows and numbers": attending(banded(12, 4, 0, hidden=-np.inf, shown=np.arange(12))),
    "a table of positions": (
        """g (float[1,12,8] x) => (float[1,12,8] y) { y = Add(x, table) }""",
        {"table": np.random.default_rng(0).standard_normal((1, 12, 8)).astype(np.float32)},
        "node 'y' (Add-14).*'table' .1, 12, 8.",
    ),
    "weights from frames to frames": (
        """g (float[1,12,8] x) => (float[1,8,5] y) {
            t = Transpose<perm=[0,2,1]>(x)  y = MatMul(t, w) }""",
        {"w": np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)},
        "node 'y' (MatMul-13).*'w' .12, 5.",
    ),
    "the last frame by its number": (
        """g (float[1,12,8] x) => (float[1,8] y) { y = Gather<axis=1>(x, last) }""",
        {"last": np.asarray(11)},
        "node 'y' (Gather-13).*'last'.*frame 11 of 12.*'last': {0: 11}.*time - 1",
    ),
    "a mean by a number": (
        """g (float[1,12,8] x) => (float[1,8] y) { s = ReduceSum<keepdims=0>(x, one)  y = Mul(s, scale) }""",
        {"one": ints(1), "scale": np.float32(1 / 12)},
        "node 'y' (Mul-14).*0.0833.*'scale'.*the length 12",
    ),
    "a mean by a quotient, after a product with weights": (
        """g (float[1,12,8] x) => (float[1,4] y) {
            s = ReduceSum<keepdims=0>(x, one)  a = MatMul(s, w)  b = Relu(a)  y = Div(b, count) }""",
        {
            "one": ints(1),
            "count": np.float32(12),
            "w": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32),
        },
        "node 'y' (Div-14).*number 12 of 'count'",
    ),
    "a variance by a number": (
        """g (float[1,12,8] x) => (float[1,1,8] y) {
            m = ReduceMean<axes=[1]>(x)  d = Sub(x, m)  q = Mul(d, d)  v = ReduceMean<axes=[1]>(q)
            y = Mul(v, less) }""",
        {"less": np.float32(12 / 11)},
        "node 'y' (Mul-14).*1.09.*'less'",
    ),
    "all frames but the last": (
        """g (float[1,12,8] x) => (float[1,11,8] y) { y = Slice(x, zero, end, one) }""",
        {"zero": ints(0), "end": ints(11), "one": ints(1)},
        "node 'y' (Slice-13).*number 11 of 'end'.*frame 11 of 12",
    ),
    "frames one by one": (
        """g (float[1,3,8] x) => (float[1,8] y) {
            a = Gather<axis=1>(x, i)  b = Gather<axis=1>(x, j)  c = Gather<axis=1>(x, k)  d = Add(a, b)
            y = Add(c, d) }""",
        {"i": np.asarray(0), "j": np.asarray(1), "k": np.asarray(2)},
        "(Gather-13).*frame 1 of 3",
    ),
    "features of all frames": (
        """g (float[1,12,8] x) => (float[1,4] y) { f = Flatten(x)  y = Gemm(f, w) }""",
        {"w": np.random.default_rng(0).standard_normal((96, 4)).astype(np.float32)},
        "node 'y' (Gemm-13).*'w' .96, 4.",
    ),
    "a window of all frames": (
        """g (float[1,8,12] x) => (float[1,8,1] y) { y = MaxPool<kernel_shape=[12]>(x) }""",
        {},
        "node 'y' (MaxPool-12).*window of all 12 frames",
    ),
    "a reshape that mixes frames and streams": (
        "g (float[2,12,8] x) => (float[12,16] y) { y = Reshape(x, mixed) }",
        {"mixed": ints(12, 16)},
        "node 'y' (Reshape-14): the sizes 16.time and 192 must be equal",
    ),
    "pads that depend on the length": (
        """g (float[1,8,12] x) => (float[1,8,6] y) { y = Conv<kernel_shape=[3], strides=[2], pads=[0,1]>(x, w) }""",
        {"w": np.random.default_rng(0).standard_normal((8, 8, 3)).astype(np.float32)},
        "node 'y' (Conv-11).*strides of 2 and the pads 0 and 1",
    ),
    "a mask whose sum is read": (
        """g (float[1,12,8] x) => (float[1] y, float[1,12,8] z) {
            a = Expand(half, wide)  y = ReduceSum<keepdims=0>(a, axes)  z = Tanh(x) }""",
        {"half": np.float32([0.5]), "wide": ints(1, 12), "axes": ints(1)},
        "node 'a' (Expand-13).*number 12 of 'wide'.*'wide': {1: 12}.*'wide': {1: 'time'}",
    ),
    "positions over the length": (
        """g (float[1,12,8] x) => (float[1,12,8] y) {
            p = Range(zero, n, one)  f = Cast<to=1>(p)  q = Mul(f, scale)  r = Unsqueeze(q, axes)  y = Add(x, r) }""",
        {
            "zero": np.asarray(0),
            "n": np.asarray(12),
            "one": np.asarray(1),
            "scale": np.float32(1 / 12),
            "axes": ints(0, 2),
        },
        "node 'q' (Mul-14).*'scale'",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    """What fixes the length is refused or asked, with the node and the constant."""
    text, constants, words = REFUSALS[name]
    axis = 2 if "8,12]" in text else 1
    pattern = words.replace("(", r"\(").replace(")", r"\)").replace("{", r"\{").replace("}", r"\}")
    with pytest.raises(ModelError, match=pattern):
        jaxrnn.load(made(text, {}, constants, 17), dims={"x": {axis: "time"}})


def test_answers():
    """The two lines of a question give the two readings."""
    text, constants, _ = REFUSALS["a mask whose sum is read"]
    proto = made(text, {}, constants, 17)
    x = np.ones((1, 5, 8), np.float32)
    for answer, total in ((12, 6.0), ("time", 2.5)):
        model = jaxrnn.load(proto, dims={"x": {1: "time"}, "wide": {1: answer}})
        assert float(model.apply(model.params, {"x": x})["y"][0]) == total
    text, constants, _ = REFUSALS["the last frame by its number"]
    proto = made(text, {}, constants, 17)
    x = np.arange(20 * 8, dtype=np.float32).reshape(1, 20, 8)
    for answer, frame in ((11, 11), ("time", 19)):
        model = jaxrnn.load(proto, dims={"x": {1: "time"}, "last": {0: answer}})
        np.testing.assert_array_equal(model.apply(model.params, {"x": x})["y"], x[:, frame])


def test_wrong_answers():
    """Axes and constants that do not exist are refused, and so are numbers that the file does not have."""
    text, constants, _ = REFUSALS["a mask whose sum is read"]
    proto = made(text, {}, constants, 17)
    for dims, words in (
        ({"z": {1: "time"}}, "the inputs are x: float32.1, 12, 8."),
        ({"x": {3: "time"}}, "has no axis 3"),
        ({"x": {1: 5}}, "expected the name of the axis"),
        ({"x": {1: "5*time"}}, "no multiple of 5"),
        ({"x": {1: "time", 2: "time"}}, "the axis has size 8, but time has another size"),
        ({"x": {1: "time"}, "wide": {1: 11}}, "has 12 at 1, not 11"),
        ({"x": {1: "time"}, "half": {0: 1}}, "no constant of this name"),
    ):
        check_refused(InputError, words, jaxrnn.load, proto, dims=dims)


def test_states_of_one_stream():
    """The initial state of one stream becomes that of a batch, and is not left to a broadcast."""
    model = check(CASES["states_of_a_batch"], 1, (1, 4))
    assert any("as if it were alone" in line for line in model.opened)


def fixed(proto: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """Return a file with sizes in place of open dimensions."""
    for value in (*proto.graph.input, *proto.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in sizes:
                size.dim_value = sizes[size.dim_param]
    return proto


@pytest.mark.parametrize("name", of_tiers(["keyword_net", "filter_net", "wave_net"], ["keyword_net"], ["wave_net"]))
def test_networks(models, name):
    """Networks of an open length, fixed to one length and opened, have the numbers of the open file, and stream."""
    path = models / f"{name}.onnx"
    whole = jaxrnn.load(path)
    length = 640 if name == "wave_net" else 12
    dims = {info.name: {axis: "S" for axis, size in enumerate(info.shape) if size == "S"} for info in whole.inputs}
    model = jaxrnn.load(fixed(onnx.load(path), {"S": length}), dims=dims)
    random, inputs = np.random.default_rng(0), {}
    for info in whole.inputs:
        inputs[info.name] = random.standard_normal([2 * length if s == "S" else s for s in info.shape]).astype("f")
    there, here = (each.apply(each.params, inputs) for each in (whole, model))
    streamed = model.stream().run(model.params, inputs)
    for output in there:
        np.testing.assert_allclose(here[output], there[output], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(streamed[output], there[output], rtol=1e-4, atol=1e-4)


def test_an_opened_file_is_a_file(tmp_path):
    """An opened model is written, pickled and streamed as any other."""
    build = CASES["lengths_of_sequences"]
    model = jaxrnn.load(build(12), dims=build.dims)
    jaxrnn.export_onnx(model, model.params, tmp_path / "opened.onnx")
    for other in (jaxrnn.load(tmp_path / "opened.onnx"), pickle.loads(pickle.dumps(model))):
        assert other.inputs == model.inputs
        np.testing.assert_array_equal(values(other, 9, build.dims)["y"], values(model, 9, build.dims)["y"])
    x = np.random.default_rng(0).standard_normal((9, 1, 8)).astype(np.float32)
    single = jaxrnn.load(made(*RECURRENT), dims={"x": {0: "time"}})
    np.testing.assert_allclose(
        single.stream().run(single.params, {"x": x})["y"], single.apply(single.params, {"x": x})["y"], atol=1e-6
    )


#: A recurrence over 12 frames of a single stream.
RECURRENT = (
    """g (float[12,1,8] x) => (float[12,1,6] y) {
        a, h, c = LSTM<hidden_size=6>(x, W, R)  y = Squeeze(a, one) }""",
    {"W": (1, 24, 8), "R": (1, 24, 6)},
    {"one": ints(1)},
    17,
)


def test_advice():
    """A file of a fixed length says which axis to open, by the name of the input."""
    model = jaxrnn.load(made(*RECURRENT))
    words = (
        r"LSTM 'a' runs along axis 0 of 'x', which the file fixes to 12: `jaxrnn.load.path, dims=.'x': .0: 'time'...`"
    )
    check_refused(InputError, words, model.stream)
    check_refused(StateError, words, lambda: model.spec)
    nothing = jaxrnn.load(made("g (float[2,3] x) => (float[2,3] y) { y = Tanh(x) }", {}, {}, 17))
    check_refused(InputError, "possible dimensions: none", nothing.stream)


def test_a_batch_is_no_time():
    """A dimension that nothing runs along is asked, if a recurrence runs along a fixed axis, and said by its name."""
    text, weights, constants, opset = RECURRENT
    model = jaxrnn.load(made(text.replace("[12,1,", "[12,unk__130,"), weights, constants, opset))
    words = "no recurrence, window or sum runs along 'unk__130'.*axis 0 of 'x'.*`symbol='unk__130'`"
    check_refused(InputError, words, model.stream)
    assert model.stream("unk__130").spec.streams
    frames = jaxrnn.load(made("g (float[unk__130,3] x) => (float[unk__130,3] y) { y = Tanh(x) }", {}, {}, 17))
    assert frames.stream().spec.streams  # nothing runs along any axis


def test_what_cannot_be_examined_is_said(monkeypatch):
    """An axis along which it is not known whether something runs is named with the reason, and is no refusal."""
    monkeypatch.setattr(search, "_TRIALS", 0)
    words = "what runs along axis 0 of 'x', axis 2 of 'x' is not known: the constants that follow.* in 0 trials"
    check_refused(InputError, words, jaxrnn.load(made(*RECURRENT)).stream)
    text, weights, constants, opset = RECURRENT
    model = jaxrnn.load(made(text.replace("[12,1,", "[12,unk__130,"), weights, constants, opset))
    words = "not known whether a recurrence, window or sum runs along 'unk__130': the constants"
    with pytest.warns(UserWarning, match=words):
        assert model.stream().spec.streams


def test_axes_in_json():
    """The keys of JSON are strings."""
    build = CASES["reshapes"]
    model = jaxrnn.load(build(12), dims={"x": {"1": "time"}})
    assert model.inputs[0].shape == (2, "time", 8)
    given = {"x": {"1": "time"}, "w": {0: 12}}
    assert ModelSettings(file=Path("net.onnx"), dims=given).dims == given  # as `load` takes them


def test_commands(tmp_path):
    """The option ``--open`` opens an axis, and errors have this option."""
    onnx.save(made(*RECURRENT), tmp_path / "fixed.onnx")
    run = CliRunner().invoke
    refused = run(main, ["stream", str(tmp_path / "fixed.onnx"), "--random"])
    assert refused.exit_code
    assert "--open x:0=time" in refused.output
    opened = run(main, ["verify", str(tmp_path / "fixed.onnx"), "--open", "x:0=time", "--dim", "time=5", "--json"])
    assert opened.exit_code == 0, opened.output
    assert '"time": 5' in opened.output
    shown = run(main, ["inspect", str(tmp_path / "fixed.onnx"), "--open", "x:0=time"])
    assert "axis 0 of 'x' is time" in shown.output
    wrong = run(main, ["inspect", str(tmp_path / "fixed.onnx"), "--open", "x=time"])
    assert "INPUT:AXIS" in wrong.output
