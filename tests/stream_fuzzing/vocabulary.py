"""What the programs are written with, besides JAX itself: layers over frames ``[time, ...]``.

All numbers are whole and small, so that arithmetic is exact and a stream must give the very bits of the function.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from convolutions import convolve
from jax import lax

import jaxrnn

#: Nothing is larger where a line begins; larger values are clipped to it first.
SMALL = 40

#: The types of casts. Floats of 8 bits only pass: not all operations exist for these.
WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
FLOATS = ("float16", "bfloat16", "float32")
TYPES = ("bool", *WHOLE, *FLOATS, "float8_e4m3fn", "float8_e5m2")
#: The types that do not hold the numbers of 300 frames.
NARROW = ("int8", "uint8", "bfloat16", "float8_e4m3fn", "float8_e5m2")

TABLE = jnp.asarray(np.random.default_rng(0).integers(-4, 5, (7, 2)), jnp.float32)


def small(x):
    """Values that another operation may make larger."""
    return jnp.clip(x, 0 if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else -SMALL, SMALL)


def taps(seed, *shape):
    """Weights."""
    return jnp.asarray(np.random.default_rng(seed).integers(-1, 3, shape), jnp.float32)


def conv(x, seed, length, out, pad, stride=1, dilation=1, spacing=1):
    """A convolution over time."""
    return convolve(x, taps(seed, length, x.shape[1], out), pad, stride, dilation, spacing)


def depthwise(x, seed, length, pad):
    """A convolution over time of each channel alone."""
    return convolve(x, taps(seed, length, 1, x.shape[1]), pad, groups=x.shape[1])


def pool(x, join, window, stride, pad):
    """The largest, smallest or summed elements of windows over time."""
    limits = (-jnp.inf, jnp.inf)
    if x.dtype.itemsize == 1 or not jnp.issubdtype(x.dtype, jnp.inexact):  # some floats of 8 bits have no infinity
        info = (jnp.finfo if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo)(x.dtype)
        limits = info.min, info.max
    initial = {lax.max: limits[0], lax.min: limits[1], lax.add: 0}[join]
    rest = x.ndim - 1
    return lax.reduce_window(
        x, np.asarray(initial, x.dtype), join, (window, *(1,) * rest), (stride, *(1,) * rest), [pad, *[(0, 0)] * rest]
    )


def ahead(x, count, value=0):
    """The frames so many later, and constant ones behind the end."""
    return jnp.concatenate([x[count:], jnp.full((count, *x.shape[1:]), value, x.dtype)])


def delta(x, count, mode):
    """The difference of frames so many later and so many earlier, of an array that is padded at its ends."""
    wide = jnp.pad(x, ((count, count), *[(0, 0)] * (x.ndim - 1)), mode=mode)
    return wide[2 * count : 2 * count + x.shape[0]] - wide[: x.shape[0]]


def before(x, count, value=0):
    """The frames so many earlier."""
    return jnp.pad(x, ((count, 0), *[(0, 0)] * (x.ndim - 1)), constant_values=value)[: x.shape[0]]


def leaky(x):
    """A recurrence over time."""
    return lax.scan(lambda c, frame: (jnp.clip(c + frame, -5, 5),) * 2, jnp.ones(x.shape[1:], x.dtype), x)


def resetting(x):
    """A recurrence over time whose decay is 0 in some frames."""
    return lax.scan(lambda c, frame: (small(c * jnp.clip(frame, 0, 1) + frame),) * 2, jnp.ones(x.shape[1:], x.dtype), x)


def numbered(x, lag, loops):
    """A recurrence that reads and writes frames by their numbers."""

    def body(i, carry):
        h, y = carry
        h = jnp.clip(h + x[i] - x[jnp.maximum(i - lag, 0)], -5, 5)
        return h, y.at[i].set(h) if lag % 2 else lax.dynamic_update_slice_in_dim(y, h[None], i, 0)

    start = jnp.ones(x.shape[1:], x.dtype), jnp.full_like(x, 2)
    if loops == "for":
        return lax.fori_loop(0, x.shape[0], body, start)
    test = lambda carry: carry[0] < x.shape[0]  # noqa: E731
    return lax.while_loop(test, lambda carry: (carry[0] + 1, body(*carry)), (0, start))[1]


def sliding(x, length, loops):
    """Sums of windows that are read at the numbers of frames."""
    padded, numbers = jnp.pad(x, ((length - 1, 0), *[(0, 0)] * (x.ndim - 1))), jnp.arange(x.shape[0])
    window = lambda t: lax.dynamic_slice_in_dim(padded, t, length).sum(0, dtype=x.dtype)  # noqa: E731
    if loops == "vmap":
        return jax.vmap(window)(numbers)
    if loops == "map":
        return lax.map(window, numbers)
    scanned = lax.scan(lambda c, t: (small(c - window(t)),) * 2, jnp.ones(x.shape[1:], x.dtype), numbers)
    return scanned[1]


def linear(x, axis):
    """A linear recurrence whose factors are -1, 0 and 1, and their products."""

    def affine(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jaxrnn.signal.associative_scan(affine, (jnp.sign(x), x), axis=axis)


def overlapped(x, hop, surplus):
    """Frames of several elements, added where they overlap."""
    size = x.shape[1]
    zeros = jnp.zeros((x.shape[0] * hop + max(size - hop, 0) + surplus, *x.shape[2:]), x.dtype)
    return zeros.at[jnp.arange(x.shape[0])[:, None] * hop + jnp.arange(size)].add(x)


def shifted(x, hop):
    """Frames of several elements, added where they overlap, by a reshape that shifts rows."""
    (frames, size), rows = x.shape, -(-x.shape[1] // hop)
    x = jnp.pad(x, ((0, rows), (0, rows * hop - size))).reshape(frames + rows, rows, hop)
    x = jnp.swapaxes(x, 0, 1).reshape((frames + rows) * rows, hop)[: (frames + rows - 1) * rows]
    return x.reshape(rows, frames + rows - 1, hop).sum(0, dtype=x.dtype).reshape(-1)[: hop * (frames - 1) + size]


def filtered(x, seed, sections):
    """A filter whose poles are 0 and 1."""
    b, a = taps(seed, 3), jnp.array([1.0, -1.0, 0.0])
    return jaxrnn.signal.sosfilt(jnp.concatenate([b, a])[None], x, 0) if sections else jaxrnn.signal.lfilter(b, a, x, 0)


def solved(x, seed):
    """A triangular system with whole numbers in each frame, whose matrix is constant."""
    matrix = taps(seed, x.shape[1], x.shape[1])
    return jax.scipy.linalg.solve_triangular(matrix, x.T, lower=True, unit_diagonal=True).T


def attended(x, y, seen, join):
    """What each frame reads of the frames that a mask shows: a sum of products, or the largest sum.

    ``seen`` is a function of the numbers of a query and a key. ``join`` is ``sum``, ``max`` or ``any``; a maximum of a
    column that is joined to the scores as well, ``sink``; of scores to which the mask is added, ``added``; or a maximum
    of scores with a part for each distance, of vectors of distances (``vectors``) or of rows that are shifted
    (``rows``).
    """
    n = jnp.arange(x.shape[0])
    mask, x, y = seen(n[:, None], n), jnp.clip(x, -2, 2), jnp.clip(y, -2, 2)
    axes = tuple(range(1, x.ndim))
    scores = jnp.tensordot(x, y, (axes, axes))
    if join == "sum":
        return jnp.tensordot(jnp.where(mask, scores, 0), y, 1)
    if join == "any":
        return (mask & (scores > 1)).any(1)
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    table = jnp.asarray(np.arange(7 * flat.shape[1]).reshape(7, -1) % 3 - 1, x.dtype)
    if join == "vectors":
        scores += jnp.einsum("id,ijd->ij", flat, table[jnp.clip(n - n[:, None], -3, 3) + 3])
    if join == "rows":
        products = jnp.pad(flat @ table[jnp.clip(x.shape[0] - 1 - n, 0, 6)].T, ((0, 0), (1, 0)))
        scores += products.reshape(x.shape[0] + 1, x.shape[0])[1:]
    if join == "added":
        return jnp.max(scores + jnp.where(mask, 0, -jnp.inf).astype(scores.dtype), 1, initial=-50)
    if join == "sink":
        return jnp.max(jnp.concatenate([flat[:, :1], jnp.where(mask, scores, -jnp.inf)], 1), 1)
    return jnp.max(jnp.where(mask, scores, -jnp.inf), 1, initial=-50)


def paired(x, y):
    """A recurrence over two streams, with two carries of different kind."""

    def body(carry, frames):
        count, held = carry
        one, other = frames
        held = jnp.where(count % 3 == 1, small(one - held), other)
        return (count + 1, held), (held * 2, count)

    return lax.scan(body, (jnp.int32(2), jnp.zeros(x.shape[1:], x.dtype)), (x, y))


def across(x):
    """A recurrence over channels, in which time is the batch."""
    return lax.scan(lambda c, f: (small(c - f),) * 2, jnp.zeros(x.shape[0], x.dtype), x.T)[1].T


def remembering(x):
    """A loop over channels whose body remembers past frames."""
    return lax.scan(lambda c, f: (small(c + leaky(f)[1]), c), jnp.ones(x.shape[0], x.dtype), x.T)[1].T


def layered(x, pad):
    """A loop over layers, each a convolution over time, that also sees what the first one saw."""
    seeds = jnp.stack([taps(seed, 3, x.shape[1], x.shape[1]) for seed in (1, 2)])

    def body(c, kernel):
        return small(convolve(c, kernel, pad) + c - x), None

    return lax.scan(body, x, seeds)[0]


def counted(x):
    """A loop whose carry counts frames at first and something else later."""

    def body(_, carry):
        place, value = carry
        return place - 1, small(jnp.where((place >= 0)[:, None], value + x, 2 * value))

    return lax.fori_loop(0, 3, body, (jnp.arange(x.shape[0]), x))[1]


def looped(x, kind):
    """The frames up to the length, which a cast may change."""
    limit = jnp.asarray(x.shape[0]).astype(kind).astype(jnp.int32)
    return lax.fori_loop(0, limit, lambda i, c: small(c - x[i]), jnp.zeros(x.shape[1:], x.dtype))


@jax.jit
def differences(x):
    """An inner function, traced once however often it is used."""
    return x[1:] - x[:-1]


@jax.jit
def joined(x, y):
    """An inner function of two streams, one of which looks ahead."""
    return x + ahead(y, 1), y * 2


def either(flag, x):
    """A choice between branches of different delay."""
    return lax.cond(flag, lambda v: ahead(v, 1), lambda v: before(v, 2) + v, x)


def repeated(x):
    """A loop of unknown length that time passes through."""
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2 - 1), (jnp.int32(1), x))[1]


# -- of all frames, for bounded futures: values are not whole numbers


def mixed(x, seed, out=2):
    """A product with weights in each frame."""
    size = math.prod(x.shape[1:])
    weights = np.random.default_rng(seed).normal(size=(size, out)) / np.sqrt(size)
    return x.reshape(x.shape[0], size) @ jnp.asarray(weights, x.dtype)


def remembered(x, reverse=False):
    """The states and the last state of a smooth recurrence."""
    step = lambda c, f: (jnp.tanh(0.6 * c + 0.5 * f),) * 2  # noqa: E731
    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=reverse)


def turned(x, seed):
    """A recurrence between flips, behind a product."""
    return jnp.flip(remembered(jax.nn.relu(mixed(jnp.flip(x, 0), seed)))[1], 0)


def normed(x, axes=0):
    """A norm over time, by itself or with all elements of a frame."""
    return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + 0.1)


def gated(x, seed):
    """Squeeze and excitation."""
    flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    return flat * jax.nn.sigmoid(mixed(flat.mean(0)[None], seed, flat.shape[1]))[0]


def correlated(x, seed):
    """Products of frames with a matrix of all frames."""
    x = mixed(x, seed)
    return x @ (x.T @ x) / (1 + jnp.abs(x).sum())


def seen_by_all(x, seed, heads=1, mask="all"):
    """Attention to all frames, or to all earlier ones, or to frames that are not small."""
    queries, keys, values = (mixed(x, seed + place, 2 * heads).reshape(-1, heads, 2) for place in range(3))
    scores, n = jnp.einsum("qhd,khd->hqk", queries, keys), jnp.arange(x.shape[0])
    if mask != "all":
        seen = n[:, None] >= n if mask == "causal" else (values[:, 0, 0] > -1)[None] | (n[:, None] == n)
        scores = jnp.where(seen, scores, -jnp.inf if mask == "causal" else -1e9)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, -1), values).reshape(-1, 2 * heads)


def in_layers(x, seed, kind):
    """A statistic, recurrence or attention in a loop over layers, a branch, a checkpoint or a function with a rule."""
    each = {"norm": normed, "back": lambda x: remembered(x, True)[1], "all": lambda x: seen_by_all(x, seed)}
    inner = each[kind.split("/")[1]]
    layer = lambda x: inner(mixed(x, seed))  # noqa: E731
    x = mixed(x, seed + 1)
    if kind.startswith("scan"):
        return lax.scan(lambda x, scale: (layer(x) * scale, None), x, jnp.asarray([1, 0.5], x.dtype))[0]
    if kind.startswith("cond"):
        return lax.cond(jnp.array(1) > 0, layer, lambda x: x, x)
    if kind.startswith("checkpoint"):
        return jax.checkpoint(layer)(x)
    ruled = jax.custom_vjp(layer)
    ruled.defvjp(lambda x: (layer(x), None), lambda _, g: (g,))
    return ruled(x)
