"""One function in two forms: one that is fast on CPUs, and the plain one, which all other platforms get.

The choice is made where a program is lowered, so that one traced function, and one exported file, serves every
platform. Forms agree up to rounding. Nothing that outlives a call depends on the choice: parameters, packed ones too,
and states are the same on all platforms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrnn.varying import platform_dependent


def by_platform(cpu: Callable[..., Any], plain: Callable[..., Any], *operands: Any) -> Any:
    """``cpu(*operands)`` in a program for CPUs, and ``plain(*operands)`` in one for any other platform.

    Called outside of any transformation, the platform is that of JAX's default device.

    Args:
        cpu: a function of arrays.
        plain: another one, which gives arrays of the same shapes and types.
        operands: pytrees of arrays.
    """
    return platform_dependent(*operands, cpu=cpu, default=plain)
