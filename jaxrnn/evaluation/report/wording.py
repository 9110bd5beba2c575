"""Numbers and foreign text as a page shows them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

#: What stands for no value.
NONE = "\N{EN DASH}"

#: Characters of a foreign text that are shown; an ellipsis stands for the rest.
LONGEST = 160


def is_number(value: Any) -> bool:
    """Whether a cell is a number; a truth value is a word."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def defined(values: Sequence[Any]) -> list[float]:
    """The finite numbers among the cells of a column."""
    return [float(value) for value in values if is_number(value) and math.isfinite(value)]


def decimals(values: Sequence[Any]) -> int:
    """Digits after the point for a column of numbers: four significant digits of the largest, none for integers."""
    numbers = defined(values)
    if all(number == round(number) for number in numbers):
        return 0
    largest = max(map(abs, numbers))
    return min(8, max(1, 3 - math.floor(math.log10(largest))))


def number(value: Any, places: int | None = None, *, sign: bool = False) -> str:
    """A number with digits after the point; by default as many as it needs."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if places is None:
        places = decimals([value])
    if abs(value) >= 1e12:
        return f"{value:.4g}"
    text = f"{value:{'+' if sign else ''}.{places}f}"
    return text.lstrip("+-") if not float(text) else text


def whole(count: int) -> str:
    """A count, in groups of three digits."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def text(value: Any, longest: int = LONGEST) -> str:
    """Foreign text that can be shown and written: without control characters, valid Unicode, and not too long."""
    shown = "".join(character if _is_shown(character) else "\N{REPLACEMENT CHARACTER}" for character in str(value))
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _is_shown(character: str) -> bool:
    # Cc: control, Cs: halves of pairs, as undecodable file names have them.
    return character in "\t\n" or unicodedata.category(character) not in ("Cc", "Cs")


def words(value: Any) -> str:
    """A cell of a table, whatever it holds."""
    if value is None:
        return NONE
    return number(value) if is_number(value) else text(value)


def labelled(label: str, unit: str) -> str:
    """A foreign name with its unit."""
    return text(f"{label} ({unit})" if unit else label, 80)


def duration(seconds: float | None) -> str:
    """A length of time: ``4.2 s``, ``3 min 05 s``, ``2.31 h``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{seconds / 3600:.2f} h"


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested facts as one list of names and values; a name is ``models.dtln_1.onnx``."""
    entries: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{before}{name}"
        if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(place): entry for place, entry in enumerate(value, 1)}
        if isinstance(value, Mapping) and value:
            entries += flat(value, f"{label}.")
        elif isinstance(value, list | tuple):
            entries.append((text(label), ", ".join(map(words, value)) or NONE))
        else:
            entries.append((text(label), text(value, 2000) if isinstance(value, str) else words(value)))
    return entries
