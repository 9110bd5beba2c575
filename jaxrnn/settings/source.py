"""Reading a configuration file: where each key stands, overrides from a command line, and paths in it."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxrnn.errors import InputError

#: The keys that lead to a value, from the outside in; items of lists go by their number.
Keys = tuple[str | int, ...]
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
            self._put(left.strip(), _parse(right, f"--set {assignment}")[0], f"--set {assignment}")

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
            ValueError: a variable is not set.
        """

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
        InputError: it cannot be read, is no YAML, or has a key twice; says where.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error
    values, lines = _parse(text, str(path))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values, such as 'model: net.onnx', not {brief(values)}")
    source = Source(path, copy.deepcopy(values), lines)
    source.override(overrides)
    return source


def brief(value: Any) -> str:
    """A value in a message, shortened."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: ``1e-3`` is a number, ``on``, ``1:30`` and dates are words; a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be a word or a number, not {brief(key)}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_RESOLVERS = {
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "tag:yaml.org,2002:timestamp": (r"(?!)", "0"),
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _RESOLVERS]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _firsts) in _RESOLVERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_firsts))


def _parse(text: str, name: str) -> tuple[Any, dict[Keys, int]]:
    """The value of a text, and the line of every key."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        return loader.construct_document(node), dict(_lines(node, ()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{name}{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is no YAML: {str(error).splitlines()[0]}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _lines(node: yaml.Node, keys: Keys) -> Iterator[tuple[Keys, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*keys, key.value)
            yield inner, key.start_mark.line + 1
            yield from _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*keys, index), value.start_mark.line + 1
            yield from _lines(value, (*keys, index))
