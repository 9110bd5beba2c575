"""The settings and traces of JAX around the library's own arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_AS_IT_IS = contextlib.nullcontext()
#: What the caller says of such moves; None where nothing was said.
_GUARDS = "jax_transfer_guard_host_to_device", "jax_transfer_guard_device_to_host"


@contextlib.contextmanager
def own_arithmetic() -> Iterator[None]:
    """Inside, ranks are promoted and arrays moved between host and device, also where the caller's JAX refuses both.

    Operators of ONNX broadcast as NumPy does, by specification; constants of a graph, and arrays of NumPy that an
    object takes by contract, have to get to the device. What the caller's own code does is the caller's: functions of
    theirs are not called inside. The configuration outside is untouched.

    A derivative rule enters it by itself: JAX may run it long after the function that it belongs to.
    """
    with jax.numpy_rank_promotion("allow"), own_transfers():
        yield


def own_transfers() -> contextlib.AbstractContextManager[None]:
    """Inside, arrays are moved between host and device, also where the caller's JAX refuses that.

    Where it does not, there is nothing to enter: a context of JAX takes as long as a small network's step.
    """
    guards = (getattr(jax.config, name) for name in _GUARDS)
    return _AS_IT_IS if all(guard in (None, "allow") for guard in guards) else _allowed_transfers()


@contextlib.contextmanager
def _allowed_transfers() -> Iterator[None]:
    # Not `jax.transfer_guard`, which guards moves between devices too and takes ten times as long to enter.
    with jax.transfer_guard_host_to_device("allow"), jax.transfer_guard_device_to_host("allow"):
        yield


@contextlib.contextmanager
def exact_types() -> Iterator[None]:
    """64-bit types stay 64-bit inside this context; the caller's JAX configuration is untouched outside it.

    Operators broadcast and use constants there as ONNX has it, whatever the caller forbids: see `own_arithmetic`.
    """
    with jax.enable_x64(True), own_arithmetic(), np.errstate(all="ignore"):
        yield


#: Traces that compute eagerly, by class name: JAX has no other public name for them. All others may stage a program.
_EAGER = {"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"}

_UNMAPPED: ContextVar[bool] = ContextVar("jaxrnn_unmapped", default=False)


@contextlib.contextmanager
def unmapped() -> Iterator[None]:
    """Promise that what is traced here is not mapped over many streams or frames."""
    token = _UNMAPPED.set(True)
    try:
        yield
    finally:
        _UNMAPPED.reset(token)


def is_unmapped() -> bool:
    """Return True inside `unmapped`."""
    return _UNMAPPED.get()


def is_staged() -> bool:
    """Return True where JAX is writing a program, as under ``jit`` and ``scan``."""
    # Imported here because it brings Pallas, which takes longer than a step from a compiled file takes to start.
    from jax.extend.core import take_current_trace

    names = set()
    with take_current_trace() as trace:
        while trace is not None:
            names.add(type(trace).__name__)
            trace = getattr(trace, "parent_trace", None)
    return not names <= _EAGER


def placed(array: Any) -> jax.Array:
    """A copy of an array on JAX's default device, of which JAX knows that it stays there.

    JAX compiles a function anew where an argument that was free to move is one that is not. The outputs of a function
    from a file are not, so a state that is not either is the same to it in the first step and in all others.
    """
    with jax.ensure_compile_time_eval():
        # A copy: on the CPU, JAX reads a NumPy array where it lies.
        on_device = jax.device_put(np.array(array))
        return jax.device_put(on_device, on_device.sharding)


@dataclass(frozen=True)
class OnHost:
    """A JAX array as a NumPy array, a leaf of a pytree in a pickle.

    Pickled JAX arrays come back with 32 bits if ``jax_enable_x64`` is off.
    """

    array: np.ndarray


def on_host(tree: Any) -> Any:
    """Return a pytree with its JAX arrays on the host; other leaves do not change."""
    return jax.tree.map(
        lambda leaf: OnHost(np.asarray(jax.device_get(leaf))) if isinstance(leaf, jax.Array) else leaf, tree
    )


def on_device(tree: Any) -> Any:
    """Return the pytree from which `on_host` made this one."""
    with exact_types():
        return jax.tree.map(lambda leaf: jnp.array(leaf.array) if isinstance(leaf, OnHost) else leaf, tree)
