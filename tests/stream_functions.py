"""Functions over a whole recording ``[time, 3]``, by name, that stream: one for each rule and each trap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convolutions import convolve
from jax import lax

import jaxrnn

_RNG = np.random.default_rng(1)
KERNEL = _RNG.normal(size=(3, 3, 3)) * 0.5
WIDE = _RNG.normal(size=(5, 3, 4)) * 0.5
TABLE = _RNG.normal(size=(5, 2))


@dataclass(frozen=True)
class Case:
    """A function, and how to stream it."""

    function: Callable[[Any], Any]
    options: dict[str, Any] = field(default_factory=dict)
    gradients: bool = True


def conv(x, pad, stride=1, dilation=1, spacing=1, kernel=KERNEL):
    """A convolution over time."""
    return convolve(x, jnp.asarray(kernel, x.dtype), pad, stride, dilation, spacing)


def rnn(x):
    """A plain recurrence over time."""
    weight = 0.5 * jnp.eye(x.shape[-1], dtype=x.dtype) + 0.1
    initial = jnp.full(x.shape[-1], 0.3, x.dtype)

    def body(carry, frame):
        carry = jnp.tanh(carry @ weight + frame)
        return carry, carry

    return lax.scan(body, initial, x)[1]


def lstm(x):
    """An LSTM over time, with its final state as outputs too."""
    size = x.shape[-1]
    weight = jnp.asarray(np.random.default_rng(2).normal(size=(2 * size, 4 * size)) * 0.5, x.dtype)

    def body(carry, frame):
        h, c = carry
        i, f, g, o = jnp.split(jnp.concatenate([frame, h]) @ weight, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(body, (jnp.zeros(size, x.dtype),) * 2, x)


def cumulative_mean(x):
    """Positions in time, and a running sum."""
    return jnp.cumsum(x, 0) / (1 + jnp.arange(x.shape[0]))[:, None].astype(x.dtype)


def over_frequency(x):
    """A bidirectional recurrence inside every frame: time is its batch axis."""
    initial = jnp.zeros(x.shape[0], x.dtype)
    forward = lax.scan(lambda c, f: (jnp.tanh(0.5 * c + f),) * 2, initial, x.T)[1]
    backward = lax.scan(lambda c, f: (jnp.tanh(0.3 * c - f),) * 2, initial, x.T, reverse=True)[1]
    return (forward + 2 * backward).T


def recurrence_in_loop(x):
    """A loop over channels whose body remembers past frames."""
    return lax.scan(lambda c, f: (c + rnn(f[:, None])[:, 0], c), jnp.zeros(x.shape[0], x.dtype), x.T)[1].T


def layers(x, pad):
    """A loop over layers, each a convolution over time."""
    kernels = jnp.asarray(np.stack([KERNEL, 0.5 * KERNEL, -KERNEL]), x.dtype)
    return lax.scan(lambda c, kernel: (jnp.tanh(conv(c, pad, kernel=kernel)), None), x, kernels)[0]


@jax.custom_vjp
def half_gradient(x, weight):
    """A function whose gradient is not its derivative."""
    return x * weight


half_gradient.defvjp(lambda x, w: (x * w, (x, w)), lambda kept, ct: (0.5 * ct * kept[1], jnp.sum(ct * kept[0], 0)))


@jax.custom_jvp
def clipped(x):
    """Clipping that lets all gradients through."""
    return jnp.clip(x, -0.5, 0.5)


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0]))


def merged(x):
    """Time merged behind another axis, and split from it again, with branches of different delay in between."""
    ahead = conv(x, (0, 2))
    one = jnp.stack([x, 2 * x]).reshape(-1, 3)
    other = jnp.stack([ahead, ahead]).reshape(-1, 3)
    return (one * other).reshape(2, -1, 3).sum(0)


def over_channels_of_merged(x):
    """A recurrence over channels, whose carry begins with equal frames, of two streams behind each other."""
    both = jnp.stack([x, 2 * x]).reshape(-1, 3).T
    step = lambda carry, channel: (jnp.tanh(carry + channel),) * 2  # noqa: E731
    return lax.scan(step, jnp.zeros_like(both[0]), both)[1].T.reshape(2, -1, 3)


def slices(x):
    """Products of frames and the frames before them, as slices of one padded array."""
    frames = x.shape[0]
    before = jnp.pad(x, ((2, 0), (0, 0)))
    return before[:frames] * before[2 : 2 + frames] + before[1 : 1 + frames] * before[2 : 2 + frames]


def branch(x):
    """A choice that is the same in every step, of branches with different delay."""
    return lax.cond(KERNEL[0, 0, 0] > 0, lambda x: rnn(conv(x, (2, 0))), lambda x: conv(x, (0, 2)), x)


def pooled(x, window, stride, padding, initial=-jnp.inf, join=lax.max):
    """Pooling over time."""
    return lax.reduce_window(x, np.asarray(initial, x.dtype), join, (window, 1), (stride, 1), [padding, (0, 0)])


def spectrum(x):
    """Framing with overlap, and a Fourier transform inside each frame."""
    flat = jnp.pad(x.reshape(-1), (6, 0))
    frames = jnp.stack([flat[start : start + x.size][::3] for start in range(6)], -1)
    return jnp.abs(jnp.fft.rfft(frames * jnp.asarray(np.hanning(6), x.dtype), axis=-1) + 0.1)


def overlapping(x):
    """Overlapping frames, looked up by a table of numbers, as one writes a spectrogram."""
    numbers = 2 * jnp.arange((x.shape[0] - 4) // 2 + 1)[:, None] + jnp.arange(4)
    return jnp.abs(jnp.fft.rfft(x[numbers] * jnp.asarray(np.hanning(4), x.dtype)[:, None], axis=1) + 0.1)


def alternating(x):
    """Every third frame as it is, the others from a convolution that looks ahead."""
    third = (jnp.arange(x.shape[0]) % 3 == 1)[:, None]
    return jnp.where(third, x, -conv(x, (0, 1), kernel=KERNEL[:2]))


def frequency_convolution(x):
    """A convolution along another axis, with time among the batch."""
    kernel = jnp.asarray(KERNEL[:, :1], x.dtype)
    return lax.conv_general_dilated(x[:, None], kernel.transpose(2, 1, 0), (1,), [(1, 1)])


def depthwise(x):
    """A convolution over time of each channel alone."""
    return convolve(x, jnp.asarray(KERNEL[:, :1], x.dtype), (1, 1), groups=3)


def shifted_twice(x):
    """Frames before and behind where those are missing, shifted by equal pads that are written twice."""

    def moved(value, by):
        return lax.pad(value, jnp.zeros((), value.dtype), [(-by, by, 0), (0, 0, 0)])

    def near(by):
        return x if by == 0 else jnp.where(moved(jnp.ones(x.shape, bool), by), moved(x, by), near(by - np.sign(by)))

    return sum(near(by) for by in (-2, -1, 1, 2))


def one_buffer(x):
    """Frames of one delay and one array, of two lengths."""
    return x[1:] - x[:-1], jnp.einsum("tc,td->cd", x, jnp.concatenate([x[1:], jnp.ones((1, 3), x.dtype)]))


def late_and_different(x):
    """A stream beside its own future, and its differences, in one array."""
    return x + jnp.concatenate([x[1:], jnp.zeros((1, 3), x.dtype)]), jnp.diff(x, axis=0)


def beside_the_carry(x):
    """A loop whose body brings its carry, and what the carry was at first, together with the future of each."""

    def body(carry, weight):
        one, other = (y + weight * conv(y, (0, 1), kernel=KERNEL[:2]) for y in (carry, sums))
        return jnp.pad(one - other, ((1, 0), (0, 0)))[: x.shape[0]] + 0.5 * carry, None

    sums = jnp.cumsum(x, 0)
    return lax.scan(body, sums, jnp.arange(1, 3, dtype=x.dtype))[0]


def counted(x):
    """A loop whose carry counts frames at first, and something else later."""

    def body(_, carry):
        place, value = carry
        return place - 1, jnp.where((place >= 0)[:, None], value + x, 2 * value)

    return lax.fori_loop(0, 3, body, (jnp.arange(x.shape[0]), x))[1]


def by_number(x):
    """A recurrence that reads and writes frames by number, and adds into every second frame."""

    def body(i, carry):
        h, y, sums = carry
        h = jnp.tanh(0.5 * h + x[i])
        return h, y.at[i].set(h * x[jnp.maximum(i - 2, 0)]), lax.dynamic_update_index_in_dim(sums, h + x[0], i, 0)

    h, y, sums = lax.fori_loop(0, x.shape[0], body, (jnp.zeros(3, x.dtype), jnp.zeros_like(x), jnp.ones_like(x)))
    later = lax.fori_loop(0, x.shape[0] // 2, lambda i, y: y.at[:, 2 * i].add(x[2 * i]), x.T)
    shifted = lax.fori_loop(1, x.shape[0], lambda i, y: y.at[i].set(x[i - 1]), 2 * x)
    return h, y, sums, later, shifted


def while_frames_are_left(x):
    """A loop with a condition on the number of the frame, between other values."""

    def body(carry):
        scale, i, h, y = carry
        return scale, i + 1, scale * h + x[i], lax.dynamic_update_slice(y, (scale * h)[None], (i, 0))

    start = jnp.float32(0.5).astype(x.dtype), 0, jnp.zeros(3, x.dtype), jnp.zeros_like(x)
    return lax.while_loop(lambda carry: carry[1] < x.shape[0], body, start)[1:]


def over_numbers(x):
    """Scans and maps over the numbers of frames."""
    numbers, kernel = jnp.arange(x.shape[0]), jnp.asarray(KERNEL[:, 0], x.dtype)

    def body(h, t):
        window = lax.dynamic_slice_in_dim(jnp.pad(x, ((2, 0), (0, 0))), t, 3)
        return jnp.tanh(h + (window * kernel).sum(0)), (h, x[t] * t.astype(x.dtype))

    windows = jax.vmap(lambda t: lax.dynamic_slice(jnp.pad(x, ((1, 3), (0, 0))), (t, 1), (5, 2)), out_axes=1)(numbers)
    return lax.scan(body, jnp.zeros(3, x.dtype), numbers), lax.map(lambda t: x[t] - 1, numbers), windows


def of_a_length(x):
    """Scans with an explicit length, also without an array."""
    ramp = lax.scan(lambda c, _: (c + 1, c), jnp.zeros(3, x.dtype), None, length=x.shape[0])[1]
    return lax.scan(lambda c, frame: (0.5 * c + frame, c), jnp.zeros(3, x.dtype), x + ramp, length=x.shape[0])


def beside_first_frames(x):
    """What is known from some frame on, used in all of them: added, in front, multiplied, chosen by, and as a carry."""
    longer = jnp.concatenate([x[1:2] + x[0], x])
    product = jnp.einsum("tc,c->t", longer, conv(x, (0, 1), kernel=KERNEL[:2])[1])
    chosen = jnp.where(x[0, 0] > 0, x, -x)
    scanned = lax.scan(lambda carry, frame: (0.5 * carry + frame * 0.1, carry + frame), x[0], chosen[1:])
    return x - x[1], jnp.ones_like(x) / x[1], product, scanned


def last_frames(x):
    """Masks of the last frames, and what is known at the end in frames behind it."""
    places, frames = jnp.arange(x.shape[0]), x.shape[0]
    last = jnp.where((places == frames - 1)[:, None], 7.0, conv(x, (2, 0))).astype(x.dtype)
    return (places < frames - 2), (places >= frames - 3), jnp.concatenate([last, x.sum(0)[None]]), x[-2]


def constants_merged(x):
    """Constants and streams behind each other on one axis."""
    mixed = jnp.stack([jnp.zeros_like(x), x]) * jnp.stack([x, jnp.ones_like(x)])
    numbers = jnp.broadcast_to(jnp.arange(2, dtype=x.dtype)[:, None, None], (2, *x.shape))
    return (mixed.reshape(-1, 3) + numbers.reshape(-1, 3)).reshape(2, -1, 3)


def counted_by_sums(x):
    """Positions as a running sum of ones: as numbers, as indices, and in a mask of the last frames."""
    position, down = jnp.cumsum(jnp.ones(x.shape[0], jnp.int32)), jnp.cumsum(jnp.full(x.shape, -2, jnp.int8), 0)
    return x * position[:, None].astype(x.dtype), x[position - 1], position < x.shape[0], down


def wrapping(x):
    """Numbers of frames in a type that holds none below 0."""
    return rnn(jnp.pad(x, ((3, 0), (0, 0)))), lax.iota(jnp.uint8, x.shape[0]) - 1


def affine(first, second):
    """Of ``h -> a * h + b``, the first and then the second."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def linear_recurrence(x):
    """A linear recurrence whose factors depend on the data."""
    return jaxrnn.signal.associative_scan(affine, (jnp.tanh(x), x))[1]


def running_softmax(x):
    """The mean of all frames so far, weighted by a softmax over them, as a tree of elements."""

    def merge(one, other):
        most = jnp.maximum(one["most"], other["most"])
        weights = [jnp.exp(part["most"] - most) for part in (one, other)]
        sums = [weights[0] * one[name] + weights[1] * other[name] for name in ("sum", "weight")]
        return {"most": most, "sum": sums[0], "weight": sums[1]}

    y = conv(x, (1, 1))
    merged = jaxrnn.signal.associative_scan(merge, {"most": 3 * y, "sum": x, "weight": jnp.ones_like(x)})
    return merged["sum"] / merged["weight"]


def parallel_resistors(x):
    """An associative function that is not made for zeros, over frames that come late and in front of the first."""
    resistors = 0.5 + jnp.abs(jnp.pad(conv(x, (0, 2)), ((1, 0), (0, 0))))
    return jaxrnn.signal.associative_scan(lambda a, b: a * b / (a + b), resistors)


def of_bins(x):
    """Means and extremes of the frames in each bin, of a histogram of two axes, and of frames with look-ahead."""
    bins = (2 * jnp.abs(x[:, 0])).astype(np.int32)
    later = conv(x, (0, 2))[:, :2]
    counts = jnp.maximum(jnp.bincount(bins, length=4), 1).astype(x.dtype)
    pairs = jnp.zeros((4, 5), x.dtype).at[bins, (2 * jnp.abs(x[:, 1])).astype(np.int32)].add(later[:, 0])
    return jax.ops.segment_sum(later, bins, 4) / counts[:, None], jax.ops.segment_max(x, bins, 4), pairs


def overwritten(x):
    """A part of each frame is overwritten: by a stream with delay, and by a constant."""
    later = lax.dynamic_update_slice(x, conv(x, (0, 2))[:, :2], (0, 1))
    return lax.dynamic_update_slice(later, jnp.full((x.shape[0], 1), 2, x.dtype), (0, x.shape[1]))


def reduced(x):
    """Reductions with functions: in each frame, in each frame of two streams, and over time by known functions."""
    pair = lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])  # noqa: E731
    y, zero, one = conv(x, (1, 1)), x.dtype.type(0), x.dtype.type(1)
    return (
        lax.reduce(y, zero, lambda a, b: a + b + a * b, (1,)),
        lax.reduce(jnp.abs(y[:, :1]), zero, lambda a, b: jnp.maximum(b, 0), (1,)),
        lax.reduce((x, y), (one, zero), pair, (1,)),
        lax.reduce(y, zero, lambda a, b: b + a, (0,)),
        lax.reduce(y > 0, False, lambda a, b: a | b, (0,)),
    )


def derivatives_of_pooling(x):
    """Backward and forward derivatives of pooling inside of each frame."""
    pool = lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (1, 2), (1, 1), ((0, 0), (0, 1)))  # noqa: E731
    y = conv(x, (1, 1))
    return jax.vjp(pool, y)[1](x)[0], jax.jvp(pool, (x,), (y,))[1]


def ragged(x):
    """Groups of rows of each frame, each group with its matrix."""
    numbers = lax.RaggedDotDimensionNumbers((((2,), (1,)), ((), ())), (1,), (0,))
    rows = x[:, None] - conv(x, (1, 1))[:, :, None]
    product = lambda rows: lax.ragged_dot_general(rows, jnp.asarray(WIDE[:2], x.dtype), jnp.array([1, 2]), numbers)  # noqa: E731
    return jax.custom_batching.sequential_vmap(product)(rows)


def tridiagonal_systems(x):
    """A tridiagonal system in each frame."""
    y = conv(x, (1, 1))
    off = jnp.stack([0 * y[:, 0], y[:, 1], jnp.sin(y[:, 2])], 1)
    return lax.linalg.tridiagonal_solve(off, 4 + jnp.abs(off), off[:, ::-1], x[..., None])


def matrices(x):
    """Factors of a matrix in each frame."""
    y = conv(x, (1, 1))
    a = y[:, :, None] * y[:, None] + 5 * jnp.eye(3, dtype=x.dtype)
    factors, taus = lax.linalg.hessenberg(a)
    return lax.linalg.schur(a), lax.linalg.tridiagonal(a), lax.linalg.ormqr(factors, taus[..., :1], a), factors


def on_one_device(x):
    """Collective operations over one device, functions with derivative rules, and a loop."""

    def local(y):
        y = y * (1 + lax.axis_index("d").astype(y.dtype)) + lax.psum(y, "d") + lax.ppermute(jnp.sin(y), "d", [(0, 0)])
        y = y + lax.all_gather(y, "d", axis=1)[:, 0] + lax.psum_scatter(y, "d", scatter_dimension=1, tiled=True)
        rows = lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), jnp.zeros_like(y[:, 0]), y.T)[1]
        scale = lax.pcast(jnp.arange(1.0, 4.0, dtype=x.dtype), ("d",), to="varying")
        return half_gradient(jax.nn.relu(y), scale) + jnp.cumsum(rows.T, 0)

    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:1]), "d"), jax.sharding.PartitionSpec(None, "d")
    return jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec)(conv(x, (1, 1)))


def drawn(x):
    """Random numbers of the gamma distribution, with keys for each frame, or a key for all."""
    frame = lambda key, row: jax.random.gamma(key, 1 + jnp.abs(row), dtype=row.dtype)  # noqa: E731
    key, y = jax.random.key(0), conv(x, (1, 1))
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(x.shape[0]))
    return jax.vmap(frame)(keys, x[:, :1]), jax.vmap(frame, (None, 0))(key, y[:, :1])


CASES: dict[str, Case] = {
    "one buffer, frames of two lengths": Case(one_buffer, {"lengths": (2, 3, 5, 8)}),
    "bins": Case(of_bins),
    "one buffer, a stream and its differences": Case(late_and_different),
    "a loop beside what it began with": Case(beside_the_carry),
    "a loop that counts": Case(counted, gradients=False),
    "beside the first frames": Case(beside_first_frames, {"lengths": (2, 3, 5, 9), "constraints": ("S >= 2",)}),
    "the last frames": Case(last_frames, gradients=False),
    "positions as running sums": Case(counted_by_sums, gradients=False),
    "repeated edges": Case(lambda x: rnn(jnp.pad(x, ((2, 3), (0, 0)), mode="edge"))),
    "repeated edges in front, and of channels": Case(
        lambda x: conv(jnp.pad(x, ((2, 0), (1, 1)), mode="edge")[:, 1:4], (0, 0))
    ),
    "mirrored edges": Case(
        lambda x: rnn(jnp.pad(conv(x, (2, 0)), ((2, 3), (0, 0)), mode="reflect")),
        {"lengths": (4, 5, 9), "constraints": ("S >= 4",)},
    ),
    "mirrored edges with their frame": Case(
        lambda x: rnn(jnp.pad(conv(x, (0, 2)), ((2, 3), (0, 0)), mode="symmetric")),
        {"lengths": (3, 4, 9), "constraints": ("S >= 3",)},
    ),
    "mirrored edges, the sign too": Case(
        lambda x: jnp.pad(x, ((3, 1), (0, 0)), mode="reflect", reflect_type="odd"),
        {"lengths": (4, 5, 9), "constraints": ("S >= 4",)},
    ),
    "the first frames at the end": Case(
        lambda x: rnn(jnp.roll(conv(x, (1, 1)), -3, axis=0)), {"lengths": (4, 5, 9), "constraints": ("S >= 4",)}
    ),
    "the first frames at the end, by hand": Case(
        lambda x: x * jnp.concatenate([x[2:], x[:2]]), {"lengths": (2, 3, 9), "constraints": ("S >= 2",)}
    ),
    "copies of channels": Case(lambda x: jnp.tile(conv(x, (1, 1)), (1, 2))),
    "transposed, outputs that see no frame": Case(lambda x: conv(x, (1, 0), 2, 1, 2, kernel=KERNEL[:1])),
    "a recurrence of nothing": Case(
        lambda x: lax.scan(lambda c, _: (2 * c % 7, c), jnp.int32(1), x)[1], gradients=False
    ),
    "a count of frames": Case(
        lambda x: lax.scan(lambda c, _: (c + 1, None), jnp.int32(1), x[1::3])[0], gradients=False
    ),
    "frames by their numbers from the end": Case(
        lambda x: (x[jnp.array([-1, -3])], x[jnp.array([[-2], [-1]])], jnp.take(x, x.shape[0] - 1, 0)), gradients=False
    ),
    "constants merged into time": Case(constants_merged),
    "bits of all frames": Case(
        lambda x: jnp.bitwise_and.reduce(jnp.abs(x).astype(jnp.uint8) + 7, axis=0), gradients=False
    ),
    "a length of its own for very short recordings": Case(
        lambda x: jnp.diff(x, axis=0)[2:-1], {"lengths": (1, 2, 3, 4, 5, 8)}, gradients=False
    ),
    "numbers that wrap around": Case(wrapping, gradients=False),
    "equal pads twice": Case(shifted_twice),
    "linear recurrence": Case(lambda x: linear_recurrence(conv(x, (7, 5)))),
    "parallel resistors": Case(parallel_resistors),
    "running softmax": Case(running_softmax),
    "element-wise": Case(lambda x: jnp.tanh(2 * x) + 1),
    "recurrence": Case(rnn),
    "LSTM and its final state": Case(lstm),
    "causal": Case(lambda x: conv(x, (2, 0))),
    "valid": Case(lambda x: conv(x, (0, 0))),
    "centred": Case(lambda x: conv(x, (1, 1))),
    "look-ahead": Case(lambda x: conv(x, (0, 2))),
    "fixed frames in front of a look-ahead": Case(
        lambda x: jnp.concatenate([jnp.full((1, 3), 2.0, x.dtype), x + conv(x, (0, 2))])
    ),
    "many pads": Case(lambda x: conv(x, (7, 5))),
    "many pads into a recurrence": Case(lambda x: rnn(conv(x, (7, 5)))),
    "front pad into a recurrence": Case(lambda x: rnn(jnp.pad(x, ((5, 0), (0, 0)), constant_values=1.0))),
    "stride 2": Case(lambda x: conv(x, (2, 0), 2)),
    "stride 3, dilation 2": Case(lambda x: rnn(jax.nn.relu(conv(x, (4, 1), 3, 2)))),
    "wide kernel": Case(lambda x: conv(x, (2, 2), kernel=WIDE)),
    "strides of several layers": Case(lambda x: conv(rnn(conv(x, (2, 0), 2)), (1, 1), 3)),
    "transposed by 2": Case(lambda x: conv(x, (2, 2), spacing=2)),
    "transposed by 5, longer than its kernel": Case(lambda x: conv(x, (2, 3), spacing=5)),
    "transposed, cropped": Case(lambda x: conv(conv(x, (2, 0), 2), (2, -1), spacing=2)),
    "transposed with stride": Case(lambda x: conv(x, (2, 1), 2, 1, 3)),
    "cut, then padded": Case(lambda x: rnn(jnp.pad(x[:-3], ((0, 5), (0, 0)))), {"lengths": (3, 4, 5, 8, 13)}),
    "cut and pad with the end known late": Case(lambda x: jnp.pad(x[:-3], ((0, 5), (0, 0)), constant_values=2.0)),
    "interior pad": Case(lambda x: rnn(lax.pad(x, jnp.asarray(0.5, x.dtype), [(1, 2, 2), (0, 0, 0)]))),
    "first frames cut": Case(lambda x: x[2:]),
    "every second frame": Case(lambda x: x[::2]),
    "every third from the second on": Case(lambda x: x[1::3]),
    "differences": Case(lambda x: jnp.diff(x, axis=0)),
    "branches of different delay": Case(lambda x: x + conv(x, (0, 2)) + conv(x, (2, 0)) * rnn(x)),
    "slices of one buffer": Case(slices),
    "running mean": Case(cumulative_mean),
    "running maximum": Case(lambda x: lax.cummax(conv(x, (3, 3)), 0)),
    "running minimum": Case(lambda x: lax.cummin(conv(x, (1, 1)), 0)),
    "running product": Case(lambda x: jnp.cumprod(1.5 + 0 * x + jnp.tanh(conv(x, (1, 1))), 0)),
    "running logsumexp": Case(lambda x: lax.cumlogsumexp(conv(x, (3, 3)), 0)),
    "positions": Case(lambda x: conv(x * jnp.sin(jnp.arange(x.shape[0]))[:, None].astype(x.dtype), (0, 2))),
    "joined with constants": Case(
        lambda x: rnn(jnp.concatenate([jnp.ones((3, 3), x.dtype), x, jnp.full((2, 3), 4.0, x.dtype)]))
    ),
    "known at the end": Case(lambda x: (x.sum(0), x.mean(0), x.max(0), x.min(), conv(x, (1, 1)).sum(), x.T @ x)),
    "first and last frames": Case(lambda x: (x[0], x[-1], x[jnp.array([1, 0])], rnn(x)), {"lengths": (2, 3, 5, 9)}),
    "frames that a short recording does not have": Case(
        lambda x: (x[2], x[jnp.array([3, 0])], jnp.take(x, jnp.array([1, 4]), 0)), gradients=False
    ),
    "frames merge": Case(lambda x: rnn(x.reshape(-1, 2 * 3)), {"multiple": 2}),
    "frames split": Case(lambda x: conv(jnp.stack([x.reshape(-1)] * 3, 1), (1, 1))),
    "repeated": Case(lambda x: jnp.repeat(conv(x, (1, 1)), 2, axis=0)),
    "time behind another axis": Case(merged),
    "a recurrence over channels, of merged streams": Case(over_channels_of_merged),
    "layer norm": Case(lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    "softmax of a frame": Case(lambda x: jax.nn.softmax(conv(x, (1, 1)), -1)),
    "log of what may be absent": Case(lambda x: jnp.log(jnp.abs(conv(x, (0, 2)))) / jnp.sqrt(jnp.abs(conv(x, (1, 1))))),
    "recurrence on logs": Case(lambda x: rnn(jnp.log(jnp.abs(conv(x, (0, 2))) + 1e-3))),
    "over frequency": Case(over_frequency),
    "recurrence in a loop": Case(recurrence_in_loop),
    "causal layers in a loop": Case(lambda x: layers(x, (2, 0))),
    "layers with look-ahead in a loop": Case(lambda x: layers(x, (1, 1))),
    "checkpointed": Case(lambda x: jax.checkpoint(lambda x: rnn(conv(x, (1, 1))))(x)),
    "activations": Case(lambda x: jax.nn.relu(conv(x, (1, 1))) + jax.nn.gelu(conv(x, (2, 0))) + jax.nn.silu(x)),
    "a gradient rule of its own": Case(lambda x: half_gradient(conv(x, (1, 1)), jnp.arange(1.0, 4.0, dtype=x.dtype))),
    "a forward rule of its own": Case(lambda x: clipped(conv(x, (1, 1)))),
    "counted loop": Case(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) * 1.5, conv(x, (1, 1)))),
    "loop with a condition": Case(
        lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, conv(x, (1, 1))))[1],
        gradients=False,
    ),
    "frames by number": Case(by_number, {"multiple": 2}),
    "while frames are left": Case(while_frames_are_left, gradients=False),
    "over the numbers of frames": Case(over_numbers),
    "scans of a length": Case(of_a_length),
    "branch": Case(branch),
    "max pooling": Case(lambda x: pooled(conv(x, (1, 1)), 3, 2, (1, 1))),
    "average of the last frames": Case(lambda x: pooled(conv(x, (1, 1)), 4, 1, (3, 0), 0.0, lax.add) / 4),
    "spectrum of overlapping frames": Case(spectrum),
    "frames by a table of numbers": Case(overlapping, {"lengths": (4, 5, 6, 9, 12), "constraints": ("S >= 4",)}),
    "convolution over frequency": Case(frequency_convolution),
    "depthwise": Case(lambda x: rnn(depthwise(x))),
    "products of two streams": Case(lambda x: jnp.einsum("tc,tc->t", x, conv(x, (0, 1), kernel=KERNEL[:2]))),
    "joined branches": Case(lambda x: rnn(jnp.concatenate([conv(x, (0, 2)), jnp.ones_like(x), x], -1))),
    "positions that choose": Case(alternating),
    "padding that depends on the length": Case(
        lambda x: lax.conv_general_dilated(
            x[None], jnp.asarray(KERNEL, x.dtype), (2,), "SAME", dimension_numbers=("NTC", "TIO", "NTC")
        )[0],
        {"multiple": 2},
    ),
    "embedding": Case(lambda x: jnp.asarray(TABLE, jnp.float32)[x[:, 0]], {"dtype": np.int32}, gradients=False),
    "sorted in a frame": Case(
        lambda x: (jnp.sort(x, -1), jnp.argmax(x, -1), lax.approx_max_k(conv(x, (1, 1)), 2)), gradients=False
    ),
    "a part of each frame is overwritten": Case(overwritten),
    "reductions by functions": Case(reduced, gradients=False),
    "derivatives of pooling in a frame": Case(derivatives_of_pooling),
    "groups of rows": Case(ragged, gradients=False),
    "tridiagonal systems": Case(tridiagonal_systems),
    "matrices": Case(matrices, gradients=False),
    "devices that are one": Case(on_one_device),
    "drawn in each frame": Case(drawn, {"lengths": (3,), "chunkings": ((2,),)}, gradients=False),
}

#: What goes another way through a rule that another function is for.
VARIANTS = (
    "drawn in each frame",
    "mirrored edges with their frame",
    "mirrored edges, the sign too",
    "the first frames at the end, by hand",
    "equal pads twice",
    "valid",
    "centred",
    "wide kernel",
    "front pad into a recurrence",
    "transposed by 5, longer than its kernel",
    "transposed, cropped",
    "cut and pad with the end known late",
    "every third from the second on",
    "running mean",
    "running minimum",
    "layer norm",
    "softmax of a frame",
    "causal layers in a loop",
    "average of the last frames",
    "products of two streams",
)
#: Whose derivatives are looked at.
DIFFERENTIATED = [name for name, case in CASES.items() if case.gradients and name not in VARIANTS]
