"""Streaming networks with attention in Flax NNX: a conformer, an emformer-like encoder, and a transformer codec.

Sources: Conformer (Gulati et al., 2020), Emformer (Shi et al., 2021), and Mimi (Défossez et al., "Moshi", 2024).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

WIDTH, HEADS = 6, 2


class Attention(nnx.Module):
    """The multi-head attention of Flax: each frame sees some frames before it and after it."""

    def __init__(self, left, right, width=WIDTH, heads=HEADS):
        self.layer = nnx.MultiHeadAttention(heads, width, decode=False, rngs=nnx.Rngs(0))
        self.left, self.right = left, right

    def mask(self, query, key):
        return (query - key <= self.left) & (key - query <= self.right)

    def __call__(self, x):
        n = jnp.arange(x.shape[0])
        return self.layer(x[None], mask=self.mask(n[:, None], n)[None, None])[0]


class ChunkAttention(Attention):
    """Attention in chunks: each frame sees its chunk, `left` frames before the chunk, and `right` frames after it."""

    def __init__(self, left, right, size):
        super().__init__(left, right)
        self.size = size

    def mask(self, query, key):
        start = query // self.size * self.size
        return (key >= start - self.left) & (key < start + self.size + self.right)


class FeedForward(nnx.Module):
    """Normalisation, a wide layer, and a layer back."""

    def __init__(self, width=WIDTH, seed=1):
        rngs = nnx.Rngs(seed)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.wide, self.back = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        return self.back(jax.nn.silu(self.wide(self.norm(x))))


class Conformer(nnx.Module):
    """A block of a streaming conformer: feed-forward, attention to past frames, convolution, feed-forward."""

    def __init__(self, width=WIDTH, heads=HEADS, left=8, kernel=5):
        rngs = nnx.Rngs(1)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(3)])
        self.feeds = nnx.List([FeedForward(width, seed) for seed in (2, 3)])
        self.attention = Attention(left, 0, width, heads)
        self.gate, self.point = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(width, width, rngs=rngs)
        self.depthwise = nnx.Conv(width, width, (kernel,), padding="CAUSAL", feature_group_count=width, rngs=rngs)

    def __call__(self, x):
        x = x + 0.5 * self.feeds[0](x)
        x = x + self.attention(self.norms[0](x))
        y = jax.nn.glu(self.gate(self.norms[1](x)))
        x = x + self.point(jax.nn.silu(self.depthwise(y[None])[0]))
        return self.norms[2](x + 0.5 * self.feeds[1](x))


class Emformer(nnx.Module):
    """Two layers of attention in chunks of 4 frames with 6 frames of left context and 1 frame of right context."""

    def __init__(self):
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=nnx.Rngs(seed)) for seed in (4, 5)])
        self.attentions = nnx.List([ChunkAttention(6, 1, 4) for _ in range(2)])
        self.feeds = nnx.List([FeedForward(seed=seed) for seed in (6, 7)])

    def __call__(self, x):
        for norm, attention, feed in zip(self.norms, self.attentions, self.feeds, strict=True):
            x = x + attention(norm(x))
            x = x + feed(x)
        return x


class Codec(nnx.Module):
    """A causal codec: strided convolution, attention with rotary positions, nearest codes, transposed convolution."""

    def __init__(self, left=10):
        rngs = nnx.Rngs(8)
        self.encoder = nnx.Conv(WIDTH, WIDTH, (4,), (2,), padding=((2, 0),), rngs=rngs)
        self.project = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.feed, self.left = FeedForward(seed=9), left
        self.codes = nnx.Param(jax.random.normal(jax.random.key(0), (16, WIDTH)))
        self.decoder = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)

    def rotated(self, x):
        """Rotate pairs of features by an angle that grows with the frame."""
        half = x.shape[-1] // 2
        rates = jnp.asarray(0.5 ** np.arange(half), x.dtype)
        angle = jnp.arange(x.shape[0], dtype=x.dtype)[:, None] * rates
        first, second = x[:, :half], x[:, half:]
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)

    def __call__(self, x):
        x = self.encoder(x[None])[0]
        q, k, v, gate = jnp.split(self.project(x), 4, -1)
        scores = self.rotated(q) @ self.rotated(k).T / np.asarray(np.sqrt(WIDTH), x.dtype)
        apart = jnp.arange(x.shape[0])[:, None] - jnp.arange(x.shape[0])
        weights = jax.nn.softmax(jnp.where((apart >= 0) & (apart < self.left), scores, -jnp.inf))
        x = x + weights @ v * jax.nn.sigmoid(gate)
        x = x + self.feed(x)
        codes = jnp.asarray(self.codes[...], x.dtype)
        nearest = codes[jnp.argmin(jnp.sum(jnp.square(x[:, None] - codes), -1), -1)]
        x = x + jax.lax.stop_gradient(nearest - x)
        return self.decoder(x).reshape(-1, WIDTH)
