"""Checks of whole numbers that are arguments."""

from __future__ import annotations

import operator
from typing import Any

from jaxrnn.errors import InputError


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number that is large enough; True and False are none."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is large enough.

    Raises:
        InputError: it is not one.
    """
    if not is_count(value, least):
        raise InputError(f"{name} must be a whole number from {least} on, not {value!r}")
    return operator.index(value)
