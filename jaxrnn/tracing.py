"""What JAX is tracing: whether a function is part of a larger program, and whether it is mapped over a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

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
