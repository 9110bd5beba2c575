"""How messages show sizes, arrays and names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any


def bytes_of(size: int) -> str:
    """A number of bytes for a message."""
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size >> power:,} {unit}" if size >= 10 * 2**power else f"{size / 2**power:.1f} {unit}"
    return f"{size} bytes"


def count_of(number: int) -> str:
    """A number for a message."""
    return f"{number:,}"


def describe(value: Any) -> str:
    """Dtype and shape of an array, ``float32[1, 257]``, or the type of anything else."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    dtype = "string" if value.dtype.kind in "TU" else value.dtype.name
    return f"{dtype}[{', '.join(map(str, value.shape))}]"


def near(name: Any, known: Iterable[Any], *, spelled: Callable[[str], str] = repr) -> str:
    """`` (did you mean 'x'?)`` for the nearest of the known names, or nothing."""
    close = difflib.get_close_matches(str(name), list(map(str, known)), n=1, cutoff=0.5)
    return f" (did you mean {spelled(close[0])}?)" if close else ""
