"""Writes and reads at numbered frames: overlap-add, zeros between frames, lookups in each frame, clipped indices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_files import check_exported
from refusals import check_refused
from streaming_verifier import check_gradients, check_values
from tiers import of_tiers

import jaxrnn

WIDTH = 4
X = jax.ShapeDtypeStruct((20, WIDTH), np.float32)


def numbers(x):
    return jnp.arange(x.shape[0])


def added(x, hop, surplus=None):
    """Overlap-add of frames of four elements."""
    places = numbers(x)[:, None] * hop + jnp.arange(WIDTH)
    return jnp.zeros(x.shape[0] * hop + (WIDTH - hop if surplus is None else surplus), x.dtype).at[places].add(x)


def masked_spectra(x, size=8, hop=4):
    """STFT, mask and ISTFT with a window, in one function of samples."""
    window = jnp.asarray(np.hanning(size), x.dtype)
    count = (x.shape[0] - size) // hop + 1
    places = jnp.arange(count)[:, None] * hop + jnp.arange(size)
    spectra = jnp.fft.rfft(x[:, 0][places] * window)
    mask = jax.nn.sigmoid(jnp.abs(spectra))
    frames = jnp.fft.irfft(spectra * mask.astype(spectra.dtype)) * window
    zeros = jnp.zeros(count * hop + size - hop, x.dtype)
    norm = zeros.at[places].add(jnp.broadcast_to(window**2, (count, size)))
    return zeros.at[places].add(frames) / jnp.maximum(norm, 1e-3)


def spliced(x):
    """Neighbours of each frame, with repeated first and last frames."""
    return x[jnp.clip(numbers(x)[:, None] + jnp.arange(-2, 3), 0, x.shape[0] - 1)].reshape(x.shape[0], -1)


#: By name: the function, and constraints on the length.
CASES = {
    "overlap-add": (lambda x: added(x, 2), ""),
    "overlap-add, every frame": (lambda x: added(x, 1), ""),
    "overlap-add without overlap": (lambda x: added(x, 4), ""),
    "overlap-add with gaps": (lambda x: added(x, 6, 0), ""),
    "overlap-add, cut": (lambda x: added(x, 2, 0), ""),
    "overlap-add, longer": (lambda x: added(x, 2, 5), ""),
    "overlap-add of late frames": (lambda x: added(jnp.concatenate([x[1:], x[:1]]), 2), ""),
    "overlap-add of vectors": (
        lambda x: (
            jnp.zeros((x.shape[0] * 2 + 2, 4), x.dtype)
            .at[numbers(x)[:, None] * 2 + jnp.arange(4)]
            .add(x[:, :, None] * x[:, None])
        ),
        "",
    ),
    "overlap-add of rows": (
        lambda x: (
            jnp.zeros((3, x.shape[0] * 2 + 2), x.dtype)
            .at[:, numbers(x)[:, None] * 2 + jnp.arange(4)]
            .add(x * jnp.arange(3.0, dtype=x.dtype)[:, None, None])
        ),
        "",
    ),
    "overlap-subtract from a stream": (
        lambda x: x[:, 0].at[jnp.arange(x.shape[0] - 3)[:, None] + jnp.arange(4)].subtract(x[3:]),
        "S >= 3",
    ),
    "masked spectra": (masked_spectra, "S >= 8"),
    "zeros between frames": (lambda x: jnp.zeros((2 * x.shape[0], WIDTH), x.dtype).at[::2].set(x), ""),
    "ones between frames": (lambda x: jnp.ones((3 * x.shape[0], WIDTH), x.dtype).at[1::3].set(x), ""),
    "flags between frames": (lambda x: jnp.zeros((2 * x.shape[0], WIDTH), bool).at[1::2].set(x > 0), ""),
    "whole numbers": (lambda x: added(jnp.round(x).astype(jnp.int32), 2), ""),
    "set every second frame": (lambda x: x.at[::2].set(x[::2] * 2), ""),
    "scale every second frame": (lambda x: x.at[1::2].multiply(x[1::2]), ""),
    "largest": (lambda x: x.at[1::2].max(2 * x[1::2]), ""),
    "add from a frame on": (lambda x: x.at[3:].add(x[3:]), ""),
    "shift": (lambda x: jnp.zeros_like(x).at[3:].set(x[:-3]), "S >= 3"),
    "set the first frame": (lambda x: x.at[0].set(0.0), ""),
    "set two frames": (lambda x: x.at[jnp.array([0, 3])].add(2 * x[:1]), ""),
    "set to a later frame": (lambda x: jnp.cumsum(x, 0).at[0].set(x[3]), "S >= 4"),
    "a channel for each frame": (lambda x: x[numbers(x), jnp.argmax(x, 1)], ""),
    "two channels for each frame": (lambda x: x[numbers(x)[:, None], jnp.argsort(x, 1)[:, :2]], ""),
    "a channel of each second frame": (lambda x: x[2 * jnp.arange((x.shape[0] + 1) // 2), jnp.argmax(x[::2], 1)], ""),
    "a channel, late": (lambda x: x.T[jnp.argmax(x[2:], 1), jnp.arange(x.shape[0] - 2)], "S >= 2"),
    "set a channel of each frame": (lambda x: x.at[numbers(x), jnp.argmax(x, 1)].set(0.0), ""),
    "repeat the first frame": (lambda x: x[jnp.clip(numbers(x) - 3, 0)], ""),
    "repeat the last frame": (lambda x: jnp.cumsum(x, 0)[jnp.minimum(numbers(x) + 2, x.shape[0] - 1)], ""),
    "splice": (spliced, ""),
    "every second frame, clipped": (lambda x: x[jnp.maximum(2 * jnp.arange((x.shape[0] + 1) // 2) - 1, 0)], ""),
    "clipped positions as values": (
        lambda x: x * jnp.clip(numbers(x) + 1, 2, x.shape[0] - 1)[:, None].astype(x.dtype),
        "",
    ),
}
QUICK = [
    "overlap-add",
    "overlap-add of rows",
    "overlap-add, cut",
    "masked spectra",
    "ones between frames",
    "flags between frames",
    "set every second frame",
    "set two frames",
    "a channel of each second frame",
    "splice",
    "repeat the last frame",
    "clipped positions as values",
]
DISCRETE = ["flags between frames", "whole numbers"]
BRIEF = ["overlap-add, cut", "set every second frame", "splice"]


def options(name):
    constraint = CASES[name][1]
    return {"constraints": [constraint] if constraint else []}


def lengths(name):
    least = int(CASES[name][1].rpartition(" ")[2] or 1)
    return [least, least + 1, 13]


@pytest.mark.parametrize("name", of_tiers(CASES, QUICK[::4], thorough=QUICK[1::3]))
def test_values(name):
    check_values(CASES[name][0], X.shape, lengths=lengths(name), **options(name))


@pytest.mark.parametrize("name", of_tiers([name for name in CASES if name not in DISCRETE], BRIEF[1:2], []))
def test_gradients(name):
    check_gradients(CASES[name][0], X.shape, length=13, **options(name))


@pytest.mark.parametrize("name", of_tiers(CASES, BRIEF[:1], BRIEF))
def test_files(name, tmp_path):
    check_exported(CASES[name][0], X.shape, tmp_path, lengths=lengths(name), **options(name))


def test_state_of_overlap_add():
    """Partial sums only: the length of a frame without the hop, as by hand."""
    streamed = jaxrnn.stream(lambda x: added(x, 3), X, axes=0)
    assert [entry.shape for entry in streamed.state if entry.kind == "sums"] == [(1,)]


REFUSED = {
    "several values for one frame": (
        lambda x: jnp.zeros(x.shape[0] + 3).at[numbers(x)[:, None] + jnp.arange(4)].set(x),
        "writes several values to one frame",
    ),
    "another rate": (lambda x: jnp.zeros(x.shape[0]).at[2 * numbers(x)].add(x[:, 0]), "arrive at another rate"),
    "the last frame": (lambda x: x.at[-1].set(0.0), "writes frames at given positions.*jnp.where"),
    "a clipped frame": (lambda x: x.at[5].set(9.0, mode="clip"), "'scatter'.*clips the positions"),
    "a sum in a clipped frame": (lambda x: x.at[5].add(9.0, mode="clip"), "clips the positions"),
    "places that depend on data": (lambda x: jnp.zeros_like(x).at[jnp.argsort(x[:, 0] > 0)].set(x), "sorts all frames"),
    "frames in reverse": (lambda x: x[jnp.clip(5 - numbers(x), 0)], "not a fixed step forward"),
    "clipped before the end": (lambda x: x[jnp.minimum(numbers(x) + 2, x.shape[0] - 2)], "not a fixed step forward"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    check_refused(jaxrnn.StreamError, words, jaxrnn.stream, function, X, axes=0)
