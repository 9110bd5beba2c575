"""What values must be for a graph to mean anything, asked of values that are not known while a program is written.

Where a graph is evaluated node by node, an operator sees its values and raises. Where a call is compiled as a whole, it
hands a condition on instead; the program returns whether all of them held, and the caller looks. In programs of the
user's nobody looks, and what an operator does then is its own: reading outside of an axis gives NaN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

_collector: ContextVar[tuple[list[Any], Any] | None] = ContextVar("demands", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[Any]]:
    """Collect the conditions that `demand` hands on inside."""
    conditions: list[Any] = []
    token = _collector.set((conditions, get_opaque_trace_state()))
    try:
        yield conditions
    finally:
        _collector.reset(token)


def demand(condition: Callable[[], Any]) -> None:
    """Ask that every element of a condition on traced values is true; nobody looks into the body of a loop.

    Args:
        condition: computes it.
    """
    collector = _collector.get()
    if collector is not None and collector[1] == get_opaque_trace_state():
        collector[0].append(jnp.all(condition()))


def all_hold(conditions: list[Any]) -> jax.Array | None:
    """Whether all conditions hold; None where there are none."""
    return jnp.stack(conditions).all() if conditions else None
