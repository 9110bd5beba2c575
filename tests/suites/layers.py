"""Layers of other projects, as functions of a single array that stream or are refused with a reason."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streaming_verifier import check_values

import jaxrnn
from jaxrnn.streaming import check
from jaxrnn.streaming.substitution import substituted


@dataclass(frozen=True)
class Layer:
    """A function of a recording, the shape of the recording, and how to stream the function.

    `make` returns the function; `options` are those of `check_values`. With `substitute`, the function is traced with
    `stream(..., substitute=True)`.
    """

    make: Callable[[], Callable[[Any], Any]]
    shape: tuple[int, ...]
    axis: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    substitute: bool = False


def check_layer(layer: Layer, reason: str | None) -> None:
    """Check that a layer streams exactly, or that it is refused with the reason."""
    context = substituted() if layer.substitute else contextlib.nullcontext()
    with jax.numpy_dtype_promotion("standard"), context:  # other projects promote types implicitly
        function = layer.make()
        if reason is None:
            check_values(function, layer.shape, layer.axis, **{"lengths": (1, 2, 5, 8, 13), **layer.options})
            return
        asked = {key: value for key, value in layer.options.items() if key in ("multiple", "constraints", "past")}
        example = jax.ShapeDtypeStruct(layer.shape, layer.options.get("dtype", np.float32))
        with pytest.raises(jaxrnn.StreamError) as caught:
            jaxrnn.stream(function, example, axes=layer.axis, **asked)
        assert re.search(reason, str(caught.value)), caught.value


def check_bounded(layer: Layer) -> None:
    """Check a layer with bounded futures: the stream is exact, and a long future changes nothing."""
    with jax.numpy_dtype_promotion("standard"):
        function = layer.make()
        x = np.random.default_rng(0).normal(size=layer.shape).astype(np.float32)
        far = jaxrnn.bounded(function, x, axes=layer.axis, future=x.shape[layer.axis])
        for found, known in zip(jax.tree.leaves(far(x)), jax.tree.leaves(function(x)), strict=True):
            np.testing.assert_allclose(found, known, rtol=0, atol=1e-6)
        check(jaxrnn.bounded(function, x, axes=layer.axis, future=2), x, axes=layer.axis, lengths=(1, 5))


def varied(params: Any, seed: int = 0) -> Any:
    """Return parameters with noise, as zeros and ones of a new layer would hide mistakes."""
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(structure, [_with_noise(leaf, rng) for leaf in leaves])


def _with_noise(leaf: Any, rng: np.random.Generator) -> Any:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return leaf + jnp.asarray(rng.uniform(0.05, 0.3, leaf.shape), leaf.dtype)
