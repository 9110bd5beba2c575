"""Relative positions, tables of positions and attention sinks, as networks write them, inside a band."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn
from jaxrnn.export import verify_export

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(79, 3))  # of a position or distance
BIAS = RANDOM.normal(size=(9, 2))  # of a bucket, for two heads
HEADS = RANDOM.normal(size=(3, 2, 3))


def numbers(x):
    n = jnp.arange(x.shape[0])
    return n[:, None], n[None]


def weights(x, scores, left=3, right=3):
    i, j = numbers(x)
    return jax.nn.softmax(jnp.where((i - j <= left) & (j - i <= right), scores, -jnp.inf), -1)


def distances(x):
    i, j = numbers(x)
    return jnp.clip(j - i, -4, 4) + 4


def shaw(x):
    """Vectors of distances beside the keys and beside the values."""
    table = jnp.asarray(TABLE, x.dtype)
    seen = weights(x, x @ x.T + jnp.einsum("id,ijd->ij", x, table[distances(x)]))
    return seen @ x + jnp.einsum("ij,ijd->id", seen, table[distances(x) + 9])


def shaw_of_heads(x):
    """Vectors beside the keys, for two heads, of keys that are projected with them."""
    kernel = jnp.asarray(HEADS, x.dtype)
    q, of_distances = jnp.einsum("td,dhk->thk", x, kernel), jnp.asarray(TABLE, x.dtype)[distances(x)]
    scores = jnp.einsum("ihk,jhk->hij", q, q) + jnp.einsum("jhk,ijk->hij", q, of_distances)
    return jnp.einsum("hij,jd->ihd", weights(x, scores), x)


def column_of_a_table(x):
    """The bias of a head, written with two indices."""
    return weights(x, x @ x.T + jnp.asarray(BIAS, x.dtype)[distances(x), 0]) @ x


def heads_in_a_stack(x):
    scores = jnp.stack([x @ x.T, -0.5 * x @ x.T]) + jnp.transpose(jnp.asarray(BIAS, x.dtype)[distances(x)], (2, 0, 1))
    return jnp.einsum("hij,jd->ihd", weights(x, scores), x)


def shifted(products):
    """The products of each query with the rows of its distances, by a pad and a reshape: ``[..., n, 2 * n - 1]``."""
    *heads, n, size = products.shape
    padded = jnp.pad(products, [(0, 0)] * (products.ndim - 1) + [(1, 0)])
    return padded.reshape(*heads, size + 1, n)[..., 1:, :].reshape(products.shape)[..., :n]


def from_the_middle(x):
    """Rows of a table around its middle, as many as the recording needs."""
    n, table = x.shape[0], jnp.asarray(TABLE, x.dtype)
    return weights(x, x @ x.T + shifted(x @ table[39 - n + 1 : 39 + n].T)) @ x


def conformer(x):
    """Sines of distances with a projection for two heads, and a column of zeros that is joined."""
    n, kernel = x.shape[0], jnp.asarray(HEADS, x.dtype)
    angle = jnp.arange(n - 1, -n, -1).astype(x.dtype)[:, None] / jnp.asarray([1, 5, 9], x.dtype)
    rows = jnp.einsum("rd,dhk->rhk", jnp.sin(angle) + jnp.cos(angle), kernel)
    q = jnp.einsum("td,dhk->thk", x, kernel)
    products = jnp.einsum("qhk,rhk->hqr", q + 0.1, rows)
    joined = jnp.concatenate([jnp.zeros((2, n, 1), x.dtype), products], -1).reshape(2, 2 * n, n)[:, 1:]
    scores = jnp.einsum("qhk,jhk->hqj", q, q) + joined.reshape(2, n, 2 * n - 1)[..., :n]
    return jnp.einsum("hij,jd->ihd", weights(x, scores), x)


def transformer_xl(x, ahead=0):
    """Rows of distances to earlier frames only, from positions that are reversed."""
    n = x.shape[0]
    angle = jnp.arange(n)[::-1].astype(x.dtype)[:, None] / jnp.asarray([1, 5, 9], x.dtype)
    products = jnp.pad(x @ jnp.concatenate([jnp.sin(angle[:, :2]), jnp.cos(angle[:, 2:])], -1).T, ((0, 0), (1, 0)))
    return weights(x, x @ x.T + products.reshape(n + 1, n)[1:].reshape(n, n), 4, ahead) @ x


def rows_by_index(x):
    """Rows of a table by clipped distances, with the keys in front."""
    n, table = x.shape[0], jnp.asarray(TABLE, x.dtype)
    rows = table[jnp.clip(n - 1 - jnp.arange(2 * n - 1), -5, 5) + 5]
    return weights(x, (x @ x.T + shifted(x @ rows.T)).T, 2, 1).T @ x


def sink(x):
    """A number joined behind the scores of each query, and cut off behind the softmax."""
    scores = jnp.where(jnp.abs(jnp.subtract(*numbers(x))) <= 2, x @ x.T, -jnp.inf)
    joined = jnp.concatenate([scores, jnp.full((x.shape[0], 1), 0.3, x.dtype)], -1)
    return jax.nn.softmax(joined, -1)[:, :-1] @ x


def sinks_of_heads(x):
    """A column in front, of zeros and of the queries, under a mask that is joined as well."""
    i, j = numbers(x)
    scores = jnp.concatenate([jnp.stack([x[:, :1], 0 * x[:, :1]]), jnp.stack([x @ x.T, -x @ x.T])], -1)
    seen = jnp.concatenate([jnp.ones((x.shape[0], 1), bool), (i >= j) & (i - j <= 3)], -1)
    seen = jax.nn.softmax(0.7 * jnp.where(seen, scores, -jnp.inf), -1)
    return jnp.einsum("hij,jd->ihd", seen[..., 1:], x)


def zero_attention(x):
    """A column of zeros by a pad."""
    i, j = numbers(x)
    padded = jnp.pad(jnp.where((i >= j) & (i - j <= 3), x @ x.T, -jnp.inf), ((0, 0), (0, 1)))
    return jax.nn.softmax(padded)[:, : x.shape[0]] @ x


def of_each_query(x):
    """Attention of one query, for all queries."""

    def attend(i, query):
        seen = jnp.abs(jnp.arange(x.shape[0]) - i) <= 3
        return jax.nn.softmax(jnp.where(seen, x @ query, -jnp.inf)) @ x

    return jax.vmap(attend)(jnp.arange(x.shape[0]), x)


def rows_from_an_offset(x):
    """Rows of a table from a position that the first frame decides."""
    offset = 3 * (x[0, 0] > 0).astype(int)
    return (
        x
        + jnp.asarray(TABLE, x.dtype)[offset + jnp.arange(x.shape[0])]
        + jnp.asarray(TABLE, x.dtype)[3 : 3 + x.shape[0]]
    )


SHORT = {"constraints": ["S <= 40"]}
CASES = {
    "vectors of distances": (shaw, {}),
    "vectors of distances, heads": (shaw_of_heads, {}),
    "two indices": (column_of_a_table, {}),
    "a stack of heads": (heads_in_a_stack, {}),
    "a table around its middle": (from_the_middle, SHORT),
    "a conformer": (conformer, {"constraints": ["S >= 1"]}),
    "Transformer-XL": (transformer_xl, {}),
    "a table by index": (rows_by_index, {}),
    "a sink": (sink, {}),
    "sinks of heads": (sinks_of_heads, {}),
    "a column of zeros": (zero_attention, {}),
    "a map over queries": (of_each_query, {}),
    "a table from an offset": (rows_from_an_offset, {"constraints": ["S >= 1", "S <= 40"]}),
}
#: Cases with several rules each.
COMBINED = ["a conformer", "sinks of heads", "Transformer-XL", "a table by index"]


@pytest.mark.parametrize("name", of_tiers(CASES, COMBINED[:2], COMBINED))
def test_values(name):
    function, options = CASES[name]
    lengths = (1 if "S >= 1" in options.get("constraints", ()) else 0, 1, 5, 23)
    check_values(function, (20, 3), lengths=lengths, chunkings=((1,), (5, 1)), **options)


@pytest.mark.parametrize("name", of_tiers(CASES, (), COMBINED[:1]))
def test_gradients(name):
    function, options = CASES[name]
    check_gradients(function, (12, 3), length=7, **options)


@pytest.mark.parametrize("name", of_tiers(CASES, (), COMBINED[:1]))
def test_exports(name, tmp_path):
    """Steps and flush as ONNX files, in ONNX Runtime."""
    function, options = CASES[name]
    of_file = lambda arrays: {"y": function(arrays["x"])}  # noqa: E731
    example = {"x": jax.ShapeDtypeStruct((12, 3), np.float32)}
    streamed = jaxrnn.stream(of_file, example, axes=0, pulse=2, **options)
    jaxrnn.export_onnx(streamed, None, tmp_path / "step.onnx", flush=tmp_path / "flush.onnx")
    report = verify_export(streamed, None, tmp_path / "step.onnx", offline=of_file)
    assert report.ok
    assert report.flushed


REFUSED = {
    "rows behind the query": (lambda x: transformer_xl(x, 1), "later frames are those of other queries; mask the keys"),
    "rows from the end": (lambda x: x + jnp.asarray(TABLE)[79 - x.shape[0] :], r"starts at frame - S \+ 79"),
    "positions from the end": (
        lambda x: x * jnp.arange(x.shape[0])[::-1, None].astype(x.dtype),
        r"it counts frames from the end.*count from the start, such as jnp\.arange\(x\.shape\[0\]\)",
    ),
    "frames from the end": (lambda x: x[x.shape[0] - 1 - jnp.arange(x.shape[0])], "it reverses time"),
    "a slice from an offset": (
        lambda x: x + lax.dynamic_slice_in_dim(jnp.asarray(TABLE), x[0, 0].astype(int), x.shape[0]),
        r"index the table with offset \+ jnp\.arange\(x\.shape\[0\]\)",
    ),
    "a sink that stays": (
        lambda x: jnp.pad(weights(x, x @ x.T), ((0, 0), (0, 1))) @ jnp.pad(x, ((0, 1), (0, 0))),
        "it joins pairs of frames along time; join numbers of each query",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    example = jax.ShapeDtypeStruct((20, 3), np.float32)
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, example, axes=0, constraints=["S <= 70"])


def bounded(x):
    if x.shape[0] > 512:
        raise ValueError("too long")
    return x


#: What tracing refuses: the function, and the end of the message.
TRACED = {
    "a bound in the code": (bounded, r"\(test_stream_positions.*512 frames or fewer.*`constraints=\['S <= 512'\]`"),
    "parameters": (lambda params, x: params * x, "argument: 'x'; give `params=` for a function of params and x$"),
    "segments": (
        lambda x: jax.ops.segment_sum(x, jnp.arange(x.shape[0]) // 4, x.shape[0] // 4),
        "jax.ops.segment_sum in test_stream_positions.*reshape",
    ),
    "a repeated frame": (
        lambda x: x[lax.cummax(jnp.where(x[:, 0] > 0, jnp.arange(x.shape[0]), 0))],
        "to repeat the last valid frame.*jaxrnn.signal.associative_scan",
    ),
    "a condition on data": (lambda x: x if x[0, 0] > 0 else -x, r"test_stream_positions.*traced array"),
}


@pytest.mark.parametrize("name", TRACED)
def test_messages_of_tracing(name):
    """One line, without links to the pages of JAX."""
    function, words = TRACED[name]
    with pytest.raises(jaxrnn.StreamError, match=words) as caught:
        jaxrnn.stream(function, jax.ShapeDtypeStruct((20, 3), np.float32), axes=0)
    said = str(caught.value).partition("\n-----")[0]  # JAX adds a note about its own frames
    assert "\n" not in said
    assert "docs.jax.dev" not in said


def test_frames_of_static_indices_on_two_axes():
    """The carry of a layer of Flax at constant lengths, ``carries[lengths - 1, rows]``; and a fill by a scan."""

    def carries(x):
        return jnp.stack([x, 2 * x], 1)[jnp.array([4, 2]), jnp.arange(2)], jnp.cumsum(x, 0)

    def filled(x):
        keep = lambda a, b: (jnp.where(b[1], b[0], a[0]), a[1] | b[1])  # noqa: E731
        return jaxrnn.signal.associative_scan(keep, (x, x[:, :1] > 0))[0]

    check_values(carries, (8, 3))
    check_values(filled, (8, 3))
