"""Calls that are refused, one to a line: the error, words of its message, and the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def check_refused(error: type[Exception], words: str, call: Callable[..., Any], *arguments: Any, **options: Any):
    """The call raises the error, and the message matches the words, a regular expression."""
    __tracebackhide__ = True
    with pytest.raises(error, match=words):
        call(*arguments, **options)
