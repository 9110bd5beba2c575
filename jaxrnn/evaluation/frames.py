"""Sound split into overlapping frames and joined again, and the features of a frame that networks take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def cut_frames(samples: jax.Array, size: int, hop: int) -> jax.Array:
    """Frames ``[batch, time, size]`` of ``[batch, samples]``, each ``hop`` after the one before."""
    count = (samples.shape[1] - size) // hop + 1
    if size % hop:
        return samples[:, np.arange(count)[:, None] * hop + np.arange(size)]
    hops = samples.reshape(samples.shape[0], -1, hop)
    return jnp.concatenate([hops[:, part : part + count] for part in range(size // hop)], -1)


def join_frames(frames: jax.Array, overlap: jax.Array, hop: int) -> tuple[jax.Array, jax.Array]:
    """Overlap-add: sound ``[batch, time * hop]`` of frames ``[batch, time, size]``, and the new overlap."""
    batch, time, size = frames.shape
    result = jnp.pad(overlap, ((0, 0), (0, time * hop))).reshape(batch, -1, hop)
    for part in range(size // hop):
        result = result.at[:, part : part + time].add(frames[..., part * hop : (part + 1) * hop])
    flat = result.reshape(batch, -1)
    return flat[:, : time * hop], flat[:, time * hop :]


def features_of(takes: str, frames: Any) -> jax.Array:
    """What a network takes of frames or of their spectra; a spectrum as real and imaginary parts ``[..., 2]``."""
    if takes == "spectrum":
        return jnp.stack([frames.real, frames.imag], -1)
    return jnp.abs(frames) if takes == "magnitude" else frames


def with_mask(spectrum: jax.Array, mask: jax.Array) -> jax.Array:
    """A spectrum multiplied by a real or complex mask."""
    if jnp.iscomplexobj(mask):
        return spectrum * mask
    return jax.lax.complex(spectrum.real * mask, spectrum.imag * mask)


def complex_of(pairs: jax.Array) -> jax.Array:
    """Real and imaginary parts ``[..., 2]`` as complex numbers."""
    return jax.lax.complex(pairs[..., 0], pairs[..., 1])
