"""Fourier transforms, windows, and the matrix of mel bands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import max_dim

from jaxrnn.onnx.limits import current
from jaxrnn.onnx.operators.shaping import axes_of, padded
from jaxrnn.onnx.operators.types import convert, numpy_dtype, wide_type
from jaxrnn.onnx.registry import Static, as_attributes, since
from jaxrnn.onnx.values import Value, dimensions, traced


def dft(
    x: Value, dft_length: Static | None = None, axis: Static | None = None, *, inverse: int = 0, onesided: int = 0
) -> Value:
    """DFT along an axis of ``[..., 1]`` real or ``[..., 2]`` complex numbers; by default the signal's last axis."""
    x = traced(x)
    (along,) = axes_of([-2 if axis is None else _scalar(axis, "axis")], x.ndim)
    if along == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise ValueError(
            "the last axis is for real and imaginary parts, so it has size 1 or 2 and is not transformed; the input "
            f"is {x.shape} and the axis {along}"
        )
    size = x.shape[along]
    if dft_length is not None:
        length = _scalar(dft_length, "dft_length")
    else:
        length = 2 * (size - 1) if inverse and onesided else size
    if not isinstance(length, int):
        raise ValueError(
            f"a Fourier transform along axis {along} of open size {size} needs a known dft_length, not {length}: bind "
            "the size, or cut the signal into frames first (STFT)"
        )
    if length < 1:
        raise ValueError(f"dft_length must be at least 1, not {length}")
    dtype, values = x.dtype, _joined(x)
    if onesided and inverse:
        if x.shape[-1] == 1:
            raise ValueError("a one-sided spectrum is complex: its last axis has size 2, not 1")
        half = _fitted(values, length // 2 + 1, along)
        return jnp.fft.irfft(half, n=length, axis=along)[..., None].astype(dtype)
    if onesided:
        if x.shape[-1] == 2:
            raise ValueError("only a real signal, with a last axis of size 1, has a one-sided spectrum")
        return _parts(jnp.fft.rfft(_fitted(values, length, along), axis=along), dtype)
    return _parts(_spectrum(_fitted(values, length, along), along, bool(inverse)), dtype)


def _scalar(value: np.ndarray, name: str) -> Any:
    """Return a static scalar input, which may be symbolic."""
    if value.size != 1:
        raise ValueError(f"{name} must be one number, not {value.size}")
    return dimensions(value)[0]


def _spectrum(x: Any, axis: int, inverse: bool = False) -> Any:
    """Return the full spectrum; for a real signal, one half is computed and mirrored."""
    if jnp.iscomplexobj(x):
        return (jnp.fft.ifft if inverse else jnp.fft.fft)(x, axis=axis)
    length = x.shape[axis]
    half = jnp.fft.rfft(x, axis=axis)
    mirror = lax.rev(lax.slice_in_dim(half, 1, (length + 1) // 2, axis=axis), (axis,))
    whole = jnp.concatenate([half, jnp.conj(mirror)], axis)
    return jnp.conj(whole) * np.asarray(1 / length, x.dtype).astype(whole.dtype) if inverse else whole


def _joined(x: Any) -> Any:
    """Convert ``[..., 1]`` real or ``[..., 2]`` complex parts to numbers of float32 or wider."""
    x = x.astype(wide_type(x.dtype))
    return x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])


def _parts(x: Any, dtype: Any) -> Any:
    """Split complex numbers into real and imaginary parts along a new last axis."""
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1).astype(dtype)


def _fitted(x: Any, length: int, axis: int) -> Any:
    """Truncate or zero-pad a signal to a length."""
    size = x.shape[axis]
    if isinstance(size, int) and size == length:
        return x
    if not isinstance(size, int):
        raise ValueError(f"axis {axis} of open size {size} cannot be cut or filled to {length}; bind the size")
    return padded(x, axis, 0, length - size)


def stft(
    signal: Value, frame_step: Static, window: Value = None, frame_length: Static | None = None, *, onesided: int = 1
) -> Value:
    """STFT of ``[batch, time, 1 or 2]``: ``[batch, frames, bins, 2]``.

    A real signal ``[batch, time]``, as PyTorch's exporter writes, is also accepted.
    """
    signal = traced(signal)
    signal = signal[..., None] if signal.ndim == 2 else signal
    dtype, signal = signal.dtype, signal.astype(wide_type(signal.dtype))
    if signal.ndim != 3 or signal.shape[-1] not in (1, 2):
        raise ValueError(f"the signal must be [batch, time, 1] or [batch, time, 2], not {signal.shape}")
    if onesided and signal.shape[-1] == 2:
        raise ValueError("a complex signal has no one-sided spectrum; set onesided to 0")
    step = _scalar(frame_step, "frame_step")
    if window is not None:
        window = traced(window).astype(wide_type(signal.dtype))
    if window is not None and window.ndim != 1:
        raise ValueError(f"the window must have one axis, not {window.ndim}")
    length = None if frame_length is None else _scalar(frame_length, "frame_length")
    if length is None:
        length = signal.shape[1] if window is None else window.shape[0]
    elif window is not None and window.shape[0] != length:
        raise ValueError(f"the window has {window.shape[0]} samples, but frame_length is {length}; they must be equal")
    if not (isinstance(length, int) and length >= 1):
        raise ValueError(
            f"a frame must have a known number of samples, at least 1, not {length}: give a window or a frame_length"
        )
    if not (isinstance(step, int) and step >= 1):
        raise ValueError(f"frame_step must be a number of at least 1, not {step}")
    parts = [_framed(part[..., 0], length, step) for part in jnp.split(signal, signal.shape[-1], -1)]
    frames = _joined(jnp.stack(parts if window is None else [part * window for part in parts], -1))
    return _parts(jnp.fft.rfft(frames) if onesided else _spectrum(frames, 2), dtype)


def _framed(signal: Any, length: int, step: int) -> Any:
    """Cut ``[batch, time]`` into frames ``step`` apart, ``[batch, frames, length]``."""
    size = signal.shape[1]
    count = max_dim((size - length) // step + 1, 0)
    if not isinstance(size, int):
        starts = lax.iota(jnp.int32, count) * jnp.int32(step)
        index = starts[:, None] + jnp.arange(length, dtype=jnp.int32)
        return signal.at[:, index].get(mode="promise_in_bounds")
    if count == 0:
        return jnp.zeros((signal.shape[0], 0, length), signal.dtype)
    # Blocks of one step, concatenated with shifted copies: memory is copied in long pieces.
    blocks = -(-length // step)
    total = (count - 1 + blocks) * step
    parts = padded(signal, 1, 0, total - size).reshape(signal.shape[0], count - 1 + blocks, step)
    joined = jnp.concatenate([lax.slice_in_dim(parts, k, k + count, axis=1) for k in range(blocks)], -1)
    return joined[..., :length]


def cosine_window(*coefficients: float) -> Callable[..., Any]:
    """Return a window that is a sum of cosines of 0, 1, 2, ... periods with these coefficients."""

    def apply(size: Static, *, output_datatype: int = 1, periodic: int = 1) -> Value:
        count = _known(size, "size")
        if count < 0:
            raise ValueError(f"size must not be negative, not {count}")
        current().check((count,), np.float64, constant=True)
        # A symmetric window of one sample has the value of the middle.
        period = count if periodic else max(count - 1, 1)
        phase = 2 * np.pi * np.arange(count) / max(period, 1)
        if count == 1 and not periodic:
            phase = phase + np.pi
        # From the smallest coefficient on, so that the peak is 1 and stays 1 as an integer.
        window = sum(value * np.cos(order * phase) for order, value in reversed(list(enumerate(coefficients))))
        return convert(np.asarray(window), numpy_dtype(output_datatype))

    return apply


def _known(value: np.ndarray, name: str) -> int:
    number = _scalar(value, name)
    if not isinstance(number, int):
        raise ValueError(f"{name} must be a known number, not {number}; bind the size that determines it")
    return number


def mel_weight_matrix(
    num_mel_bins: Static,
    dft_length: Static,
    sample_rate: Static,
    lower_edge_hertz: Static,
    upper_edge_hertz: Static,
    *,
    output_datatype: int = 1,
) -> Value:
    """MelWeightMatrix: triangular bands, equally wide in mel, over the bins of a one-sided spectrum; ``[bins, bands]``.

    The edges of the bands lie on bins, rounded down. A band is 1 at a bin that is both lower edge and peak.
    """
    bands, length = _known(num_mel_bins, "num_mel_bins"), _known(dft_length, "dft_length")
    rate = _known(sample_rate, "sample_rate")
    low, high = (float(np.asarray(edge).reshape(())) for edge in (lower_edge_hertz, upper_edge_hertz))
    if bands < 1 or length < 1 or rate < 1:
        raise ValueError(f"{bands} bands, a DFT of {length} and {rate} samples a second: each must be at least 1")
    bins = length // 2 + 1
    current().check((bins, bands), np.float64, constant=True)
    low_mel, high_mel = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    mel = low_mel + np.arange(bands + 2) * (high_mel - low_mel) / (bands + 2)
    edges = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(np.int64)
    if not (edges.min() >= 0 and edges.max() <= bins and low <= high):
        raise ValueError(
            f"the bands from {low:g} to {high:g} Hz do not lie between 0 and half the sample rate of {rate} Hz"
        )
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    place = np.arange(bins)[:, None]
    rising = np.where(peak > left, (place - left) / np.maximum(peak - left, 1), 1.0)
    falling = (right - place) / np.maximum(right - peak, 1)
    weights = np.where((place >= left) & (place <= peak), rising, 0)
    weights = np.where((place >= peak) & (place < right), falling, weights)
    return convert(weights, numpy_dtype(output_datatype))


OPERATORS = {
    "BlackmanWindow": since(cosine_window(0.42, -0.5, 0.08), 17),
    "DFT": since(as_attributes(dft, axis=1), 17) | since(dft, 20),
    "HammingWindow": since(cosine_window(25 / 46, -21 / 46), 17),
    "HannWindow": since(cosine_window(0.5, -0.5), 17),
    "MelWeightMatrix": since(mel_weight_matrix, 17),
    "STFT": since(stft, 17),
}
