"""Masks of attention as packages spell them: a batch of 2, 4 heads, positions of many types, tables and added masks."""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from refusals import check_refused
from streaming_verifier import check_values
from tiers import of_tiers

import jaxrnn

HEADS, WIDTH = 4, 8
W = [jnp.asarray(np.random.default_rng(k).normal(size=(WIDTH, WIDTH)) / 3, jnp.float32) for k in range(3)]
LOWEST = float(jnp.finfo(jnp.float32).min)


def numbers(x, dtype=jnp.int32):
    """The positions of a batch, ``[batch, time]``."""
    return jnp.broadcast_to(jnp.arange(x.shape[1], dtype=dtype), x.shape[:2])


def by_positions(p, q=None):
    """A mask of positions ``[batch, time]``, with an axis for the heads: `p` of queries, `q` of keys."""
    return p[:, None, :, None] >= (p if q is None else q)[:, None, None, :]


def square(x, value=1.0, dtype=jnp.float32):
    return jnp.full((x.shape[1], x.shape[1]), value, dtype)


def valid(x):
    """Frames that count; the first frame does, so that each query sees a key."""
    return (x[..., 0] > -1) | (jnp.arange(x.shape[1]) == 0)


def attend(x, mask=None, bias=0.0, fill=-1e9):
    q, k, v = (jnp.reshape(x @ w, (*x.shape[:2], HEADS, -1)) for w in W)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias
    scores = scores if mask is None else jnp.where(mask, scores, fill)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)


def by_flax(x, mask):
    q, k, v = (jnp.reshape(x @ w, (*x.shape[:2], HEADS, -1)) for w in W)
    return nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape)


def padded(x):
    """A causal mask of zeros and lowest numbers, to which a mask of padding is added and compared with 0."""
    later = jnp.arange(x.shape[1]) > jnp.arange(x.shape[1])[:, None]
    mask = jnp.broadcast_to(
        (square(x, LOWEST) * later.astype(x.dtype))[None, None], (x.shape[0], 1, x.shape[1], x.shape[1])
    )
    return jnp.where(mask + valid(x).astype(jnp.float32)[:, None, None] == 0, LOWEST, mask)


def by_four_maps(x):
    """A mask by a function of batch, head, query and key under four times `vmap`."""
    seen = lambda b, h, q, k: k <= q  # noqa: E731
    for place in range(4):
        seen = jax.vmap(seen, [0 if each == 3 - place else None for each in range(4)])
    n = jnp.arange(x.shape[1])
    return seen(jnp.arange(x.shape[0]), jnp.arange(HEADS), n, n)


def gathered(x):
    return jnp.take_along_axis(numbers(x), numbers(x), 1)


TRIANGLE = np.tril(np.ones((1, 1, 64, 64), bool))

#: Masks of all earlier frames.
CAUSAL = {
    "make_causal_mask of Flax": lambda x: by_flax(x, nn.make_causal_mask(x[..., 0])),
    "make_causal_mask of nnx, in bfloat16": lambda x: by_flax(x, nnx.make_causal_mask(x[..., 0], dtype=jnp.bfloat16)),
    "combine_masks": lambda x: by_flax(
        x,
        nn.combine_masks(
            nn.make_attention_mask(jnp.ones(x.shape[:2], bool), valid(x), dtype=jnp.int8),
            nn.make_causal_mask(x[..., 0], dtype=jnp.int8),
        ),
    ),
    "make_attention_mask": lambda x: by_flax(x, nn.make_attention_mask(numbers(x), numbers(x), jnp.greater_equal)),
    "tri": lambda x: attend(x, jnp.tri(x.shape[1], dtype=bool)),
    "tril of Haiku": lambda x: attend(
        x, valid(x)[:, None, None].astype(x.dtype) * jnp.tril(square(x)[None, None]) > 0, fill=-1e30
    ),
    "added": lambda x: attend(x, bias=jnp.where(jnp.tri(x.shape[1], dtype=bool), 0, -jnp.inf)),
    "triu of infinities": lambda x: attend(x, bias=jnp.triu(square(x, -jnp.inf), 1)),
    "Transformers, padded": lambda x: attend(x, bias=padded(x)),
    "Transformers, four maps": lambda x: attend(x, by_four_maps(x)),
    "Keras, counted": lambda x: attend(x, jnp.cumsum(square(x, 1, int), 0) >= jnp.cumsum(square(x, 1, int), 1)),
    "Keras, tiled": lambda x: attend(x, jnp.tile(jnp.tri(x.shape[1], dtype=bool)[None], (2, 1, 1))[:, None]),
    "Keras, the smaller": lambda x: attend(
        x, jnp.minimum(valid(x)[:, None, None].astype(jnp.int32), jnp.tri(x.shape[1], dtype=jnp.int32)).astype(bool)
    ),
    "stacked": lambda x: attend(x, by_positions(jnp.stack([jnp.arange(x.shape[1])] * 2))),
    "tiled": lambda x: attend(x, by_positions(jnp.tile(jnp.arange(x.shape[1])[None], (2, 1)))),
    "other offsets": lambda x: attend(x, by_positions(numbers(x) + jnp.array([[2], [5]]))),
    "joined, other offsets": lambda x: attend(
        x, by_positions(jnp.concatenate([numbers(x)[:1], numbers(x)[:1] + 7]))
    ),
    "counted in float32": lambda x: attend(x, by_positions(jnp.cumsum(jnp.ones(x.shape[:2]), 1))),
    "of one stream": lambda x: attend(x, by_positions(numbers(x) + jnp.array([[2], [5]]))[1, 0]),
    "gathered along the batch": lambda x: attend(x, by_positions(numbers(x)[jnp.array([1, 0])])),
}  # fmt: skip

#: Masks that hold up to a length only: positions of few bits, and tables.
SHORT = {
    **{f"in {kind}": functools.partial(lambda x, kind: attend(x, by_positions(numbers(x, kind))), kind=kind)
       for kind in ("int8", "uint8", "int16", "float16", "bfloat16")},
    "sums in int8": lambda x: attend(x, by_positions(*[numbers(x, "int8") + jnp.int8(3)] * 2)),
    "positions of a table": lambda x: attend(x, by_positions(jnp.arange(64)[numbers(x)])),
    "a table of positions": lambda x: attend(x, by_positions(jnp.tile(jnp.arange(64), (2, 1))[:, : x.shape[1]])),
    "a table of a mask": lambda x: attend(x, jnp.asarray(TRIANGLE)[:, :, : x.shape[1], : x.shape[1]]),
    "a slice of a mask": lambda x: attend(
        x, lax.dynamic_slice(jnp.asarray(TRIANGLE), (0, 0, 0, 0), (1, 1, x.shape[1], x.shape[1]))
    ),
}  # fmt: skip
EXAMPLE = jax.ShapeDtypeStruct((2, 12, WIDTH), np.float32)
FRAMEWORKS = ["tril of Haiku", "make_causal_mask of Flax", "Transformers, four maps", "Keras, counted"]


@pytest.mark.parametrize(
    "name", of_tiers(CAUSAL, ["Transformers, padded", "Keras, the smaller", "other offsets"], FRAMEWORKS)
)
def test_causal_masks(name):
    """Equal to the function itself on recordings that are not longer than `past`."""
    check_values(CAUSAL[name], EXAMPLE.shape, 1, past=24, reference=CAUSAL[name], chunkings=((1,), (3, 1)))


@pytest.mark.parametrize(
    "name", of_tiers(SHORT, ["in int8", "a table of positions", "a table of a mask"], ["in float16"])
)
def test_masks_that_hold_up_to_a_length(name):
    """They stream under a constraint, and without one they are refused, because longer recordings differ."""
    check_refused(
        jaxrnn.StreamError, "S <= |64 frames|two frames", jaxrnn.stream, SHORT[name], EXAMPLE, axes=1, past=24
    )
    options = {"past": 24, "constraints": ("S <= 64",), "reference": SHORT[name]}
    check_values(SHORT[name], EXAMPLE.shape, 1, chunkings=((1,), (3, 1)), lengths=(1, 11), **options)


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (lambda x: attend(x, by_positions(numbers(x, "int8"))), 129),
        (lambda x: attend(x, by_positions(2 * numbers(x, "int8"))), 65),
        (lambda x: attend(x, by_positions(numbers(x, "bfloat16"))), 258),
        (lambda x: attend(x, by_positions(numbers(x, "uint8") - jnp.uint8(1))), 8),
        (lambda x: attend(x, jnp.asarray(TRIANGLE[..., ::-1, :])[:, :, : x.shape[1], : x.shape[1]]), 64),
        (lambda x: attend(x, by_positions((jnp.arange(64) // 3 * 2)[numbers(x)])), 64),
    ],
    ids=["int8", "twice, int8", "bfloat16", "below 0", "another table of a mask", "another table"],
)
def test_numbers_that_a_type_does_not_hold_stay_refused(function, most):
    check_refused(jaxrnn.StreamError, "reduce_max|two axes", jaxrnn.stream, function, EXAMPLE, axes=1, past=8,
                  constraints=[f"S <= {most}"])  # fmt: skip


def test_frames_that_are_tiled():
    """Frames repeated for all queries or keys are a broadcast, as `Tensor.repeat` of xLSTM writes it."""

    def tiled(x):
        n = jnp.arange(x.shape[0])
        seen = (n[:, None] >= n) & (n[:, None] - n < 4)
        differences = jnp.tile(x[None], (x.shape[0], 1)) - jnp.tile(x[:, None], (1, x.shape[0]))
        return jnp.where(seen, differences, 0).sum(1)

    check_values(tiled, (20,), lengths=(1, 11), chunkings=((1,), (3, 1)))


def test_columns_of_a_constant_do_not_count_frames():
    """Columns that differ by 1 in each frame are no positions."""
    columns = lambda x: jnp.broadcast_to(jnp.arange(4), (x.shape[0], 4))[:, 1:3]  # noqa: E731
    check_values(lambda x: x + (columns(x) == jnp.arange(x.shape[0])[:, None]).astype(x.dtype), (20, 2))
    read = lambda x: x[jnp.minimum(columns(x)[:, 0], x.shape[0] - 1)]  # noqa: E731
    check_refused(jaxrnn.StreamError, "'gather'", jaxrnn.stream, read, jnp.zeros((9, 2)), axes=0)


def compared(seen, then):
    """A function of frames and of a mask of their numbers."""
    return lambda x: then(x, seen(*jnp.meshgrid(*[jnp.arange(x.shape[0])] * 2, indexing="ij")))


@pytest.mark.parametrize("over", of_tiers([0, 1], [1], []))
def test_tests_and_extremes_over_keys_of_known_numbers(over):
    """One key stands for all keys outside of the mask; a query without a key, and first frames, are exact."""
    options = {"lengths": (1, 3, 7), "chunkings": ((1,), (3, 1))}
    answers = lambda x, mask: x + jnp.stack([jnp.any(mask, over), jnp.all(mask, over)], 1).astype(x.dtype)  # noqa: E731
    most = lambda x, mask: jnp.max(jnp.where(mask, x[:, 0], 1.0), over)  # noqa: E731
    least = lambda x, mask: jnp.min(jnp.where(mask, x[:, 1], 0.5), over)  # noqa: E731
    near = [lambda i, j: i - j == 3, lambda i, j: j - i == 2]
    far = [lambda i, j: abs(i - j) != 2, lambda i, j: j < i - 1, lambda i, j: j <= i, lambda i, j: j > i]
    for seen in [*near, *far]:
        check_values(compared(seen, answers), (12, 2), **options)
    for seen in near:
        check_values(compared(seen, lambda x, mask: most(x, mask) + least(x, mask)), (12, 2), **options)
    check_refused(jaxrnn.StreamError, "'reduce_max'", jaxrnn.stream, compared(far[2], most), jnp.zeros((9, 2)), axes=0)


def test_queries_without_a_key_get_zeros():
    """A query that sees itself sees a key, so the test of queries without a key does not hide the mask."""

    def attend(x, mask):
        scores = jnp.where(mask, x @ x.T, -jnp.inf)
        bias = jnp.where(mask, 0, -jnp.inf)
        blind = jnp.all(bias == -jnp.inf, -1, keepdims=True)
        return jnp.where(blind, 0, jax.nn.softmax(jnp.where(blind, 0, scores + bias), -1)) @ x

    causal = compared(lambda i, j: j <= i, attend)
    check_values(causal, (12, 2), past=24, reference=causal)
    check_values(compared(lambda i, j: (j <= i) & (j > i - 4), attend), (12, 2))


def test_infinities_of_masks_that_become_nan():
    """A product of 0 and infinity is NaN for each pair, so nothing is known of the pairs; no warning is shown."""
    near = compared(lambda i, j: abs(i - j) < 2, lambda x, mask: jnp.where(mask, 0.0, jnp.inf) - jnp.inf)
    function = lambda x: jnp.sum(jnp.where(near(x) == 0, x[:, 0], 1.0), 1)  # noqa: E731
    check_refused(jaxrnn.StreamError, "depends on all", jaxrnn.stream, function, jnp.zeros((9, 2)), axes=0)
