"""Checks of arguments that many functions take: numbers of something, and files to write."""

from __future__ import annotations

import operator
from pathlib import Path
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


def check_writable(path: Path) -> None:
    """Refuse a file whose folder is not there, before any work is done.

    Raises:
        InputError: says what is missing.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
