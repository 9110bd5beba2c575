"""How messages show sizes."""

from __future__ import annotations


def bytes_of(size: int) -> str:
    """A number of bytes for a message."""
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size >> power:,} {unit}" if size >= 10 * 2**power else f"{size / 2**power:.1f} {unit}"
    return f"{size} bytes"


def count_of(number: int) -> str:
    """A number for a message."""
    return f"{number:,}"
