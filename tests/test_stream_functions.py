"""Functions of JAX that compute with the length: convolutions of vectors, resized time, random numbers by position."""

from __future__ import annotations

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from exported_files import check_exported
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import in_later_tier, of_tiers

import jaxrnn

WIDTH = 4
X = jax.ShapeDtypeStruct((20, WIDTH), np.float32)
KERNEL = np.array([1.0, 2.0, -3.0, 0.5])
MODES = ["full", "same", "valid"]


def of_samples(name, mode):
    return lambda x: getattr(jaxrnn.signal, name)(x[:, 0], jnp.asarray(KERNEL, x.dtype), mode)


def checked(x, index):
    """Frames as ONNX's Gather reads them: an index outside of the axis reads as NaN."""
    index = jnp.where(index < 0, index + x.shape[0], index)
    inside = (index >= 0) & (index < x.shape[0])
    return x.at[jnp.where(inside, index, x.shape[0])].get(mode="fill", wrap_negative_indices=False)


def windows(count, taps):
    return jnp.arange(count)[:, None] + np.arange(taps)


def overlapped(x, hop, batch=()):
    """Overlapping frames ``[time, size]`` added as TensorFlow and sequence-layers do it: rows shifted by a reshape."""
    frames, size = x.shape
    rows = -(-size // hop)
    x = jnp.pad(jnp.broadcast_to(x, (*batch, *x.shape)), (*[(0, 0)] * len(batch), (0, rows), (0, rows * hop - size)))
    x = jnp.swapaxes(x.reshape(*batch, frames + rows, rows, hop), -3, -2).reshape(*batch, (frames + rows) * rows, hop)
    x = x[..., : (frames + rows - 1) * rows, :].reshape(*batch, rows, frames + rows - 1, hop)
    return jnp.sum(x, -3).reshape(*batch, -1)[..., : hop * (frames - 1) + size]


CASES = {f"{name}, {mode}": of_samples(name, mode) for name in ("convolve", "correlate") for mode in MODES} | {
    "channels": lambda x: jax.vmap(lambda c: jaxrnn.signal.convolve(c, jnp.asarray(KERNEL, x.dtype), "same"), 1, 1)(x),
    "batches": jax.jit(
        lambda x: jax.lax.map(lambda frame: jax.nn.relu(frame @ np.ones((WIDTH, 2), x.dtype)), x, batch_size=3)
    ),
    "batches of trees": lambda x: jnp.cumsum(
        jax.lax.map(lambda two: {"y": two[0] * two[1].max()}, (x, jnp.sin(x)), batch_size=4)["y"], 0
    ),
    "nearest": lambda x: jax.image.resize(x, (2 * x.shape[0], WIDTH), "nearest"),
    "nearest, last axis": lambda x: jax.image.resize(x.T, (WIDTH, 3 * x.shape[0]), "nearest"),
    "nearest, fewer": lambda x: jax.image.resize(jnp.repeat(x, 3, 0), (x.shape[0], WIDTH), "nearest"),
    "windows of the past": lambda x: checked(jnp.pad(x, ((3, 0), (0, 0))), windows(x.shape[0], 4)),
    "windows": lambda x: checked(x, windows(x.shape[0] - 2, 3)),
    "no earlier than the first": lambda x: checked(x, jnp.maximum(jnp.arange(x.shape[0]) - 3, 0)),
    "overlap and add": lambda x: overlapped(x, 2),
    "overlap and add, unequal parts": lambda x: overlapped(x, 3),
    "overlap and add, by samples": lambda x: overlapped(jnp.pad(x, ((0, 2), (0, 0)))[2:], 1, (2,)),
    "linear": lambda x: jax.image.resize(x, (2 * x.shape[0], WIDTH), "linear"),
    "linear, last axis": lambda x: jax.image.resize(x.T, (WIDTH, 5 * x.shape[0]), "bilinear"),
}


def numbers(x):
    return jnp.arange(x.shape[0])[:, None]


def flags(x):
    return (numbers(x) >= 0).astype(jnp.int32)


def chosen(condition, x):
    return jnp.where(condition, x, -x)


#: Choices by the numbers of frames, which are decided while the function is traced if the outcome is the same always.
COUNTS = {
    "below a bound": lambda x: chosen(jnp.minimum(numbers(x) + 4, 2) >= 3, x),
    "up to a bound": lambda x: chosen(jnp.minimum(numbers(x) + 4, 2) >= 2, x),
    "between bounds": lambda x: chosen(jnp.clip(numbers(x), 5, x.shape[0] - 1) < 3, x),
    "a bound beyond the length": lambda x: jnp.clip(numbers(x), 5, x.shape[0] - 1).astype(x.dtype) * x,
    "sums of flags": lambda x: x[jnp.squeeze(numbers(x) + (flags(x) + flags(x)), 1)[:-2]],
    "differences of flags": lambda x: x * (flags(x) - (numbers(x) < 0).astype(jnp.int32)).astype(x.dtype),
    "another sign": lambda x: chosen(jnp.full(x.shape, 4_000_000_000, jnp.uint32).astype(jnp.int32) >= 0, x),
    "lengths times a fraction": lambda x: x if 2 * x.shape[0] == x.shape[0] * Fraction(2) else -x,
    "bytes": lambda x: chosen(jnp.full(x.shape, 3, jnp.uint8) < jnp.uint8(5), x),
    "overflow": lambda x: chosen(numbers(x) * 2**30 >= 0, x),
}
QUICK = ["convolve, same", "windows", "batches", "correlate, valid", "nearest, fewer", "linear, last axis"]
QUICK += ["overlap and add, unequal parts"]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK, thorough=()))
def test_values(name):
    check_values(CASES[name], X.shape)


@pytest.mark.parametrize("name", in_later_tier(COUNTS, ["below a bound", "sums of flags"]))
def test_numbers_of_frames(name):
    check_values(COUNTS[name], X.shape, constraints=["S >= 4"] if name == "sums of flags" else (), lengths=(4, 5, 8))


@pytest.mark.parametrize("wide", [False, True])
def test_lengths_of_a_type(wide):
    """Lengths that are cast, also to types that do not hold them."""

    def function(x):
        length = jnp.asarray(x.shape[0])
        casts = [length.astype(dtype) for dtype in (bool, jnp.int8, jnp.uint8, jnp.int32, jnp.float32)]
        return casts, casts[0].astype(jnp.int32), casts[2] * jnp.uint8(50), casts[3] - casts[3], length * 2 > 8

    with jax.enable_x64(wide):
        streamed = jaxrnn.stream(function, jax.ShapeDtypeStruct((20,), np.float32), axes=0)
        for frames in (1, 6, 130):
            x = jnp.ones(frames, jnp.float32)
            found, expected = map(jax.tree.leaves, (streamed.run(None, x), jax.jit(function)(x)))
            assert [(each.dtype, each) for each in found] == [(each.dtype, each) for each in expected]


@pytest.mark.parametrize("name", of_tiers(CASES, ["batches"], ["convolve, same", "overlap and add"]))
def test_gradients(name):
    check_gradients(CASES[name], X.shape)


@pytest.mark.parametrize(
    "name", of_tiers(CASES, ["convolve, same", "batches"], ["linear", "windows of the past", "overlap and add"])
)
def test_files(name, tmp_path):
    check_exported(CASES[name], X.shape, tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_convolutions_as_in_jax(mode):
    """With dtypes, and kernels of even and odd sizes."""
    rng = np.random.default_rng(0)
    given = [
        [jnp.asarray(rng.normal(size=length) * 3, dtype) for length in (9, size)]
        for size in (1, 2, 5)
        for dtype in (np.float32, np.int32, np.complex64)
    ]

    @jax.jit  # one program for all of them
    def results(given):
        return [
            [getattr(module, name)(a, v, mode) for module in (jaxrnn.signal, jnp)]
            for a, v in given
            for name in ("convolve", "correlate")
        ]

    for found, expected in results(given):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_errors_of_convolutions():
    x = jnp.ones(5)
    check_refused(jaxrnn.InputError, "takes vectors", jaxrnn.signal.convolve, x[:, None], x)
    check_refused(jaxrnn.InputError, "'full', 'same' or 'valid'", jaxrnn.signal.correlate, x, x, "circular")
    check_refused(jaxrnn.InputError, "kernel of convolve must have a fixed size", jaxrnn.signal.convolve, x, x[:0])


# -- random numbers


def dropped(x):
    """Dropout, and noise, by the number of the frame."""

    def of_frame(i, frame):
        keep, noise = jax.random.split(jax.random.fold_in(jax.random.key(0), i))
        kept = jnp.where(jax.random.bernoulli(keep, 0.5, frame.shape), frame, 0)
        return kept + jax.random.normal(noise, (), frame.dtype)

    return jax.vmap(of_frame)(jnp.arange(x.shape[0]), x)


def noisy(x):
    """Noise from keys in the old style."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.PRNGKey(3), i))(jnp.arange(x.shape[0]))
    return x + jax.vmap(lambda key: jax.random.uniform(key, (WIDTH,), x.dtype))(keys)


def seeded(x):
    """Bits of keys that are made from the number of the frame."""
    return jax.vmap(lambda i: jax.random.bits(jax.random.key(i), (WIDTH,)))(jnp.arange(x.shape[0]))


def of_two_keys(x):
    """Bits of one of two keys, which the frame chooses."""
    position, pair = jnp.arange(x.shape[0]), jax.random.split(jax.random.key(0))
    keys = [jax.vmap(jax.random.fold_in, (None, 0))(key, position) for key in pair]
    return jax.vmap(lambda key: jax.random.bits(key, (WIDTH,)))(jnp.where(x[:, 0] > 0, *keys))


@pytest.mark.thorough
def test_a_choice_of_random_keys():
    check_values(of_two_keys, X.shape, tolerance=0)


@pytest.mark.parametrize("function", of_tiers([dropped, noisy], [], thorough=[]))
def test_random_numbers(function, tmp_path):
    """The same numbers in all pulses, and in ONNX Runtime."""
    check_values(function, X.shape)
    check_exported(function, X.shape, tmp_path, opset=18, tolerance=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("function", [dropped, noisy])
def test_gradients_beside_random_numbers(function):
    check_gradients(function, X.shape)


@pytest.mark.nightly
def test_random_bits(tmp_path):
    check_values(seeded, X.shape, tolerance=0)
    check_exported(seeded, X.shape, tmp_path, opset=18, tolerance=0)


UNFOLD = """<ir_version: 9, opset_import: ["" : 18]> unfold (float[B, T, 3] x) => (float[B, T, 5, 3] y)
<int64[6] pads = {0, 4, 0, 0, 0, 0}, int64[1] axis = {1}, int64[1] first = {0}, int64 zero = {0}, int64 one = {1},
 int64 four = {4}, int64[5] taps = {0, 1, 2, 3, 4}> {
  padded = Pad (x, pads)
  sizes = Shape (padded)
  size = Gather <axis = 0> (sizes, axis)
  length = Squeeze (size, first)
  count = Sub (length, four)
  frames = Range (zero, count, one)
  rows = Unsqueeze (frames, axis)
  columns = Unsqueeze (taps, first)
  index = Add (rows, columns)
  y = Gather <axis = 1> (padded, index)
}"""


@pytest.mark.thorough
def test_windows_of_an_exporter():
    """``Tensor.unfold`` as PyTorch's default exporter writes it: a history of four frames, and no delay."""
    model = jaxrnn.load(onnx.parser.parse_model(UNFOLD))
    streamed = model.stream("T")
    assert streamed.delay == {"y": 0}
    assert [each.shape for each in streamed.state if each.kind != "counter"] == [(4, 1, 3)]
    x = {"x": np.random.default_rng(0).normal(size=(1, 11, 3)).astype(np.float32)}
    for length in (0, 1, 4, 11):
        part = {"x": x["x"][:, :length]}
        padded = np.pad(part["x"], ((0, 0), (4, 0), (0, 0)))
        windows = [padded[:, tap : tap + length] for tap in range(5)]
        np.testing.assert_array_equal(streamed.run(model.params, part)["y"], np.stack(windows, 2))
    beyond = UNFOLD.replace("int64 four = {4}", "int64 four = {3}")
    with pytest.raises(jaxrnn.StreamError, match="Gather"):
        jaxrnn.load(onnx.parser.parse_model(beyond)).stream("T")


# -- refusals


def by_blocks(x, function, of_rest):
    """A function of whole blocks of four frames, and a function of the rest, as `jax.lax.map` writes both."""
    whole = x.shape[0] // 4 * 4
    blocks = jax.lax.scan(lambda _, block: ((), function(block)), (), x[:whole].reshape(-1, 4, WIDTH))[1]
    return jnp.concatenate([blocks.reshape(whole, WIDTH), of_rest(x[whole:])])


def numbered(x):
    return x * jnp.arange(x.shape[0], dtype=x.dtype)[:, None]


REFUSED = {
    "by a share": (lambda x: jax.image.resize(x, (3 * x.shape[0] // 2, WIDTH), "linear"), "jax.image.resize"),
    "cubic": (lambda x: jax.image.resize(x, (2 * x.shape[0], WIDTH), "cubic"), "by a whole factor.*nearest"),
    "the function of JAX": (lambda x: jnp.convolve(x[:, 0], x[:3, 0] * 0), "jaxrnn.signal.convolve"),
    "numbers by NumPy": (
        lambda x: x[np.arange(x.shape[0])],
        r"^the function cannot be traced[^\n]*\(np\.arange in test_stream_functions[^\n]*; call jnp\.arange[^\n]*$",
    ),
    "ones by NumPy": (lambda x: x + np.ones(x.shape, np.float32), "call jnp.ones"),
    "interpolated": (
        lambda x: jnp.interp(jnp.arange(9.0), jnp.arange(x.shape[0], dtype=x.dtype), x[:, 0]),
        "jaxrnn.signal.interp",
    ),
    "convolved by Fourier transforms": (
        lambda x: jax.scipy.signal.fftconvolve(x[:, 0], jnp.ones(3)),
        "jaxrnn.signal.fftconvolve",
    ),
    "spectra of SciPy's form": (lambda x: jax.scipy.signal.stft(x[:, 0], nperseg=8)[2], "jaxrnn.audio.stft"),
    "a callback": (lambda x: (jax.debug.callback(print, x), x)[1], "'debug_callback'.*move it outside"),
    "a map of blocks": (lambda x: by_blocks(x, lambda v: v - v.sum(0), lambda v: v - v.sum(0)), "fixed frame"),
    "a map that reads the first frame": (
        lambda x: jax.lax.map(lambda v: v + x[0], x, batch_size=4),
        "leave out batch_size=",
    ),
    "positions in blocks": (lambda x: by_blocks(x, numbered, numbered), "fixed frame"),
    "another rest": (lambda x: by_blocks(x, jnp.sin, jnp.cos), "fixed frame"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, X, axes=0)
