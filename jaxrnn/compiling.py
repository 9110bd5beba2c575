"""How programs are compiled: XLA's options for the processor at hand, and a ``jax.jit`` that takes them.

XLA writes code with vectors of 256 bits for every x86 processor, because the first ones with 512 lowered their clock
for those. Loops over frames, whose products of matrix and vector fill whole vectors, are faster with 512.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

#: The instructions that came with the second generation of AVX-512, in NumPy's words: Ice Lake, Zen 4 and later. On
#: Skylake and Cascade Lake, vectors of 512 bits lower the clock.
_WIDE = "AVX512_ICL"
_WIDTH = "xla_cpu_prefer_vector_width"
#: What says in ``XLA_FLAGS`` that its user has decided on vectors.
_DECIDED = (_WIDTH, "xla_cpu_max_isa")
#: What XLA hands to YNNPACK; the rest is Eigen's, whose products of large matrices are faster.
_YNNPACK = "xla_cpu_experimental_ynn_fusion_type"

#: The traces that compute at once, by name; JAX has no other public name for them. All others write a program, or may.
_AT_ONCE = {"EvalTrace", "JVPTrace", "LinearizeTrace", "BatchTrace"}
#: Of these, the ones that make the function under ``jit`` a part of another program.
_PARTIAL = {"LinearizeTrace"}

_UNMAPPED: ContextVar[bool] = ContextVar("jaxrnn_unmapped", default=False)


def compiler_options(*, large_products: bool = False) -> dict[str, Any]:
    """XLA's options for functions that loop over frames, on this machine's processor: ``jax.jit(compiler_options=)``.

    The library compiles with them by itself wherever it compiles: models that are called, `scan`, `run`, pools,
    evaluation, `fit`. In a function under one's own ``jit``, JAX takes them from the outermost one alone::

        scan = jax.jit(model.scan, compiler_options=jaxrnn.compiler_options())

    Args:
        large_products: for many streams at once through layers of 128 units and more, with packed parameters. Products
            of large matrices are faster then, those of small or transposed ones slower.

    Returns:
        Vectors of 512 bits where the default platform is a CPU that has them without lowering its clock. Nothing on
        other platforms, of what ``XLA_FLAGS`` decides, and of what XLA does not know.
    """
    return dict(_options(os.environ.get("XLA_FLAGS", ""), jax.default_backend(), large_products))


@functools.cache
def _options(flags: str, platform: str, large_products: bool) -> dict[str, Any]:
    if platform != "cpu":
        return {}
    options = {}
    if _WIDE in _features() and not any(name in flags for name in _DECIDED):
        options[_WIDTH] = 512
    if large_products and _YNNPACK not in flags:
        options[_YNNPACK] = ""
    return {name: value for name, value in options.items() if _knows({name: value})}


def _features() -> set[str]:
    """The instructions of this processor beyond the least that its architecture has, as NumPy found them."""
    found: Any = np.show_config(mode="dicts")
    extensions = found.get("SIMD Extensions", {}) if found else {}
    return {*extensions.get("baseline", ()), *extensions.get("found", ())}


def _knows(options: dict[str, Any]) -> bool:
    """Whether XLA takes some options. It looks at them one by one before it compiles: the last one here ends that."""
    try:
        jax.jit(lambda: None).lower().compile({**options, "jaxrnn": True})
    except jax.errors.JaxRuntimeError as error:
        return "'jaxrnn'" in str(error)
    return True


def jit(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """``jax.jit`` with `compiler_options`, of a function that may also be called where another program is written.

    JAX refuses options there, under ``grad`` too, and the function is then compiled as its caller's program is.

    Args:
        function: what to compile.
        how: other arguments of ``jax.jit``.
    """
    plain = jax.jit(function, **how)

    @functools.cache
    def alone() -> Callable[..., Any]:
        options = compiler_options()
        return jax.jit(function, **how, compiler_options=options) if options else plain

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (alone() if _is_alone() else plain)(*args, **kwargs)

    return call


@contextlib.contextmanager
def unmapped() -> Iterator[None]:
    """What is traced here runs on the few frames that it sees: nobody maps it over many streams or frames."""
    token = _UNMAPPED.set(True)
    try:
        yield
    finally:
        _UNMAPPED.reset(token)


def is_unmapped() -> bool:
    """Whether that is so here."""
    return _UNMAPPED.get()


def is_staged() -> bool:
    """Whether JAX is writing a program here, as under ``jit`` and ``scan``: what is made anew is then a part of it."""
    return not _traces() <= _AT_ONCE


def _is_alone() -> bool:
    """Whether a function under ``jit`` is a program of its own here."""
    return _traces() <= _AT_ONCE - _PARTIAL


def _traces() -> set[str]:
    """The traces that are being made here, by name."""
    # It brings Pallas with it, which takes longer than a step from a compiled file takes to start.
    from jax.extend.core import take_current_trace

    names = set()
    with take_current_trace() as trace:
        while trace is not None:
            names.add(type(trace).__name__)
            trace = getattr(trace, "parent_trace", None)
    return names
