"""Attention whose mask bounds the past: streamed with one history of keys and one of values."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from attention_networks import HEADS, WIDTH, Attention, Codec, Conformer, Emformer
from facts_verifier import check_facts
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import verify_export
from jaxrnn.streaming.checking import InPulses

RANDOM = np.random.default_rng(0)
W = [jnp.asarray(RANDOM.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH), jnp.float32) for _ in range(4)]


def apart(x):
    """The distances from each query to each key: how many frames the key is before the query."""
    n = jnp.arange(x.shape[0])
    return n[:, None] - n[None]


def attend(x, mask, fill=-jnp.inf, bias=0.0):
    """Attention with several heads, as people write it."""
    q, k, v = (jnp.reshape(x @ w.astype(x.dtype), (x.shape[0], HEADS, WIDTH // HEADS)) for w in W[:3])
    scores = jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1]) + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, fill), -1)
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape) @ W[3].astype(x.dtype)


def banded(x, left=3, right=0, **options):
    d = apart(x)
    return attend(x, (d <= left) & (d >= -right), **options)


def chunked(x, size, left):
    """Each frame sees its own chunk of frames, and some chunks before."""
    chunk = jnp.arange(x.shape[0]) // size
    d = chunk[:, None] - chunk[None]
    return attend(x, (d >= 0) & (d <= left))


def chunked_as_exported(x):
    """Chunks by the floor division that an exporter writes: truncation, less 1 for negative numbers with a rest."""
    n = jnp.arange(x.shape[0])[:, None]
    size = jnp.broadcast_to(jnp.asarray(4, n.dtype), n.shape)
    start = jax.lax.div(n, size) - (((n < 0) == True) & (jnp.mod(n, 4) != 0)).astype(n.dtype)  # noqa: E712
    key = jnp.arange(x.shape[0])
    return attend(x, (key >= start * 4 - 3) & (key < start * 4 + 5))


def additive(x):
    bias = jnp.where((apart(x) >= 0) & (apart(x) < 4), 0.0, jnp.finfo(jnp.float32).min).astype(x.dtype)
    q, k, v = (x @ w.astype(x.dtype) for w in W[:3])
    return jax.nn.softmax(q @ k.T + bias, -1) @ v


def by_triangles(x):
    ones = jnp.ones((x.shape[0], x.shape[0]), bool)
    return attend(x, jnp.tril(ones) & jnp.triu(ones, -3))


def alibi(x):
    slopes = jnp.asarray([0.5, 0.25])[:, None, None]
    return banded(x, 4, 1, bias=-slopes * jnp.abs(apart(x)).astype(jnp.float32))


TABLE = RANDOM.normal(size=(8, HEADS)).astype(np.float32)


def bucketed(x, table=TABLE, *, both=True):
    """A learned bias for each bucket of distances, as in T5: exact for near keys, logarithmic for far keys."""
    d, half = -apart(x), 4 if both else 8
    far = jnp.abs(d) if both else jnp.maximum(-d, 0)
    logarithm = jnp.log(far.astype(jnp.float32) / (half // 2)) / np.float32(np.log(4))
    large = jnp.minimum(half // 2 + (logarithm * (half // 2)).astype(d.dtype), half - 1)
    bucket = jnp.where(far < half // 2, far, large) + jnp.where((d > 0) & both, half, 0).astype(d.dtype)
    return jnp.transpose(jnp.asarray(table, x.dtype)[bucket], (2, 0, 1))


def clipped(x):
    """A learned bias for each distance up to 3."""
    return jnp.take(jnp.asarray(TABLE[:7, 0], x.dtype), jnp.clip(apart(x), -3, 3) + 3)


def keys_first(x):
    """Scores with the keys on the first axis."""
    q, k, v = (x @ w.astype(x.dtype) for w in W[:3])
    scores = jnp.where(jnp.abs(apart(x)) <= 2, k @ q.T, -jnp.inf)
    return jax.nn.softmax(scores, 0).T @ v


def without_softmax(x):
    """A linear attention over a window: no normalisation, a mask that multiplies."""
    q, k, v = (x @ w.astype(x.dtype) for w in W[:3])
    mask = ((apart(x) >= 0) & (apart(x) <= 5)).astype(x.dtype)
    return (q @ k.T * mask) @ v


def library(x, **options):
    q, k, v = (jnp.reshape(x @ w.astype(x.dtype), (1, x.shape[0], HEADS, WIDTH // HEADS)) for w in W[:3])
    return jax.nn.dot_product_attention(q, k, v, **options).reshape(x.shape)


def in_batch(x):
    """The batch in front, as networks have it."""
    return jax.vmap(banded)(jnp.stack([x, 2 * x]))[1]


def counted(x, columns=0, start=1):
    """Rows and columns of a count of all pairs, as tf2onnx writes them, and a mask that goes through floats."""
    size = x.shape[0]
    n = lax.pad(jnp.full((size * size,), start, np.int32), np.int32(0), [(1, -1, 0)])
    n = lax.cumsum(n).reshape(size, size)
    i, j = n // size, n % (size + columns)
    seen = ((i - j <= 3).astype(jnp.float32) * (j <= i).astype(jnp.float32)).astype(bool)
    return attend(x, seen)


@jax.jit
def remainder(distance, most):
    """The smaller number: only the name is that of a function of NumPy."""
    return jnp.minimum(distance, most)


def as_flax_masks(x):
    """Positions with an axis for the streams of a batch, as `flax.linen.make_causal_mask` has them."""
    batch = jnp.stack([x, 2 * x])
    positions = jnp.broadcast_to(jnp.arange(x.shape[0], dtype=jnp.int32), batch.shape[:2])
    query, key = positions[:, :, None], positions[:, None, :]
    scores = jnp.where((query >= key) & (query - key <= 3), jnp.einsum("bqd,bkd->bqk", batch, batch), -jnp.inf)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1), batch)[1]


def numbers_as_booleans(x):
    """A mask that hides frame 0 from all later frames."""
    d, later = apart(x), lax.convert_element_type(jnp.arange(x.shape[0]), bool)
    return attend(x, (d >= 0) & (d <= 3) & (later[None] | (d == 0)))


def in_type(x, dtype):
    """Positions in a type in which no difference may be negative."""
    n = jnp.arange(x.shape[0], dtype=dtype)
    query, key = n[:, None], n[None]
    return attend(x, (query >= key) & (query <= key + jnp.asarray(3, dtype)))


def by_index_tuples(x):
    """The mask of a document, as transformers writes this: elements by the number of the recording and of the frame."""
    n = x.shape[0]
    places = jnp.broadcast_to(jnp.arange(n)[None], (2, n))
    document = jnp.cumsum(jnp.diff(places, prepend=places[:, :1] - 1) != 1, 1)

    def read(data, frames):
        pair = jnp.stack(jnp.broadcast_arrays(jnp.arange(2)[:, None, None, None], frames), -1)
        return data[pair[..., 0], pair[..., 1]]

    query, key = (jnp.arange(n).reshape(shape) for shape in ((1, 1, n, 1), (1, 1, 1, n)))
    distance = read(places, query) - jnp.take_along_axis(places, places, 1)[:, None, None]
    seen = (read(document, query) == read(document, key)) & (distance >= 0) & (distance < 4)
    return attend(x, seen[1])


def two_layers(x):
    x = x + banded(x, 3, 1)
    return x + banded(jax.nn.gelu(x @ W[0].astype(x.dtype)), 2, 2)


def chunked_as_pytorch_exports(x, by_floats):
    """Chunks by `torch.arange(n) // 3` or `(torch.arange(n) / 3).int()`, as the exporters of PyTorch write them."""
    n = jnp.arange(x.shape[0])
    if by_floats:
        quotient = n.astype(x.dtype) / 3
        chunk = (jnp.floor(quotient) if by_floats == "floor" else quotient).astype(n.dtype)
    else:
        quotient = lax.div(n, jnp.full_like(n, 3))
        chunk = jnp.where((n < 0) & (jnp.mod(n, 3) != 0), quotient - 1, quotient)
    d = chunk[:, None] - chunk[None]
    return attend(x, (d >= 0) & (d <= 1))


def heads(x):
    """Attention of several heads; the scale is an array of one element, as files have it."""
    q = x.reshape(x.shape[0], WIDTH, 1).transpose(1, 0, 2)[None]
    weights = jnp.einsum("bhqd,bhkd->bhqk", q, q) / jnp.full((1, 1, 1, 1), 1.7, x.dtype)
    seen = (apart(x) >= 0) & (apart(x) <= 3)
    return jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(jnp.where(seen, weights, -1e9)), q)[0].reshape(x.shape)


CASES = {
    "banded": banded,
    "heads": heads,
    "with look-ahead": lambda x: banded(x, 4, 2),
    "strictly past": lambda x: attend(x, (apart(x) >= 0) & (apart(x) <= 4) & ((apart(x) > 1) | (apart(x) == 0))),
    "chunks": lambda x: chunked(x, 4, 0),
    "chunks and the one before": lambda x: chunked(x, 3, 1),
    "chunks as exported": chunked_as_exported,
    "chunks by a choice": lambda x: chunked_as_pytorch_exports(x, by_floats=""),
    "chunks by floats": lambda x: chunked_as_pytorch_exports(x, by_floats="floor"),
    "chunks by truncated floats": lambda x: chunked_as_pytorch_exports(x, by_floats="truncate"),
    "a finite mask": lambda x: banded(x, fill=-1e9),
    "an added mask": additive,
    "a mask times -10,000": lambda x: attend(x, True, bias=-1e4 * (1.0 - (jnp.abs(apart(x)) <= 2).astype(x.dtype))),
    "triangles": by_triangles,
    "ALiBi": alibi,
    "T5": lambda x: banded(x, 6, 2, bias=bucketed(x)),
    "T5, causal": lambda x: banded(x, 9, bias=bucketed(x, both=False)),
    "biases by distance": lambda x: banded(x, 5, 1, bias=clipped(x)),
    "keys first": keys_first,
    "without softmax": without_softmax,
    "jax.nn.dot_product_attention": lambda x: library(x, is_causal=True, mask=(apart(x) < 4)[None, None]),
    "rows and columns of a count": counted,
    "in a batch": in_batch,
    "positions of a batch": as_flax_masks,
    "positions by tuples": by_index_tuples,
    "unsigned positions": lambda x: in_type(x, jnp.uint32),
    "positions as booleans": numbers_as_booleans,
    "floating positions": lambda x: in_type(x, jnp.float32),
    "a function called remainder": lambda x: attend(x, (apart(x) >= 0) & (remainder(apart(x), 3) == apart(x))),
    "two layers": two_layers,
    "every second frame": lambda x: banded(x[::2], 2, 1),
}
#: Delay, look-ahead and receptive field.
FACTS = {
    "banded": (0, 0, 4),
    "with look-ahead": (2, 2, 7),
    "chunks": (3, 3, 7),
    "keys first": (2, 2, 5),
    "two layers": (3, 3, 9),
}
EXAMPLE = jax.ShapeDtypeStruct((12, WIDTH), np.float32)


@pytest.mark.parametrize(
    "name",
    of_tiers(
        CASES,
        [
            "chunks by truncated floats",
            "heads",
            "T5",
            "positions of a batch",
            "positions by tuples",
            "unsigned positions",
            "positions as booleans",
        ],
        ["with look-ahead", "chunks by a choice"],
    ),
)
def test_values(name):
    check_values(CASES[name], (20, WIDTH), lengths=(0, 1, 6, 23), chunkings=((1,), (5, 1)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", of_tiers(FACTS, ["with look-ahead", "chunks"], thorough=()))
def test_facts(name):
    streamed = jaxrnn.stream(CASES[name], EXAMPLE, axes=0)
    assert (streamed.delay, streamed.look_ahead, streamed.receptive_field) == FACTS[name]
    check_facts(CASES[name], streamed, total=30, larger=name == "chunks", nan=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", of_tiers(["with look-ahead", "chunks", "an added mask", "two layers", "T5"], ["chunks"], thorough=())
)
def test_gradients(name):
    check_gradients(CASES[name], (12, WIDTH), length=7)


def test_the_state_is_one_history_of_keys_and_one_of_values():
    streamed = jaxrnn.stream(functools.partial(banded, left=15), EXAMPLE, axes=0)
    shapes = [each.shape for each in streamed.state if each.kind == "history"]
    assert shapes == [(15, HEADS, WIDTH // HEADS)] * 2
    assert not [each for each in streamed.state if each.kind not in ("history", "counter")]


#: Networks, with their delay, look-ahead and receptive field.
MODULES = {
    "attention of Flax": (lambda: Attention(5, 1), (1, 1, 7)),
    "conformer": (Conformer, (0, 0, 13)),
    "emformer": (Emformer, (8, 8, 27)),
    "codec": (Codec, (0, 1, 22)),
}


@pytest.mark.parametrize("name", of_tiers(MODULES, [], []))
def test_modules(name, tmp_path):
    """Exact in every mixture of pulses, and as an ONNX file in ONNX Runtime."""
    make, facts = MODULES[name]
    module = make()
    streamed = check_values(module, (20, WIDTH), lengths=(1, 4, 17), chunkings=((1,), (3, 1)))
    assert (streamed.delay, streamed.look_ahead, streamed.receptive_field) == facts
    function = lambda arrays: {"y": module(arrays["x"])}  # noqa: E731
    streamed = jaxrnn.stream(function, {"x": EXAMPLE}, axes=0, pulse=2)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    report = verify_export(streamed, None, tmp_path / "step.onnx", offline=function)
    assert report.ok
    assert report.flushed


#: Files of attention with a mask, and the kind of their exporter.
FILES = ["band_script", "band_dynamo", "sdpa_band_script", "sdpa_band_dynamo"]


def check_recorded(models, name, streamed, params):
    """Pulses and a flush, each compiled once, give PyTorch's outputs at every recorded length."""
    streaming = InPulses(streamed, params)
    with np.load(models / "speech" / f"{name}.npz") as arrays:
        for length in {key.split(".")[0] for key in arrays.files}:
            found = streaming.run({"x": arrays[f"{length}.in.x"]}, int(length), [streamed.pulse], room=streamed.pulse)
            np.testing.assert_allclose(found["y"], arrays[f"{length}.out.y"], atol=2e-6)


@pytest.mark.parametrize("name", of_tiers(FILES, FILES[2:3], FILES[1:2]))
@pytest.mark.parametrize("pulse", of_tiers([1, 4], [4], []))
def test_files(models, name, pulse):
    """PyTorch's outputs at every recorded length; one history of keys and one of values."""
    model = jaxrnn.load(models / "speech" / f"{name}.onnx")
    streamed = model.stream("T", pulse)
    assert (streamed.delay, streamed.receptive_field) == ({"y": 0}, 17)
    assert sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(streamed.init())) < 2 * 16 * 32 * 4 + 32
    check_recorded(models, name, streamed, model.params)


T5 = """<ir_version: 8, opset_import: ["" : 18]> t5 (float[1, T, 4] x) => (float[1, T, 4] y)
<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1},
 int64 two = {2}, int64 three = {3}, int64 four = {4}, int64 past = {-6}, float half = {2.0}, float log = {2.0794415},
 float lowest = {-inf}, int64[4] heads = {1, -1, 2, 2}, int64[3] whole = {1, -1, 4}> {
  shape = Shape <start = 1, end = 2> (x)
  length = Squeeze (shape)
  frames = Range (zero, length, one)
  keys = Unsqueeze (frames, first)
  queries = Unsqueeze (frames, second)
  apart = Sub (keys, queries)
  later = Greater (apart, zero)
  later_number = Cast <to = 7> (later)
  side = Mul (later_number, four)
  distance = Abs (apart)
  near = Less (distance, two)
  real = Cast <to = 1> (distance)
  ratio = Div (real, half)
  logarithm = Log (ratio)
  fraction = Div (logarithm, log)
  steps = Mul (fraction, half)
  rounded = Cast <to = 7> (steps)
  far = Add (rounded, two)
  sizes = Shape (far)
  most = Expand (three, sizes)
  limited = Min (far, most)
  place = Where (near, distance, limited)
  bucket = Add (side, place)
  rows = Gather <axis = 0> (embedding, bucket)
  by_head = Transpose <perm = [2, 0, 1]> (rows)
  bias = Unsqueeze (by_head, first)
  split = Reshape (x, heads)
  q = Transpose <perm = [0, 2, 1, 3]> (split)
  k = Transpose <perm = [0, 2, 3, 1]> (split)
  products = MatMul (q, k)
  scores = Add (products, bias)
  ahead = LessOrEqual (apart, two)
  back = GreaterOrEqual (apart, past)
  seen = And (ahead, back)
  hidden = Not (seen)
  masked = Where (hidden, lowest, scores)
  weights = Softmax <axis = -1> (masked)
  summed = MatMul (weights, q)
  joined = Transpose <perm = [0, 2, 1, 3]> (summed)
  y = Reshape (joined, whole)
}"""


@pytest.mark.thorough
def test_a_relative_bias_of_pytorch(tmp_path):
    """An embedding of buckets of distances as PyTorch's exporter writes it, looked up once in the exported step."""
    proto = onnx.parser.parse_model(T5)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "embedding"))
    model = jaxrnn.load(proto)
    streamed = model.stream("T", 3)
    streaming = InPulses(streamed, model.params)
    for length in (1, 2, 9, 25):
        x = {"x": np.random.default_rng(length).normal(size=(1, length, 4)).astype(np.float32)}
        found, expected = streaming.run(x, length, [3], room=3), model.apply(model.params, x)
        np.testing.assert_allclose(found["y"], expected["y"], atol=2e-6)
    jaxrnn.export_onnx(streamed, model.params, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    assert verify_export(
        streamed, model.params, tmp_path / "step.onnx", offline=functools.partial(model.apply, model.params)
    ).ok
    assert "Log" not in {node.op_type for node in onnx.load(tmp_path / "step.onnx").graph.node}


COPIES = {
    "a filter by shifted copies": lambda x: sum(
        weight * jnp.pad(x, ((4, 0), (0, 0)))[n : n + x.shape[0]] for n, weight in enumerate([0.1, 0.2, 0.4, 0.2, 0.1])
    ),
    "pads and cuts": lambda x: jnp.concatenate(
        [jnp.pad(x, ((n, 0), (0, 0)))[: x.shape[0]] for n in (2, 4, 0, 1, 3)], -1
    ),
    "copies and a convolution": lambda x: (
        x[4:] + x[2:-2] + jax.lax.reduce_window(x, 0.0, jax.lax.add, (5, 1), (1, 1), "VALID")
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", COPIES)
def test_copies_share_one_history(name):
    """Copies of one value at several delays read one history of the longest delay."""
    streamed = check_values(COPIES[name], (20, WIDTH), lengths=(0, 1, 3, 12), chunkings=((1,), (5, 1)))
    assert [each.shape for each in streamed.state if each.kind != "counter"] == [(4, WIDTH)]


@pytest.mark.nightly
def test_a_window_of_copies(models, tmp_path):
    """Keys and values by 17 shifted copies each: two histories, and a short exported step."""
    model = jaxrnn.load(models / "speech" / "unfold_script.onnx")
    streamed = model.stream("T", 1)
    assert sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(streamed.init())) < 2 * 16 * 32 * 4 + 32
    jaxrnn.export_onnx(streamed, model.params, tmp_path / "step.onnx")
    assert len(onnx.load(tmp_path / "step.onnx").graph.node) < 60
    check_recorded(models, "unfold_script", streamed, model.params)


@pytest.mark.parametrize("name", of_tiers(MODULES, [], thorough=()))
def test_gradients_of_modules(name):
    graph, rest = nnx.split(MODULES[name][0]())
    double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rest)
    with jax.numpy_dtype_promotion("standard"):  # Flax computes parts in float32
        check_gradients(lambda x: nnx.merge(graph, double)(x), (12, WIDTH), length=8, tolerance=1e-6)


REFUSED = {
    "no mask": (lambda x: jax.nn.softmax(x @ x.T) @ x, "all earlier and later frames"),
    "all of the past": (lambda x: attend(x, apart(x) >= 0), "all earlier frames; give `past=64"),
    "all of the future": (lambda x: attend(x, apart(x) <= 0), "all later frames"),
    "first frames for ever": (lambda x: attend(x, (jnp.arange(x.shape[0]) < 2)[None] | (apart(x) == 0)), "earlier"),
    "a mask of data": (
        lambda x: attend(x, (x[:, :1] > x[:, :1].T)),
        "'gt'.*does not compare the numbers of two frames",
    ),
    "rounded positions": (
        lambda x: attend(x, abs(jax.lax.reduce_precision(apart(x).astype(jnp.float32), 8, 3)) <= 20),
        "'le'.*does not compare the numbers of two frames",
    ),
    "distances that wrap around": (
        lambda x: attend(x, jnp.abs(apart(x).astype(jnp.uint32).astype(jnp.float32)) <= 3),
        "'le'.*does not compare the numbers of two frames",
    ),
    "positions of 8 bits": (lambda x: in_type(x, jnp.int8), "numbers of int8, which does not hold.*count in int32"),
    "a count by twos": (lambda x: counted(x, start=2), "a row for each pair of frames"),
    "other columns": (lambda x: counted(x, columns=1), "a row for each pair of frames"),
    "a product of two": (lambda x: (x @ x.T) @ (x @ x.T) @ x, "two matrices of pairs"),
    "all pairs": (lambda x: x * jnp.sum(x @ x.T), "reduces all pairs"),
    "different rates": (lambda x: jax.nn.softmax(x @ x[::2].T) @ x[::2], "two axes of different lengths"),
    "a running sum": (lambda x: jnp.cumsum(x @ x.T, 1) @ x, "'cumsum'.*running sum over pairs"),
    "a score too low": (lambda x: attend(x, apart(x) >= 0, fill=-5.0), "all earlier and later frames"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, EXAMPLE, axes=0)


@pytest.mark.thorough
def test_scores_as_low_as_a_finite_mask_give_nan():
    """A finite mask stands for minus infinity. If that changes the result, the result is NaN."""
    function = functools.partial(banded, fill=-1e4)
    x = np.random.default_rng(3).normal(size=(9, WIDTH)).astype(np.float32)
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0)
    np.testing.assert_allclose(streamed.run(None, x), jax.jit(function)(x), atol=1e-5)
    low = functools.partial(banded, fill=-1e4, bias=-6e3)
    assert np.all(np.isnan(jaxrnn.stream(low, EXAMPLE, axes=0).run(None, x)))


def strict(x, fill=-jnp.inf):
    return jax.nn.softmax(jnp.where((apart(x) >= 1) & (apart(x) <= 4), x @ x.T, fill)) @ x


def normalised(x):
    weights = jnp.where((apart(x) >= 1) & (apart(x) <= 4), x @ x.T, 0)
    return weights / jnp.sum(weights, 1, keepdims=True) @ x


def test_the_first_query_of_a_strict_mask_sees_no_key():
    """The result is that of the whole recording, such as NaN; a finite mask gives NaN for a mean of all frames."""
    x = np.random.default_rng(6).normal(size=(9, WIDTH)).astype(np.float32)
    unbounded = lambda x: jnp.exp(jnp.where((apart(x) >= 1) & (apart(x) <= 4), x @ x.T, -jnp.inf)) @ x  # noqa: E731
    for function in (strict, normalised, unbounded):
        streamed = jaxrnn.stream(function, EXAMPLE, axes=0, pulse=4)
        # Sums of frames cancel, so that a result is as exact as its largest term.
        np.testing.assert_allclose(streamed.run(None, x), jax.jit(function)(x), rtol=1e-5, atol=1e-6)
    low = functools.partial(strict, fill=-1e9)
    found = jaxrnn.stream(low, EXAMPLE, axes=0).run(None, x)
    assert np.all(np.isnan(found[0]))
    np.testing.assert_allclose(found[1:], low(x)[1:], rtol=1e-5)


def near(x, scores):
    return jnp.where(jnp.abs(apart(x)) <= 1, scores, np.float32(0).astype(x.dtype))


#: Operations with a singular derivative at 0, on pairs of a key or query that does not exist.
SINGULAR = {
    "normalised over queries": lambda p, x: jax.nn.softmax(jnp.where(jnp.abs(apart(x)) <= 1, p * x @ x.T, -jnp.inf), 0),
    "twice": lambda p, x: jax.lax.reciprocal(jnp.sum(near(x, jnp.exp(p * x @ x.T)), 0)) * near(x, jnp.exp(p * x @ x.T)),
    "a quotient": lambda p, x: near(x, x[:, :1] / (x[None, :, 0] * jnp.exp(p * x[:, :1]))),
    "a logarithm": lambda p, x: near(x, jnp.log(p * x[None, :, 0] * jnp.exp(x[:, :1]))),
    "a root": lambda p, x: near(x, jnp.sqrt(p * x[None, :, 0] * jnp.exp(x[:, :1]))),
}


@pytest.mark.parametrize("name", of_tiers(SINGULAR, ["a root"], ["a quotient"]))
def test_gradients_beside_frames_that_do_not_exist(name):
    function = lambda p, x: jnp.sum((SINGULAR[name](p, x) @ x) ** 2, 1)  # noqa: E731
    x = np.random.default_rng(8).uniform(1, 2, (6, WIDTH))
    p = np.float64(0.3)
    with jax.enable_x64(True):
        streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((12, WIDTH), np.float64), axes=0, params=p)
        found, wanted = (jax.grad(lambda p, run=run: jnp.sum(run(p, x)))(p) for run in (streamed.run, function))
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


#: Masks in the arithmetic of frame numbers, and True if they stream.
MASKS = {
    "a square": (lambda d: d * d <= 16, True),
    "a polynomial": (lambda d: d * d <= 100 * d, True),
    "a power that overflows": (lambda d: d**4 <= 81, False),
    "a product that overflows": (lambda d: (d * d * d <= 27) & (d * d * d >= -27), False),
    "shifted": (lambda d: jnp.abs(d >> 2) <= 1, True),
    "truth values in 8 bits": (lambda d: (jnp.abs(d) <= 4).astype(np.int8) > 0, True),
    "a product that wraps around": (
        lambda d: (2 * (30 * jnp.clip(d, -3, 3)).astype(np.int8) > 5) & (jnp.abs(d) < 9),
        True,
    ),
    "a difference that wraps around": (
        lambda d: (jnp.clip(d + 3, 0, 6).astype(np.uint8) - 1 > 250) & (jnp.abs(d) < 9),
        True,
    ),
    "a square that wraps around": (
        lambda d: (jnp.square(jnp.clip(d, -20, 20).astype(np.int8)) <= 100) & (jnp.abs(d) < 30),
        True,
    ),
    "a product that is rounded": (
        lambda d: (jnp.clip(d, -300, 300).astype(np.float16) * np.float16(17) == np.float16(5016)) & (d < 299),
        True,
    ),
    "a steep line": (lambda d: (d * 2**12 * 2**11 <= 2**20) & (jnp.abs(d) < 299), True),
    "a shift of unsigned numbers": (
        lambda d: (
            (jax.lax.shift_right_arithmetic(jnp.clip(d, 0, 200).astype(np.uint8), np.uint8(1)) < 90)
            & (jnp.abs(d) < 210)
        ),
        True,
    ),
    "unsigned": (lambda d: d.astype(np.uint32) <= 4, False),
    "8 bits": (lambda d: jnp.abs(d.astype(np.int8)) <= 4, False),
    "rounded": (lambda d: jnp.abs(d).astype(np.float16) <= 4, False),
    "a length that no distance reaches": (
        lambda d: (jnp.abs(d) <= 4) & (d <= d.shape[0] - 1) & (0 - d < d.shape[0]),
        True,
    ),
    "triangles as wide as the length": (
        lambda d: (jnp.triu(jnp.ones(d.shape), 1 - d.shape[0]) > 0) & (jnp.abs(d) <= 4) & (2 * d + 2 * d.shape[0] > 1),
        True,
    ),
    "a length that a distance reaches": (lambda d: (jnp.abs(d) <= 4) & (d <= d.shape[0] - 3), False),
    "such a length in an array": (lambda d: (jnp.abs(d) <= 4) & (d <= jnp.full((1, 1), d.shape[0] - 3)), False),
    "a number that follows from the length": (lambda d: jnp.abs(jnp.minimum(d + d.shape[0], 4)) <= 4, False),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_by_arithmetic(name):
    """Numbers of frames that a type does not hold are not the numbers of later frames."""
    mask, streams = MASKS[name]
    function = lambda x: jnp.where(mask(apart(x)), np.float32(1), 0) @ x  # noqa: E731
    x = np.ones((300, 1), np.float32)
    if not streams:
        check_refused(jaxrnn.StreamError, "depends on (all|the length)", jaxrnn.stream, function, x, axes=0)
        return
    np.testing.assert_allclose(jaxrnn.stream(function, x, axes=0, pulse=30).run(None, x), jax.jit(function)(x))


@pytest.mark.parametrize("fill", [1, -1])
def test_bits_outside_of_a_mask(fill):
    near = lambda x: jnp.where(jnp.abs(apart(x)) <= 1, x[None], np.int32(fill))  # noqa: E731
    function = lambda x: jax.lax.reduce(near(x), np.int32(-1), jax.lax.bitwise_and, (1,))  # noqa: E731
    streamed = jaxrnn.stream(function, np.arange(9, dtype=np.int32), axes=0)
    for x in (np.arange(11, 11 + 2 * length, 2, dtype=np.int32) for length in (1, 2, 3, 7)):
        np.testing.assert_array_equal(streamed.run(None, x), jax.jit(function)(x))


@pytest.mark.nightly
def test_long_chunks():
    numbers = lambda x: jnp.arange(x.shape[0]) // 900  # noqa: E731
    function = lambda x: jnp.where(numbers(x)[:, None] == numbers(x), np.float32(1), 0) @ x  # noqa: E731
    x = np.arange(1000, dtype=np.float32)[:, None]
    streamed = jaxrnn.stream(function, x, axes=0, pulse=100)
    assert streamed.delay == 899
    np.testing.assert_array_equal(streamed.run(None, x), jax.jit(function)(x))


@pytest.mark.nightly
def test_pulses_of_any_size():
    """The state of a mask with a long period does not depend on the pulse."""
    function = functools.partial(chunked, size=64, left=1)
    x = np.random.default_rng(7).normal(size=(400, WIDTH)).astype(np.float32)
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0).with_pulse(256)
    np.testing.assert_allclose(streamed.run(None, x), jax.jit(function)(x), atol=1e-5)


#: Arithmetic with masked scores, and True if it streams.
MASKED = {
    "a quotient by": (lambda x, s: jnp.sum(jnp.exp(1 / (s + off(x, -jnp.inf))), 1), False),
    "a quotient by a number": (lambda x, s: jnp.sum(jnp.exp((s + off(x, -jnp.inf)) / 3), 1), True),
    "a test for NaN": (lambda x, s: jnp.sum(jnp.isnan(on(x, s) / on(x, s)), 1, dtype=np.float32), False),
    "a scaled level": (lambda x, s: jnp.sum(jnp.exp((s + off(x, -1e7)) * 1e-6), 1), False),
    "a level scaled less": (lambda x, s: jnp.sum(jnp.exp((s + off(x, -1e7)) * 0.01), 1), True),
    "a raised level": (lambda x, s: jnp.sum(jnp.exp(s + off(x, -1e5) + 1e5), 1), False),
    "a level less a level": (lambda x, s: jnp.sum(jnp.exp(s + off(x, -1e5) - off(x, -1e5)), 1), False),
    "infinities": (lambda x, s: jnp.sum(jnp.exp(s + off(x, -jnp.inf) + off(x, jnp.inf)), 1), False),
    "a subtracted mask": (lambda x, s: jnp.sum(jnp.exp(s - 1e9 * (jnp.abs(apart(x)) > 1).astype(s.dtype)), 1), True),
    "a single key": (lambda x, s: jnp.sum(jnp.where(apart(x) == 2, s, 0.0), 1), True),
    "a sigmoid": (lambda x, s: jnp.sum(jax.nn.sigmoid(on(x, s, -jnp.inf)), 1), True),
    "a power": (lambda x, s: jnp.sum(on(x, s) ** 3, 1), True),
    "whole numbers": (lambda x, s: jnp.sum(on(x, s, 0.7).astype(np.int32) == 0, 1, dtype=np.float32), False),
    "no infinity": (lambda x, s: jnp.exp((s + off(x, -1e9)).astype(jnp.float8_e4m3fn).astype(x.dtype)).sum(1), False),
    "float16": (lambda x, s: jnp.sum(on(x, s, 1e-9).astype(np.float16) != 0, 1, dtype=np.float32), True),
    "products of others": (
        lambda x, s: jnp.prod(jnp.prod(on(x, s, 0.5)[..., None] + jnp.zeros(3), -1) + 0.5, 1),
        False,
    ),
}


def on(x, scores, other=0.0):
    return jnp.where(jnp.abs(apart(x)) <= 1, scores, x.dtype.type(other))


def off(x, value):
    return jnp.where(jnp.abs(apart(x)) <= 1, 0.0, value).astype(x.dtype)


@pytest.mark.parametrize("name", MASKED)
def test_arithmetic_with_masked_scores(name):
    """What follows from values outside of a mask is exact, or refused."""
    case, streams = MASKED[name]
    function = lambda x: case(x, x @ x.T)  # noqa: E731
    if not streams:
        check_refused(jaxrnn.StreamError, "depends on all", jaxrnn.stream, function, EXAMPLE, axes=0)
        return
    x = np.random.default_rng(5).normal(size=(9, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(jaxrnn.stream(function, EXAMPLE, axes=0).run(None, x), jax.jit(function)(x), rtol=1e-5)


@st.composite
def masks(draw, depth=2):
    """A mask as a function of the numbers of query and key frames."""
    if depth and draw(st.booleans()):
        first, second = draw(masks(depth - 1)), draw(masks(depth - 1))
        joined = draw(st.sampled_from([jnp.logical_and, jnp.logical_and, jnp.logical_or, jnp.logical_xor]))
        return lambda i, j: joined(first(i, j), second(i, j))
    a, b, size = draw(st.integers(-2, 6)), draw(st.integers(0, 4)), draw(st.integers(1, 5))
    return draw(
        st.sampled_from(
            [
                lambda i, j: i - j <= a,
                lambda i, j: j - i <= a,
                lambda i, j: jnp.abs(i - j + a) <= b,
                lambda i, j: jnp.abs(2 * i - 2 * j) < 3 * b,
                lambda i, j: i // size == j // size,
                lambda i, j: (i // size - j // size <= b) & (i // size >= j // size),
                lambda i, j: (i + b) % size == j % size,
                lambda i, j: (i - j) ** 2 <= b,
                lambda i, j: i >> b == j >> b,
                lambda i, j: jnp.clip(i - j, -b, b + 1) == a,
                lambda i, j: jnp.maximum(i - j, j - i + a) <= 4,
            ]
        )
    )


def is_bounded(mask):
    """Return True if, away from both ends, no query sees a key that is far away."""
    n = np.arange(240)
    seen = np.broadcast_to(np.asarray(mask(n[100:140, None], n)), (40, 240))
    return not np.any(seen & (np.abs(n[100:140, None] - n) > 60))


@pytest.mark.nightly
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(masks(), st.integers(1, 5), st.integers(0, 17))
def test_masks_at_random(mask, pulse, length):
    """Each mask that bounds the pairs streams exactly, and each other mask is refused."""

    def function(x):
        n = jnp.arange(x.shape[0])
        seen = mask(n[:, None], n) | (n[:, None] == n)
        return jax.nn.softmax(jnp.where(seen, x @ x.T, -jnp.inf)) @ x

    if not is_bounded(mask):
        with pytest.raises(jaxrnn.StreamError, match="depends on all"):
            jaxrnn.stream(function, EXAMPLE, axes=0)
        return
    streamed = jaxrnn.stream(function, EXAMPLE, axes=0, pulse=pulse)
    x = np.random.default_rng(length).normal(size=(length, WIDTH)).astype(np.float32)
    np.testing.assert_allclose(streamed.run(None, x), jax.jit(function)(x), atol=1e-5)
