"""How messages show sizes, arrays, names and errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def bytes_of(size: int) -> str:
    """A number of bytes for a message."""
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size >> power:,} {unit}" if size >= 10 * 2**power else f"{size / 2**power:.1f} {unit}"
    return f"{size} bytes"


def pairs_of(values: Mapping[str, Any]) -> str:
    """Values by name: ``S=20, batch=1``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def first_line(error: BaseException, longest: int = 500) -> str:
    """The first line of what an error says, shortened; its type where it says nothing."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def whole_message(error: BaseException, advice: str = "") -> str:
    """All that an error says, with advice added to its first line; its type where it says nothing."""
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return "\n".join([first.rstrip() + advice, *rest])


def describe(value: Any) -> str:
    """Dtype and shape of an array, ``float32[1, 257]``, or the type of anything else."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    # A key of random numbers has a type that is of no kind.
    dtype = "string" if getattr(value.dtype, "kind", "V") in "TU" else value.dtype.name
    return f"{dtype}[{', '.join(map(str, value.shape))}]"


def near(name: Any, known: Iterable[Any]) -> str:
    """`` (did you mean 'x'?)`` for the nearest of the known names, whatever its case, or nothing."""
    names = {str(each).casefold(): str(each) for each in known}
    close = difflib.get_close_matches(str(name).casefold(), names, n=1, cutoff=0.5)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def near_or_all(name: Any, known: Iterable[Any]) -> str:
    """As `near`; where nothing is near, the first of the known names."""
    names = [str(each) for each in known]
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return near(name, names) or (f"; there is: {listed}" if names else "")
