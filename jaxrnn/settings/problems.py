"""What pydantic finds wrong with a configuration, as messages: file and line, key, what was expected and what came."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jaxrnn.errors import InputError, JaxrnnError, MissingPackageError

try:
    from pydantic import BaseModel, ValidationError
except ImportError as error:
    raise MissingPackageError(
        "a configuration file needs pydantic: pip install 'jaxrnn[train]' or 'jaxrnn[evaluate]'"
    ) from error

from jaxrnn.messages import near
from jaxrnn.settings.loader import Keys, brief
from jaxrnn.settings.source import Source

Schema = TypeVar("Schema", bound=BaseModel)

#: pydantic's names of errors, as what was expected.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "model_type": "keys and values",
    "path_type": "a path",
    "none_required": "nothing",
    "is_instance_of": "a path",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "less_than_equal": "a number of at most {le:,}",
    "literal_error": "{expected}",
    "callable_type": "a function",
    "invalid_key": "a word as key",
}


def validated(schema: type[Schema], values: Mapping[str, Any], source: Source, keys: Keys = ()) -> Schema:
    """The values as the schema has them.

    Args:
        schema: what may be there.
        values: what is there.
        source: where it came from.
        keys: the keys that lead to the values.

    Raises:
        InputError: all that does not fit.
    """
    try:
        return schema.model_validate(values, context=source)
    except ValidationError as error:
        found = error
    # Of a choice, each alternative reports what it wants: together they are one expectation.
    problems: dict[Keys, list[Any]] = {}
    for each in found.errors(include_url=False):
        problems.setdefault(_path(each["loc"], values, each["type"]), []).append(each)
    said = []
    for path, errors in problems.items():
        if not any(other != path and other[: len(path)] == path for other in problems):
            said.append(_message(schema, path, errors, source, keys))
    raise InputError("\n".join(said)) from found


def problem(source: Source, keys: Keys, message: str) -> InputError:
    """An error about the value of a key."""
    return InputError(
        f"{source.place(keys)}: {dotted(keys)}: {message}" if keys else f"{source.place(keys)}: {message}"
    )


@contextlib.contextmanager
def at(source: Source, keys: Keys) -> Iterator[None]:
    """Inside, errors say which key of the file they are about."""
    try:
        yield
    except JaxrnnError as error:
        raise type(error)(str(problem(source, keys, str(error)))) from error


def dotted(keys: Sequence[str | int]) -> str:
    """Keys as they are written for ``--set``."""
    return ".".join(map(str, keys))


def _message(schema: type[BaseModel], path: Keys, errors: list[Any], source: Source, keys: Keys) -> str:
    kinds = {each["type"] for each in errors}
    came = errors[0]["input"]
    if "extra_forbidden" in kinds:
        known = _known(schema, path[:-1])
        inside = f"{dotted((*keys, *path[:-1]))}." if len(path) + len(keys) > 1 else ""
        text = f"unknown key{near(path[-1], known, spelled=lambda name: inside + name)}; there are: {', '.join(known)}"
    elif kinds == {"missing"}:
        text = "missing"
    elif own := [each for each in errors if each["type"] == "value_error"]:
        text = str(own[0]["ctx"]["error"])
    else:
        wanted = dict.fromkeys(_expected(each) for each in errors)
        text = f"expected {' or '.join(wanted)}, got {brief(came)}"
    return str(problem(source, (*keys, *path), text))


def _expected(error: Any) -> str:
    template = _EXPECTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else error["msg"]


def _path(location: Sequence[str | int], values: Any, kind: str) -> Keys:
    """The part of pydantic's location that leads into the values; the rest names alternatives of a choice."""
    path: list[str | int] = []
    for place, part in enumerate(location):
        last = place == len(location) - 1
        if isinstance(values, Mapping) and (part in values or (last and kind == "missing")):
            values = values.get(part)
            path.append(part)
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
            path.append(part)
    return tuple(path)


def _known(schema: type[BaseModel], path: Keys) -> list[str]:
    """The keys that the schema has where a path leads to."""
    for key in path:
        if key not in schema.model_fields:
            continue  # a key of a mapping from names to sections
        inner = [each for each in _classes(schema.model_fields[str(key)].annotation) if issubclass(each, BaseModel)]
        if inner:
            schema = inner[0]
    return [field.alias or name for name, field in schema.model_fields.items()]


def _classes(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation]
    return [found for argument in typing.get_args(annotation) for found in _classes(argument)]
