"""Reading a configuration file: where each key stands, overrides from a command line, and paths in it."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.files import check_regular
from jaxrnn.settings.loader import Keys, brief, parse

#: What stands in place of values of a file: ``key.sub=value`` with YAML behind it, or values by ``key.sub``.
Overrides = Sequence[str] | Mapping[str, Any]


class Source:
    """A configuration as it was written, with where each part of it comes from.

    Attributes:
        path: the file.
        folder: that of the file, which paths in it are relative to.
        values: its content, overrides included.
    """

    def __init__(self, path: Path, values: dict[str, Any], lines: dict[Keys, int]):
        self.path = path
        self.folder = path.resolve().parent
        self.values = values
        self._lines = lines
        self._overrides: dict[Keys, str] = {}

    def override(self, overrides: Overrides) -> None:
        """Put values in place of others.

        Args:
            overrides: texts such as ``loss.power=0.5``, the value being YAML; or values by such keys.

        Raises:
            InputError: a text has another form, or keys lead into something that is no mapping.
        """
        if isinstance(overrides, Mapping):
            for key, value in overrides.items():
                self._put(key, os.fspath(value) if isinstance(value, os.PathLike) else value, f"overrides[{key!r}]")
            return
        for assignment in overrides:
            left, equals, right = assignment.partition("=")
            if not equals or not all(left.split(".")):
                raise InputError(f"--set {assignment}: expected KEY=VALUE or KEY.KEY=VALUE")
            self._put(left.strip(), parse(right, f"--set {assignment}")[0], f"--set {assignment}")

    def _put(self, dotted: str, value: Any, label: str) -> None:
        keys: Keys = tuple(dotted.split("."))
        inner = self.values
        for place, key in enumerate(keys[:-1], 1):
            if key not in inner:
                self._overrides[keys[:place]] = label
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"{label}: {'.'.join(map(str, keys[:place]))} is {brief(inner)}, not a mapping")
        inner[keys[-1]] = value
        self._overrides[keys] = label

    def place(self, keys: Keys) -> str:
        """Where a value stands, for a message: the file and line, or the override."""
        for length in range(len(keys), 0, -1):
            if keys[:length] in self._overrides:
                return self._overrides[keys[:length]]
            if keys[:length] in self._lines:
                return f"{self.path}, line {self._lines[keys[:length]]}"
        return str(self.path)

    def expand(self, text: str) -> Path:
        """A path with the variables of the environment and ``~`` filled in, relative to the file's folder.

        ``${NAME:-other}`` stands for ``other`` where the variable is not set.

        Raises:
            ValueError: a variable is not set, or the text cannot be a path.
        """
        if "\0" in text:
            raise ValueError(f"{text!r} cannot be a path: it holds a NUL")

        def value_of(found: re.Match[str]) -> str:
            name = found["name"] or found["bare"]
            value = os.environ.get(name) or found["default"]
            if value is None:
                raise ValueError(
                    f"the environment variable {name} is not set (in {text!r}); set it, or write ${{{name}:-default}}"
                )
            return value

        return self.folder / Path(_VARIABLE.sub(value_of, text)).expanduser()


_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}|\$(?P<bare>\w+)")


def read_source(path: str | os.PathLike[str], overrides: Overrides = ()) -> Source:
    """Read a configuration file.

    Raises:
        InputError: it cannot be read, is no YAML, has a key twice, or stands for too much; says where.
    """
    path = Path(path)
    try:
        text = check_regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    values, lines = parse(text, str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values, such as 'model: net.onnx', not {brief(values)}")
    source = Source(path, copy.deepcopy(values), lines)
    source.override(overrides)
    return source
