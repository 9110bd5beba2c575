"""One function in two forms: one that is fast on CPUs, and the plain one, which all other platforms get.

The choice is made where a program is lowered, so that one traced function, and one exported file, serves every
platform. Forms agree up to rounding. Nothing that outlives a call depends on the choice: parameters, packed ones too,
and states are the same on all platforms.

A function that becomes an ONNX graph is traced in plain forms alone: there, another engine chooses what is fast. Layers
and convolutions are then one equation each, and windows of a stream keep the order of their axes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxrnn._jax.varying import platform_dependent

#: Whether functions are traced in plain forms. Part of the key of every cache of JAX.
_plain = jax.make_user_context(False)


@contextlib.contextmanager
def plain_forms(wanted: bool = True) -> Iterator[None]:
    """Trace everything as the textbook has it, for an ONNX graph, or again in the forms that XLA is fast with."""
    with _plain(wanted):
        yield


def is_plain() -> bool:
    """Whether functions are traced in plain forms here."""
    return _plain.value


def by_platform(cpu: Callable[..., Any], plain: Callable[..., Any], *operands: Any) -> Any:
    """``cpu(*operands)`` in a program for CPUs, and ``plain(*operands)`` in one for any other platform.

    In plain forms, it is ``plain(*operands)`` everywhere. Called outside of any transformation, the platform is that of
    JAX's default device.

    Args:
        cpu: a function of arrays.
        plain: another one, which gives arrays of the same shapes and types.
        operands: pytrees of arrays.
    """
    if is_plain():
        return plain(*operands)
    return platform_dependent(*operands, cpu=cpu, default=plain)
