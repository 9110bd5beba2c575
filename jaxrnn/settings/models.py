"""The base of all models of settings, validation errors by key, and a reference of the keys.

The text below a key explains the key in ``--keys`` and in the documentation.
"""

from __future__ import annotations

import json
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    SerializationInfo,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticSerializationUnexpectedValue

from jaxrnn._files.arguments import Argument
from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location, Url, resolved
from jaxrnn.errors import InputError


def _from_folder(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    if "\0" in value or "$" in value:
        raise ValueError(f"{value!r} cannot be a path; a variable of the environment is written ${{NAME}}")
    return resolved(info.context or Path(), os.path.expanduser(value))


def _on_this_machine(value: Any, info: ValidationInfo) -> Any:
    path = _from_folder(value, info)
    if isinstance(path, Url):
        raise ValueError(f"expected a file or folder on this machine, not the URL {path}: copy it here")
    return path


def _anywhere(value: Any, info: ValidationInfo) -> Any:
    path = _from_folder(value, info)
    if not isinstance(path, Location):
        raise ValueError(f"expected a path or a URL, not {value!r}")
    return path


def _text_of(path: Any) -> str:
    if not isinstance(path, Location):
        raise PydanticSerializationUnexpectedValue("not a path")  # for the next type of a union
    return str(path)


def _with_folder(name: str, info: SerializationInfo) -> str:
    file, _, function = name.rpartition(":")
    return f"{info.context / file}:{function}" if info.context and file.endswith(".py") else name


#: A path relative to the folder of the settings file, which is the context of a validation.
LocalPath = Annotated[Path, BeforeValidator(_on_this_machine)]
#: Such a path, or the URL of an object in a store.
AnyPath = Annotated[Location, PlainValidator(_anywhere), PlainSerializer(_text_of)]
#: A function by name; serialized with an absolute path if the context is that folder.
FunctionName = Annotated[str, PlainSerializer(_with_folder)]


class Settings(BaseModel):
    """Keys and values of a file, or of a part of a file."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    #: The key for a plain text or path in place of keys and values.
    short: ClassVar[str | None] = None

    @classmethod
    def described(cls) -> Iterator[Argument]:
        """Return the keys with types, defaults and descriptions."""
        for name, field in cls.model_fields.items():
            default = Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)
            kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            yield Argument(name, kind, default, " ".join((field.description or "").split()))

    def check_rules(self) -> None:
        """Raise a ValueError if valid values do not go together."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {cls.short: value} if cls.short is not None and isinstance(value, str | Location) else value

    @model_validator(mode="after")
    def _follow_rules(self) -> Self:
        self.check_rules()
        return self


class OpenSettings(Settings):
    """Keys and values, with options beside the keys."""

    model_config = ConfigDict(extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """Return the keys that this model does not declare."""
        return dict(self.model_extra or {})


class FunctionSettings(OpenSettings):
    """The name and the options of a function, such as a loss or a metric."""

    short = "name"

    name: FunctionName
    """A name in jaxrnn, or your `file.py:function` or `module:function`. Options stand beside the name."""


class ModelSettings(Settings):
    """A network: its file, or keys and values."""

    short = "file"

    file: LocalPath
    """The ONNX file."""
    static: dict[str, Any] = {}
    """Values of inputs that are fixed when the model is loaded, by name."""
    state: dict[str, str] | None = None
    """State inputs with the outputs that update them, if the file is ambiguous; `{}` for no state."""
    dims: dict[str, int | str | dict[int | str, int | float | str]] = {}
    """Sizes of open dimensions, new names, or multiples of other dimensions: `{unk__1: time, T: 4*U}`. By input, fixed
    axes that become open: `{x: {0: time}}`."""


#: The keys that lead to a value, outermost first; the key of a list item is the number.
Keys = tuple[str | int, ...]


class SettingsError(InputError):
    """Mistakes in values: for each, the keys and a description."""

    def __init__(self, mistakes: Sequence[tuple[Keys, str]]):
        super().__init__("\n".join(": ".join(filter(None, (dotted(keys), text))) for keys, text in mistakes))
        self.mistakes = mistakes


def mistakes_of(
    error: ValidationError, values: Any, known: Callable[[Keys], Iterable[str]], kind: str = "key"
) -> SettingsError:
    """Return the mistakes of a validation error.

    ``known`` returns the valid keys below a sequence of keys; ``kind`` is the word for a key.
    """
    by_keys: dict[Keys, list[Any]] = {}
    for each in error.errors(include_url=False):
        by_keys.setdefault(_inside(each["loc"], values, each["type"]), []).append(each)
    # A union reports a mistake for each type: keep mistakes inside a value, drop mistakes about the value.
    return SettingsError(
        [
            (keys, _message(keys, errors, known, kind))
            for keys, errors in by_keys.items()
            if not any(other != keys and other[: len(keys)] == keys for other in by_keys)
        ]
    )


def dotted(keys: Iterable[str | int]) -> str:
    """Write keys as in ``--set``."""
    return ".".join(map(str, keys))


def shown(value: Any) -> str:
    """Write a value for a message, shortened."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _message(keys: Keys, errors: list[Any], known: Callable[[Keys], Iterable[str]], kind: str) -> str:
    kinds = {each["type"] for each in errors}
    if "extra_forbidden" in kinds:
        names = list(known(keys[:-1]))
        return f"unknown {kind}{near(keys[-1], names)}; there are: {', '.join(names) or 'none'}"
    if kinds == {"missing"}:
        return "missing"
    for each in errors:
        if each["type"] == "value_error":
            return str(each["ctx"]["error"])
    # Each type of a union has a separate message. Arrays and other objects cannot be written in a file.
    said = dict.fromkeys(re.sub(" or instance of .*", "", each["msg"]) for each in errors)
    first, *others = [text for text in said if "instance of" not in text] or said
    wanted = " or ".join([first, *(text.removeprefix("Input should be ") for text in others)])
    hint = near(errors[0]["input"], re.findall("'([^']+)'", wanted))
    return f"{wanted}, not {shown(errors[0]['input'])}{hint}"


def _inside(location: Sequence[str | int], values: Any, kind: str) -> Keys:
    keys: list[str | int] = []
    for place, part in enumerate(location):
        if isinstance(values, list):
            values = dict(enumerate(values))
        ends_missing = kind == "missing" and place == len(location) - 1
        if isinstance(values, Mapping) and (part in values or ends_missing):
            values = values.get(part)
            keys.append(part)
    return tuple(keys)


def reference(kind: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield key, default and explanation for each key of a model or of `Options`, and of inner ones."""
    for key in kind.described():
        yield prefix + key.name, _written(key.default), key.text
        between = {list: ".0.", dict: ".NAME."}.get(typing.get_origin(key.type), ".")
        for inner in _kinds(key.type):
            yield from reference(inner, prefix + key.name + between)


def keys_at(kind: Any, keys: Iterable[str | int]) -> list[str]:
    """Return the inner keys below these keys."""
    for key in keys:  # the number of a list item, and the name in a mapping, have no keys of their own
        inner = [found for each in kind.described() if each.name == key for found in _kinds(each.type)]
        kind = inner[0] if inner else kind
    return [each.name for each in kind.described()]


def _kinds(annotation: Any) -> list[Any]:
    """Return the models, and `jaxrnn.settings.functions.Options`, in a type."""
    if hasattr(annotation, "described"):
        return [annotation]
    return list(dict.fromkeys(found for argument in typing.get_args(annotation) for found in _kinds(argument)))


def _written(default: Any) -> str:
    if default is Parameter.empty:
        return "needed"
    if isinstance(default, Settings):
        default = getattr(default, default.short or "", None)
    if default is None or default == {} or default == [] or is_dataclass(default):
        return ""
    return default if isinstance(default, str) else json.dumps(default)
