"""The settings, traces, compiled calls and devices of JAX around the arithmetic of the library, and the compute dtype.

With ``dtype="bfloat16"``, or float16, operands of matrix products and convolutions are rounded to that type. Sums
accumulate in float32, and all other work stays in the file's types (mixed precision). `check_params` checks parameters
under a compute dtype. `lowest` and `highest` are the limits of a dtype.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import config, xla_bridge

from jaxrnn._files.messages import describe, near_or_all
from jaxrnn._jax.varying import alike
from jaxrnn.errors import InputError, StateError, check_kind

_UNCHANGED = contextlib.nullcontext()
#: The names of JAX's settings for moves between host and device.
_GUARDS = "jax_transfer_guard_host_to_device", "jax_transfer_guard_device_to_host"


@contextlib.contextmanager
def own_arithmetic() -> Iterator[None]:
    """Allow rank promotion, and moves between host and device, even if the caller's configuration forbids both.

    ONNX operators broadcast like NumPy by specification, and constants and NumPy arguments must reach the device.
    Functions of the caller do not run inside this context, and the configuration outside does not change.

    A derivative rule must enter the context again, because JAX can run the rule long after the function.
    """
    with jax.numpy_rank_promotion("allow"), own_transfers():
        yield


def own_names() -> contextlib.AbstractContextManager[None]:
    """Compile programs with their own scopes: JAX's cache on the disk otherwise takes equal programs for the same."""
    return config.compilation_cache_include_metadata_in_key(True)


def own_transfers() -> contextlib.AbstractContextManager[None]:
    """Allow moves between host and device, even if the caller's configuration forbids moves.

    Without such a setting, the context is empty, because a JAX context takes as long as a step of a small network.
    """
    guards = (getattr(jax.config, name) for name in _GUARDS)
    return _UNCHANGED if all(guard in (None, "allow") for guard in guards) else _allowed_transfers()


@contextlib.contextmanager
def _allowed_transfers() -> Iterator[None]:
    # `jax.transfer_guard` also guards moves between devices and takes ten times as long.
    with jax.transfer_guard_host_to_device("allow"), jax.transfer_guard_device_to_host("allow"):
        yield


@contextlib.contextmanager
def exact_types() -> Iterator[None]:
    """Keep 64-bit types inside this context, and allow everything that `own_arithmetic` allows.

    The caller's JAX configuration outside does not change.
    """
    with jax.enable_x64(True), own_arithmetic(), np.errstate(all="ignore"):
        yield


class _Collector:
    """Python's collector of cycles, paused while threads need the pause."""

    def __init__(self) -> None:
        self._lock, self._was_on = threading.Lock(), False
        # Weak, because an interrupt can end a pause at any point: the pause is then gone, and the next pause ends it.
        self._pauses: weakref.WeakSet[threading.Event] = weakref.WeakSet()

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Collect cycles after this context, unless the collector is off anyway."""
        pause = threading.Event()
        try:
            with self._lock:
                if not self._pauses:
                    self._was_on |= gc.isenabled()
                    gc.disable()
                self._pauses.add(pause)
            yield
        finally:
            with self._lock:
                self._pauses.discard(pause)
                if not self._pauses and self._was_on:
                    self._was_on = False
                    gc.enable()


#: Pauses the collector of cycles during a trace. The objects of a trace stay in use, and the collector would visit all
#: objects of the process again and again: up to a third of the time of a trace.
without_collector = _Collector().pause

#: The class names of traces that compute eagerly, because JAX has no public test. Other traces can stage a program.
_EAGER = {"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"}

_UNMAPPED: ContextVar[bool] = ContextVar("jaxrnn_unmapped", default=False)


@contextlib.contextmanager
def unmapped() -> Iterator[None]:
    """Promise that functions traced inside are not mapped over many streams or frames."""
    token = _UNMAPPED.set(True)
    try:
        yield
    finally:
        _UNMAPPED.reset(token)


def is_unmapped() -> bool:
    """Return True inside `unmapped`."""
    return _UNMAPPED.get()


def is_staged() -> bool:
    """Return True while JAX traces a program, as under ``jit`` and ``scan``."""
    # A late import: the module loads Pallas, which takes longer than starting a step from a compiled file.
    from jax.extend.core import take_current_trace

    names = set()
    with take_current_trace() as trace:
        while trace is not None:
            names.add(type(trace).__name__)
            trace = getattr(trace, "parent_trace", None)
    return not names <= _EAGER


def placed(array: Any) -> jax.Array:
    """Return a copy of an array that is committed to JAX's default device.

    JAX compiles a function twice if an argument is first uncommitted and then committed. The outputs of a function from
    a file are committed, so a committed first state avoids the second compilation.
    """
    with jax.ensure_compile_time_eval():
        # A copy, because on CPU JAX uses the memory of a NumPy array.
        on_device = jax.device_put(np.array(array))
        return jax.device_put(on_device, on_device.sharding)


@dataclass(frozen=True)
class OnHost:
    """A JAX array as a NumPy array, a leaf of a pytree in a pickle.

    Pickled JAX arrays are restored with 32 bits if ``jax_enable_x64`` is off.
    """

    array: np.ndarray


def on_host(tree: Any) -> Any:
    """Move the JAX arrays of a pytree to the host; other leaves do not change."""
    return jax.tree.map(
        lambda leaf: OnHost(np.asarray(jax.device_get(leaf))) if isinstance(leaf, jax.Array) else leaf, tree
    )


def on_device(tree: Any) -> Any:
    """Invert `on_host`."""
    with exact_types():
        return jax.tree.map(lambda leaf: jnp.array(leaf.array) if isinstance(leaf, OnHost) else leaf, tree)


def default_device() -> Any:
    """Return the device on which JAX puts new arrays."""
    (device,) = jax.device_put(0).devices()
    return device


def in_calling_thread(device: Any) -> Any:
    """Return a CPU device that computes in the calling thread, in place of a CPU device; other devices do not change.

    JAX's default CPU device passes each program to a worker thread, which takes half as long as a step of a small
    network. Arrays cannot be used on both devices: move arrays through the host.
    """
    return _synchronous_cpu() or device if device.platform == "cpu" else device


@functools.cache
def _synchronous_cpu() -> Any:
    try:
        from jaxlib import xla_client

        return xla_client.make_cpu_client(asynchronous=False).local_devices()[0]
    except Exception:  # any error: this interface of JAX is private
        return None


#: The first process of this family of forks that had started JAX before a fork; None if there is no such process.
_computed_in: int | None = None


def _note_fork() -> None:
    global _computed_in
    if _computed_in is None and xla_bridge.backends_are_initialized():
        _computed_in = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_fork)


def check_process() -> None:
    """Raise StateError in a fork of a process that has started JAX: JAX's threads are missing, and calls never end."""
    if _computed_in is not None and _computed_in != os.getpid():
        raise StateError(
            f"this process is a fork of process {_computed_in}, which had used JAX before: the threads of JAX do not "
            "exist here, and a computation may never end. Start processes with multiprocessing's 'spawn', as in "
            "multiprocessing.get_context('spawn').Process(...), or fork before JAX is used"
        )


def jitted(method: Callable[..., Any]) -> Any:
    """Decorate a pure method, so that eager calls are compiled once for each shape, also under ``grad`` and ``vmap``.

    Outside of a program, JAX compiles each loop at each call, because the loop's body is a new function in each call.
    The compiled function belongs to an instance, and keeps no other instance alive. Inside `jax.shard_map`, arrays vary
    over the same mesh axes (see `jaxrnn._jax.varying`). Positional arguments are pytrees of arrays, and keyword
    arguments are hashable.
    """

    @functools.wraps(method)
    def of_instance(instance: Any) -> Callable[..., Any]:
        function = method.__get__(instance)

        # Contexts such as `matrix_products_in` act while tracing, and are part of the keys of JAX's caches.
        @functools.partial(jax.jit, static_argnums=0)
        def program(known: tuple[tuple[str, Any], ...], *arrays: Any) -> Any:
            return function(*arrays, **dict(known))

        @functools.wraps(function)
        def call(*arrays: Any, **known: Any) -> Any:
            if is_staged():
                return function(*alike(*arrays), **known)
            return program(tuple(known.items()), *arrays)

        return call

    return functools.cached_property(of_instance)


def program(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return ``jax.jit`` of a function, which also compiles if ``jax_disable_jit`` is set.

    A live step runs on a device of its own (see `in_calling_thread`). Operation by operation, JAX would mix this device
    with the default device.
    """
    jitted = jax.jit(function, **options)

    @functools.wraps(function)
    def call(*arrays: Any) -> Any:
        if not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            return jitted(*arrays)
        with jax.disable_jit(False):
            return jitted(*arrays)

    return call


#: The possible compute dtypes.
COMPUTE_TYPES = ("bfloat16", "float16")


def compute_type(dtype: Any) -> np.dtype | None:
    """Return a compute dtype, or None to keep the types of the file; raise InputError for any other type."""
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except (TypeError, ValueError):
        name = dtype if isinstance(dtype, str) else repr(dtype)
    if name not in COMPUTE_TYPES:
        types = " or ".join(map(repr, COMPUTE_TYPES))
        raise InputError(f"dtype must be {types}, or None for the types of the file, not {name!r}")
    return jnp.dtype(name)


def lowest(dtype: Any) -> Any:
    """Return the smallest value of a dtype, the neutral element of a maximum: -inf, or a number without infinities."""
    return _limit(np.dtype(dtype), -1)


def highest(dtype: Any) -> Any:
    """Return the largest value of a dtype, the neutral element of a minimum: inf, or a number without infinities."""
    return _limit(np.dtype(dtype), 1)


def _limit(dtype: np.dtype, sign: int) -> Any:
    if dtype == np.bool_:
        return np.bool_(sign > 0)
    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype)
    limit = np.asarray(info.max if sign > 0 else info.min, dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        infinite = np.asarray(sign * np.inf, dtype)  # NaN in some floats of 8 bits
        limit = infinite if infinite == sign * np.inf else limit
    return limit[()]


def check_params(params: Any, expected: Mapping[str, Any], dtype: np.dtype | None = None) -> None:
    """Check the names of parameters, and each parameter as in `check_param`."""
    check_names(params, expected)
    for name, array in expected.items():
        check_param(f"params[{name!r}]", params[name], array, dtype)


def check_names(params: Any, expected: Mapping[str, Any], *, some: bool = False) -> None:
    """Check the names of parameters; with ``some``, names can be missing. An InputError suggests the nearest name."""
    check_kind("params", params, Mapping, "a dict of arrays by name, like model.params")
    for name in params:
        if name not in expected:
            raise InputError(f"params: there is no parameter {name!r}{near_or_all(name, expected)}")
    missing = [] if some else [name for name in expected if name not in params]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"params: {missing[0]!r} is missing{more}")


def check_param(where: str, value: Any, expected: Any, dtype: np.dtype | None = None) -> None:
    """Check the shape and dtype of a parameter, called ``where`` in messages; otherwise raise InputError.

    With a compute dtype, a parameter in this dtype is accepted in place of float32: the parameter takes half the
    memory, products use the elements without rounding, and the gradient has the same dtype. Python numbers are
    converted. ``expected`` is an array or a struct.
    """
    have, want, is_lowered = getattr(value, "dtype", None), expected.dtype, expected.dtype == np.float32
    if isinstance(value, (int, float)) and expected.shape == () and jnp.issubdtype(want, jnp.floating):
        return
    fix, types = "", [want, *([] if dtype is None or not is_lowered else [dtype])]
    if have is not None and tuple(np.shape(value)) == tuple(expected.shape):
        if have in types or _canonical(have) == _canonical(want):
            return
        if is_lowered and dtype is None and getattr(have, "name", None) in COMPUTE_TYPES:
            fix = f"; `dtype={have.name!r}` takes parameters of that type"
        elif (have, want) == (np.float32, np.float64):
            fix = "; float64 needs jax_enable_x64: call inside 'with jax.enable_x64(True):'"
        elif isinstance(want, np.dtype):
            # The dtype of a tensor of PyTorch has no name.
            fix = f"; convert it with {f'.astype({want.name!r})' if hasattr(have, 'name') else 'numpy.asarray'}"
    alternative = f" or {types[1].name}" if types[1:] else ""
    raise InputError(f"{where} must be {describe(expected)}{alternative}, not {describe(value)}{fix}")


def cast_params(params: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked parameters in the expected dtypes and order."""
    return {name: cast_param(params[name], array) for name, array in expected.items()}


def cast_param(value: Any, expected: Any) -> Any:
    """Return a checked parameter in the expected dtype."""
    want = _canonical(expected.dtype)
    return value if getattr(value, "dtype", None) == want else jnp.asarray(value).astype(want)


def _canonical(dtype: Any) -> Any:
    """Return the dtype to which JAX narrows a dtype here; dtypes of random keys do not change."""
    return jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
