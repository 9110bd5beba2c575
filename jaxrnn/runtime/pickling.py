"""Arrays in pickles: JAX's own come back with 32 bits where ``jax_enable_x64`` is off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrnn._jax.context import exact_types


@dataclass(frozen=True)
class OnHost:
    """An array of JAX, as NumPy's: a leaf of a pytree."""

    array: np.ndarray


def on_host(tree: Any) -> Any:
    """A pytree with its arrays of JAX on the host; other leaves stay what they are."""
    return jax.tree.map(lambda leaf: OnHost(np.asarray(jax.device_get(leaf))) if _is_jax(leaf) else leaf, tree)


def on_device(tree: Any) -> Any:
    """The pytree of `on_host`, as it was."""
    with exact_types():
        return jax.tree.map(lambda leaf: jnp.array(leaf.array) if isinstance(leaf, OnHost) else leaf, tree)


def _is_jax(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)
