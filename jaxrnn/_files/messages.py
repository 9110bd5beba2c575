"""Text for values: in messages, at a prompt and in JSON."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxrnn.errors import InputError

if TYPE_CHECKING:
    import jinja2


class Metavar(str):
    """A word in place of a value in an argument in a message, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


VALUE, SIZE = Metavar("VALUE"), Metavar("SIZE")


def bytes_of(size: int) -> str:
    """Format a number of bytes."""
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size >> power:,} {unit}" if size >= 10 * 2**power else f"{size / 2**power:.1f} {unit}"
    return f"{size} bytes"


def too_large(size: int, most: int) -> str:
    """Return the words about a number of bytes above a limit."""
    return f"it is too large: it has {bytes_of(size)}, and the limit is {bytes_of(most)}"


def pairs_of(values: Mapping[str, Any]) -> str:
    """Format a dict of values: ``S=20, batch=1``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def first_line(error: BaseException, longest: int = 500) -> str:
    """Return the first line of an error message, shortened, or the type of an error without a message."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def whole_message(error: BaseException, advice: str = "") -> str:
    """Return an error message, or the type of an error without a message, with advice added to the first line."""
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return "\n".join([first.rstrip() + advice, *rest])


def describe(value: Any) -> str:
    """Return dtype and shape of an array, ``float32[1, 257]``, or the type of any other object."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return type(value).__name__
    # The dtype of random keys has no `kind`, and the dtype of a tensor of PyTorch has no `name`.
    dtype = "string" if getattr(value.dtype, "kind", "V") in "TU" else getattr(value.dtype, "name", value.dtype)
    return f"{dtype}[{', '.join(map(str, value.shape))}]"


def near(name: Any, known: Iterable[Any]) -> str:
    """Return `` (did you mean 'x'?)`` for the most similar name, ignoring case, or an empty text."""
    names = {str(each).casefold(): str(each) for each in known}
    close = difflib.get_close_matches(str(name).casefold(), names, n=1, cutoff=0.5)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def check_word(name: str, value: Any, known: Iterable[Any]) -> None:
    """Raise InputError for a value that is not one of a few words."""
    known = list(known)
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(map(str, known))}, not {value!r}{near(value, known)}")


def near_or_all(name: Any, known: Iterable[Any]) -> str:
    """Return the result of `near`, or a list of the first names if no name is similar."""
    names = [str(each) for each in known]
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return near(name, names) or (f"; there is: {listed}" if names else "")


Class = TypeVar("Class")

#: The most items of a collection, letters of a text, columns and lines of a representation.
ITEMS, LETTERS, COLUMNS, LINES = 4, 60, 118, 9

#: Types of fields that are left out if equal to the default.
_PLAIN = (type(None), bool, int, float, str, tuple)


def short_repr(kind: type[Class]) -> type[Class]:
    """Give a dataclass or a named tuple a short representation."""
    kind.__repr__ = short  # pyright: ignore[reportAttributeAccessIssue]
    return kind


def short(value: Any) -> str:
    """Return the representation of a dataclass or a named tuple: fields that differ from defaults, each shortened."""
    said = ", ".join(f"{name}={part_of(part)}" for name, part in _fields(value))
    return wrapped(f"{type(value).__name__}({said})")


def wrapped(text: str) -> str:
    """Wrap a representation to a few lines, and cut the rest."""
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
    """Return a short text for a part of a value."""
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
    """Cut the middle of a long text; both ends of a path are informative."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def without_folders(label: str) -> str:
    """Return the name of a model without folders."""
    return label if label.startswith("model ") else re.sub(r"^(the stream of )?.*[/\\]", r"\1", label)


def _listed(parts: Any, count: int) -> str:
    shown = [part for _, part in zip(range(ITEMS), parts, strict=False)]
    return ", ".join(shown) + (f", ... {count} in all" if count > ITEMS else "")


def as_json(value: Any) -> Any:
    """Convert a value to JSON types: dataclasses to objects, fractions to text, NaN and infinities to null."""
    import numpy as np  # not above, so that `--help` of commands is fast

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def environment(folder: Path) -> jinja2.Environment:
    """Return the templates of a folder. Values are escaped against hostile names, and missing values raise errors."""
    import jinja2  # an optional package, which most users of this module do not need

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
