"""Short representations of values at a prompt: no arrays written out, and a few lines at most."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from jaxrnn.messages import describe

Class = TypeVar("Class")

#: The most items of a collection, letters of a text, columns and lines of a representation.
ITEMS, LETTERS, COLUMNS, LINES = 4, 60, 118, 9

#: Defaults that need no mention.
_PLAIN = (type(None), bool, int, float, str, tuple)


def brief(kind: type[Class]) -> type[Class]:
    """Gives a dataclass or a named tuple a short representation."""
    kind.__repr__ = short  # pyright: ignore[reportAttributeAccessIssue]
    return kind


def short(value: Any) -> str:
    """The representation of a dataclass or a named tuple: what differs from its defaults, each part shortened."""
    said = ", ".join(f"{name}={part_of(part)}" for name, part in _fields(value))
    return wrapped(f"{type(value).__name__}({said})")


def wrapped(text: str) -> str:
    """A representation on a few lines, what is too much for them left out."""
    lines = textwrap.wrap(
        text, COLUMNS, subsequent_indent="  ", max_lines=LINES, placeholder=" ...)", break_on_hyphens=False
    )
    return "\n".join(lines)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if not dataclasses.is_dataclass(value):
        yield from value._asdict().items()
        return
    for field in dataclasses.fields(value):
        part, default = getattr(value, field.name), field.default
        if field.repr and not (isinstance(part, _PLAIN) and type(part) is type(default) and part == default):
            yield field.name, part


def part_of(value: Any) -> str:
    """A short text for a part of something."""
    if isinstance(value, str):
        return repr(shortened(value))
    if isinstance(value, Mapping):
        return f"{{{_listed((f'{part_of(key)}: {part_of(item)}' for key, item in value.items()), len(value))}}}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return f"({_listed(map(part_of, value), len(value))})"
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "shape") and hasattr(value, "dtype") and not dataclasses.is_dataclass(value):
        return describe(value)
    if dataclasses.is_dataclass(value) and type(value).__str__ is not object.__str__:
        return str(value)
    return shortened(repr(value).splitlines()[0], COLUMNS)


def shortened(text: str, longest: int = LETTERS) -> str:
    """A text without its middle, where it is long: both ends of a path say something."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def without_folders(label: str) -> str:
    """What messages call a model, of a path its last part: short wherever the file lies."""
    return label if label.startswith("model ") else re.sub(r"^(the stream of )?.*[/\\]", r"\1", label)


def _listed(parts: Any, count: int) -> str:
    shown = [part for _, part in zip(range(ITEMS), parts, strict=False)]
    return ", ".join(shown) + (f", ... {count} in all" if count > ITEMS else "")
