"""NumPy arrays on the device, without a program: ``jnp.asarray`` compiles one for every shape."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def placed(array: Any) -> jax.Array:
    """A copy of an array on JAX's default device, of which JAX knows that it stays there.

    JAX compiles a function anew where an argument that was free to move is one that is not. The outputs of a function
    from a file are not, so a state that is not either is the same to it in the first step and in all others.
    """
    with jax.ensure_compile_time_eval():
        # A copy: on the CPU, JAX reads a NumPy array where it lies.
        on_device = jax.device_put(np.array(array))
        return jax.device_put(on_device, on_device.sharding)
