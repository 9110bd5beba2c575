"""Earlier versions of operators: the later version without some of its inputs and attributes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def earlier(function: Callable[..., Any], *absent: str, **fixed: Any) -> Callable[..., Any]:
    """An operator as it was before it had some inputs and attributes.

    Args:
        function: the later version.
        absent: the inputs and attributes that the earlier version does not have. They keep the later one's defaults.
        fixed: the same with values that differ from the defaults.
    """
    signature = inspect.signature(function)
    assert {*absent, *fixed} <= signature.parameters.keys()
    parameters = [each for each in signature.parameters.values() if each.name not in {*absent, *fixed}]
    version = functools.partial(function, **fixed)
    version.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return version
