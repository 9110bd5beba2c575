"""Short-time Fourier transforms and their inverses, as pure JAX functions that stream."""

from __future__ import annotations

import functools
import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import get_window, windows

from jaxrnn._files.messages import check_word, describe, near, short_repr
from jaxrnn.errors import InputError, is_count

Padding = Literal["zeros", "reflect", "causal", "none"]
Norm = Literal["none", "ortho", "window"]
Synthesis = Literal["window", "sum"]
#: The largest number of samples in a frame.
MAX_SIZE = 2**20
#: Sums of squared windows up to this value count as zero, as in SciPy.
TINY = 1e-10


@short_repr
@dataclass(frozen=True)
class Frames:
    """The frames of a short-time Fourier transform.

    Attributes:
        size: samples of a frame, which is also the length of the Fourier transform; there are ``size // 2 + 1``
            frequencies.
        hop: samples from one frame to the next.
        window: a name for ``scipy.signal.get_window``, ``"sqrt_"`` and a name for the square root of that window, or
            ``float[size]``. For a window that is shorter than the transform, pad the array with zeros.
        padding: samples around the waveform. ``"zeros"`` and ``"reflect"`` add half a frame on both sides, so that
            frame t is centred at sample ``t * hop``. ``"causal"`` adds zeros, so that frame t ends with the t-th hop,
            and all samples lie in the same number of frames. ``"none"`` adds no samples.
        norm: the factor of the spectra: ``"none"`` for 1, ``"ortho"`` for ``1 / sqrt(size)``, ``"window"`` for
            ``1 / sum(window)``.
        synthesis: ``"window"`` applies the window again and divides by the sum of squared windows, which inverts
            unmodified spectra. ``"sum"`` adds the frames without a window, for networks that learned the synthesis.

    Raises:
        InputError: a value does not fit, such as a window of a different length.
    """

    size: int
    hop: int
    window: Any = "hann"
    _: KW_ONLY
    padding: Padding = "causal"
    norm: Norm = "none"
    synthesis: Synthesis = "window"

    def __post_init__(self) -> None:
        if not is_count(self.size, 4):
            raise InputError(f"a frame has at least 4 samples, not {self.size!r}")
        if self.size > MAX_SIZE:
            raise InputError(f"a frame has at most {MAX_SIZE:,} samples, not {self.size:,}")
        if not is_count(self.hop, 1) or self.hop > self.size:
            raise InputError(f"the hop must be from 1 to the {self.size} samples of a frame, not {self.hop!r}")
        for name, known in {"padding": Padding, "norm": Norm, "synthesis": Synthesis}.items():
            check_word(f"`{name}`", getattr(self, name), get_args(known))
        sum_of_magnitudes = np.sum(np.abs(self.weights))
        if self.norm == "window" and abs(np.sum(self.weights)) <= TINY * sum_of_magnitudes:
            raise InputError("`norm='window'` divides by the sum of the window, which is 0: choose another")

    @property
    def bins(self) -> int:
        """The number of frequencies."""
        return self.size // 2 + 1

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """The window, ``float64[size]``."""
        return window_values(self.window, self.size)

    @property
    def scale(self) -> float:
        """The factor of the spectra."""
        factors = {"ortho": math.sqrt(self.size), "window": float(np.sum(self.weights))}
        return 1 / factors.get(self.norm, 1.0)

    @functools.cached_property
    def overlap(self) -> np.ndarray:
        """The weight of each sample of a hop over all frames that contain this sample, ``float64[hop]``."""
        weights = self.weights**2 if self.synthesis == "window" else self.weights
        return overlap_of(weights, self.hop)

    @property
    def note(self) -> str | None:
        """A sentence about a window and a hop without constant overlap-add (COLA); None if both reconstruct."""
        low, high = float(self.overlap.min()), float(self.overlap.max())
        named = f"a window {self.window!r}" if isinstance(self.window, str) else "this window"
        pair = f"{named} of {self.size} samples and a hop of {self.hop}"
        if self.synthesis == "sum":
            same = math.isclose(low, high, rel_tol=1e-5)
            by = f"{high:.3g}" if same else f"{low:.3g} to {high:.3g}"
            return None if same and math.isclose(low, 1, rel_tol=1e-5) else f"{pair} multiply unmodified frames by {by}"
        if math.isclose(low, high, rel_tol=1e-5):
            return None
        return (
            f"{pair} have no constant overlap-add (weights from {low:.3g} to {high:.3g}): the division by the weights "
            "reconstructs unmodified spectra, and modulates errors of a network"
        )

    @property
    def synthesis_weights(self) -> np.ndarray | None:
        """The window of the synthesis, for samples that lie in all their frames; None if frames are only added.

        Raises:
            InputError: a sample has no weight in any frame.
        """
        return synthesis_window(self.weights, self.hop) if self.synthesis == "window" else None

    def cut(self, samples: Any) -> jax.Array:
        """Return the windowed frames ``[..., frames, size]`` of a waveform ``[..., samples]``, padded as `padding`."""
        x = jnp.asarray(samples)
        if x.dtype not in (jnp.float32, jnp.float64):
            raise InputError(f"a waveform has samples of float32 or float64, not {x.dtype}")
        if not x.ndim:
            raise InputError("a waveform has an axis of samples, but this is one number")
        if self.padding == "reflect" and x.shape[-1] == 0:
            raise InputError("`padding='reflect'` mirrors samples, but the waveform has none; give one")
        before = self._before
        if before:
            widths = [(0, 0)] * (x.ndim - 1) + [(before, before)]
            x = jnp.pad(x, widths, mode="reflect" if self.padding == "reflect" else "constant")
        frames = x[..., self._places((x.shape[-1] - self.size) // self.hop + 1)]
        return frames * self.weights.astype(x.dtype)

    def join(self, frames: jax.Array, length: Any = None) -> jax.Array:
        """Return the waveform ``[..., samples]`` of frames ``[..., frames, size]``, the inverse of `cut`.

        Args:
            frames: the frames, which overlap.
            length: the number of samples, no more than the frames hold; by default, all samples without the padding.
        """
        dtype, count = frames.dtype, frames.shape[-2]
        total, places = (count - 1) * self.hop + self.size, self._places(count)
        self._check_length(length, total - self._before)
        empty = jnp.zeros((*frames.shape[:-2], total), dtype)
        weights, before = self.weights.astype(dtype), self._before
        synthesis = self.synthesis_weights
        if synthesis is None:
            result = empty.at[..., places].add(frames)
        elif self.padding == "causal" and length is None:
            # All samples outside of the padding lie in all their frames; a given length may reach into the padding.
            result = empty.at[..., places].add(frames * synthesis.astype(dtype))
        else:
            squares = jnp.broadcast_to(weights**2, (count, self.size))
            divisor = jnp.zeros(total, dtype).at[places].add(squares)
            result = empty.at[..., places].add(frames * weights) / jnp.where(divisor > TINY, divisor, 1)
        length = total - 2 * before if length is None else length
        return result[..., before : before + length]

    def transform(self, frames: jax.Array) -> jax.Array:
        """Return the spectra of windowed frames."""
        with jax.named_scope("stft"):
            return jnp.fft.rfft(self._scaled(frames, self.scale))

    def inverse(self, spectra: jax.Array) -> jax.Array:
        """Return the frames of spectra, without the synthesis window."""
        with jax.named_scope("istft"):
            return self._scaled(jnp.fft.irfft(spectra, self.size), 1 / self.scale)

    def stft(self, samples: Any) -> jax.Array:
        """Return the spectra of a waveform, as `jaxrnn.audio.stft`."""
        return self.transform(self.cut(samples))

    def istft(self, spectra: Any, length: Any = None) -> jax.Array:
        """Return the waveform of spectra, as `jaxrnn.audio.istft`."""
        spectra = jnp.asarray(spectra)
        if not jnp.iscomplexobj(spectra) or spectra.ndim < 2 or spectra.shape[-1] != self.bins:
            raise InputError(
                f"spectra of frames of {self.size} samples are complex numbers of {self.bins} frequencies, not "
                f"{describe(spectra)}" + ("; put an axis of frames before them" if spectra.ndim == 1 else "")
            )
        return self.join(self.inverse(spectra), length)

    def _check_length(self, length: Any, held: Any) -> None:
        """Check that frames hold this number of samples, except in a stream, where both are symbolic."""
        if length is None or jax.export.is_symbolic_dim(length):
            return
        if not is_count(length):
            raise InputError(f"length must be a whole number of samples from 0 on, or None, not {length!r}")
        if not jax.export.is_symbolic_dim(held) and length > max(held, 0):
            raise InputError(
                f"`length={length}`, but the frames hold {max(held, 0)} samples; give no more than that, or add zeros "
                "to the waveform before its transform"
            )

    @property
    def _before(self) -> int:
        return {"none": 0, "causal": self.size - self.hop}.get(self.padding, self.size // 2)

    def _places(self, count: Any) -> Any:
        return jnp.arange(count, dtype=np.int32)[:, None] * np.int32(self.hop) + np.arange(self.size, dtype=np.int32)

    def _scaled(self, frames: jax.Array, factor: float) -> jax.Array:
        return frames if factor == 1 else frames * np.asarray(factor, frames.dtype)


def stft(
    samples: Any, size: int, hop: int, window: Any = "hann", *, padding: Padding = "causal", norm: Norm = "none"
) -> jax.Array:
    """Return the short-time Fourier transform of a waveform.

    A pure function that streams with `jaxrnn.stream`. The values equal ``torch.stft`` (``padding="reflect"``, or
    ``"none"`` for ``center=False``) and ``scipy.signal.stft`` (``padding="zeros"``, ``norm="window"``). Samples after
    the last whole frame are ignored. The arguments after ``samples`` are attributes of `Frames`.

    Args:
        samples: ``float[..., samples]``.
        size: samples of a frame.
        hop: samples from one frame to the next.
        window: a name, or ``float[size]``.
        padding: the samples around the waveform.
        norm: the factor of the spectra.

    Returns:
        ``complex[..., frames, size // 2 + 1]``.

    Raises:
        InputError: a value does not fit.
    """
    return Frames(size, hop, window, padding=padding, norm=norm).stft(samples)


def istft(
    spectra: Any,
    size: int,
    hop: int,
    window: Any = "hann",
    *,
    padding: Padding = "causal",
    norm: Norm = "none",
    length: Any = None,
) -> jax.Array:
    """Return the waveform of short-time spectra: the inverse of `stft` with the same arguments.

    Some spectra, such as masked spectra, do not belong to any waveform. The result is then the nearest waveform in the
    sense of least squares, as in ``torch.istft`` and ``scipy.signal.istft``. A pure function that streams with
    `jaxrnn.stream`.

    Args:
        spectra: ``complex[..., frames, size // 2 + 1]``.
        size: samples of a frame, as in `Frames`.
        hop: samples from one frame to the next.
        window: a name, or ``float[size]``.
        padding: the samples around the waveform, which are cut off.
        norm: the factor of the spectra.
        length: the number of samples of the result, no more than the frames hold; by default, all samples without the
            padding.

    Returns:
        ``float[..., samples]``.

    Raises:
        InputError: a value does not fit, or the window and the hop do not reconstruct.
    """
    return Frames(size, hop, window, padding=padding, norm=norm).istft(spectra, length)


def window_values(window: Any, size: int) -> np.ndarray:
    """Return the values of `Frames.window` as ``float64[size]``, after a check."""
    if isinstance(window, str):
        root = window.startswith("sqrt_")
        try:
            values = np.asarray(get_window(window.removeprefix("sqrt_"), size, fftbins=True))
        except (ValueError, TypeError) as error:
            public = [each for each in windows.__all__ if each not in ("get_window", window)]
            hint = near(window, [*public, *(f"sqrt_{each}" for each in public)])
            raise InputError(f"window: {error}{hint}") from error
        return np.sqrt(np.maximum(values, 0)) if root else values
    values = np.asarray(window)
    if values.shape != (size,) or values.dtype.kind not in "iuf":
        raise InputError(
            f"the window is {values.dtype}{list(values.shape)}, but a frame has {size} samples: give {size} numbers, "
            "with zeros around a shorter window"
        )
    if not np.isfinite(values).all():
        raise InputError(f"the window has {int((~np.isfinite(values)).sum())} values that are not finite")
    return values.astype(np.float64)


def overlap_of(weights: np.ndarray, hop: int) -> np.ndarray:
    """Return the sum of the weights of each sample of a hop over all frames that contain it, ``float64[hop]``."""
    return np.pad(weights, (0, -weights.size % hop)).reshape(-1, hop).sum(0)


def synthesis_window(weights: np.ndarray, hop: int) -> np.ndarray:
    """Return the window that inverts windowed frames, for samples that lie in all their frames."""
    overlap = overlap_of(weights**2, hop)
    if overlap.min() <= TINY:
        raise InputError(
            f"a window of {weights.size} samples and a hop of {hop} do not reconstruct: sample "
            f"{int(overlap.argmin())} of each hop has weight 0 in every frame; give a smaller hop"
        )
    return weights / np.resize(overlap, weights.size)


def with_mask(spectrum: jax.Array, mask: jax.Array) -> jax.Array:
    """Multiply a spectrum by a real or complex mask."""
    if jnp.iscomplexobj(mask):
        return spectrum * mask
    return jax.lax.complex(spectrum.real * mask, spectrum.imag * mask)


def complex_of(pairs: jax.Array) -> jax.Array:
    """Convert pairs of real and imaginary part ``[..., 2]`` to complex numbers."""
    return jax.lax.complex(pairs[..., 0], pairs[..., 1])
