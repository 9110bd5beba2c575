"""Small versions of published architectures over ``[time, channels]``, with the paddings that their papers describe.

Sources: BigVGAN (Lee et al., 2023), EnCodec (Défossez et al., 2022), Mimi (Défossez et al., "Moshi", 2024), and
spectral masking behind a centred short-time Fourier transform, as `torch.stft` computes it by default.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from convolutions import convolve
from stream_functions import Case, rnn

WIDTH = 2


def conv(x, seed, length, out=WIDTH, *, stride=1, dilation=1, spacing=1, pad=(0, 0)):
    """A convolution with random weights."""
    kernel = np.random.default_rng(seed).normal(size=(length, x.shape[1], out)) / np.sqrt(length * x.shape[1])
    return convolve(x, jnp.asarray(kernel, x.dtype), pad, stride, dilation, spacing)


def padded(x, front, behind, mode):
    """Frames in front of a signal and behind it, mirrored or repeated."""
    return jnp.pad(x, ((front, behind), (0, 0)), mode=mode)


# -- EnCodec: causal convolutions behind mirrored frames


def mirrored(x, seed, length, **options):
    """A causal convolution: all padding is in front."""
    extent = (length - 1) * options.get("dilation", 1) + 1 - options.get("stride", 1)
    return conv(padded(x, extent, 0, "reflect"), seed, length, **options)


def residual(x, seed):
    """A residual unit."""
    return x + mirrored(jax.nn.elu(mirrored(jax.nn.elu(x), seed, 3)), seed + 1, 1)


def raised(x, seed, ratio, length):
    """A transposed convolution, cut at the end as causal models do."""
    extent = length - 1
    return conv(x, seed, length, spacing=ratio, pad=(extent, extent + ratio - 1))[: x.shape[0] * ratio]


def encodec_encoder(x):
    """Convolutions with strides 2 and 4, an LSTM's place taken by a plain recurrence, and a wide convolution."""
    x = mirrored(x, 0, 7)
    for seed, ratio in ((1, 2), (4, 4)):
        x = mirrored(jax.nn.elu(residual(x, seed)), seed + 2, 2 * ratio, stride=ratio)
    return mirrored(jax.nn.elu(x + rnn(x)), 9, 7)


def encodec_decoder(x):
    """The way back: the largest ratio first."""
    x = mirrored(x, 0, 7)
    x = x + rnn(x)
    for seed, ratio in ((1, 4), (4, 2)):
        x = residual(raised(jax.nn.elu(x), seed, ratio, 2 * ratio), seed + 1)
    return mirrored(jax.nn.elu(x), 9, 7, out=1)


# -- Mimi: causal convolutions behind zeros, and a last one of stride 2 behind repeated frames


def mimi_encoder(x):
    """Strides 2 and 2, and the halving of the frame rate."""
    x = conv(x, 0, 7, pad=(6, 0))
    for seed in (1, 3):
        x = x + conv(jax.nn.elu(x), seed, 3, pad=(2, 0))
        x = conv(jax.nn.elu(x), seed + 1, 4, stride=2, pad=(2, 0))
    x = conv(jax.nn.elu(x + rnn(x)), 5, 3, pad=(2, 0))
    return conv(padded(x, 2, 0, "edge"), 6, 4, stride=2)


# -- BigVGAN: activations at twice the rate, between low-pass filters behind repeated frames


def lowpass(length):
    """A Kaiser window around a sinc, of gain 1 and with the same filter for every channel."""
    times = np.arange(length) - (length - 1) / 2
    taps = np.kaiser(length, 4.66) * np.sinc(0.5 * times)
    return taps / taps.sum()


def filtered(x, spacing, stride, length):
    """A low-pass filter of each channel."""
    kernel = lowpass(length)[:, None, None] * np.eye(x.shape[1]) * spacing
    extent = length - 1
    return convolve(x, jnp.asarray(kernel, x.dtype), (extent, extent) if spacing > 1 else (0, 0), stride, 1, spacing)


def snake(x, length=6):
    """x + sin(x)^2 at twice the rate."""
    twice = filtered(padded(x, length // 2 - 1, length // 2 - 1, "edge"), 2, 1, length)
    cut = length - 2 + length // 2 - 1
    twice = twice[cut : cut + 2 * x.shape[0]]
    wave = twice + jnp.sin(twice) ** 2
    return filtered(padded(wave, length // 2 - 1, length // 2, "edge"), 1, 2, length)[: x.shape[0]]


def bigvgan(x):
    """Ratio 4 in two transposed convolutions, with one residual block after each."""
    x = conv(x, 0, 7, pad=(3, 3))
    for seed, ratio in ((1, 2), (4, 2)):
        x = conv(x, seed, 2 * ratio, spacing=ratio, pad=(2 * ratio - 1 - ratio // 2,) * 2)
        x = x + conv(snake(conv(snake(x), seed + 1, 3, dilation=3, pad=(3, 3))), seed + 2, 3, pad=(1, 1))
    return jnp.tanh(conv(snake(x), 9, 7, out=1, pad=(3, 3)))


# -- a mask on a centred short-time Fourier transform


def masked_spectrum(x, length=8, hop=2):
    """Analysis of mirrored frames, a recurrent mask, and overlap-add."""
    window = np.hanning(length + 1)[1:].astype(np.float32)
    signal = padded(x[:, :1], length // 2, length // 2, "reflect")[:, 0]
    frames = (signal.shape[0] - length) // hop + 1
    numbers = hop * jnp.arange(frames)[:, None] + jnp.arange(length)
    spectrum = jnp.fft.rfft(signal[numbers] * window, axis=1)
    mask = jax.nn.sigmoid(rnn(jnp.abs(spectrum)))
    parts = jnp.fft.irfft(spectrum * mask.astype(spectrum.dtype), length, axis=1) * window
    kernel = jnp.eye(length, dtype=x.dtype)[:, :, None]  # each part is added at its place
    whole = convolve(parts, jnp.flip(kernel, 0), (length - 1, length - 1), 1, 1, hop)
    return whole[length // 2 : length // 2 + x.shape[0]]


#: Architectures, and how they are streamed.
ARCHITECTURES = {
    "BigVGAN": Case(bigvgan),
    "EnCodec encoder": Case(encodec_encoder, {"multiple": 8, "constraints": ("S >= 7",)}),
    "EnCodec decoder": Case(encodec_decoder, {"constraints": ("S >= 7",)}),
    "Mimi encoder": Case(mimi_encoder, {"multiple": 8}),
    "masked spectrum": Case(masked_spectrum, {"multiple": 2, "constraints": ("S >= 3",)}),
}
