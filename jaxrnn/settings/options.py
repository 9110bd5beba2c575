"""Options of functions in a file of settings, checked against the functions' signatures: names and types."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError
from typing_extensions import TypedDict

from jaxrnn.settings.mistakes import mistakes_of
from jaxrnn.settings.models import LocalPath


def check_options(
    function: Callable[..., Any], options: Mapping[str, Any], *, skipped: int = 0, folder: Path | None = None
) -> dict[str, Any]:
    """The options as the function takes them: lists become tuples where it takes those, and paths get the folder.

    Args:
        function: takes the options as keyword arguments. Parameters without a type take anything.
        options: from a file.
        skipped: how many of its parameters are given by position.
        folder: that of the file.

    Raises:
        SettingsError: options are unknown, missing or of the wrong type.
    """
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    hints = _hints(function)
    fields = {each.name: hints.get(each.name, Any) for each in named}
    optional = {each.name for each in named if each.default is not each.empty}
    typed: Any = TypedDict  # made from values, which type checkers do not follow
    schema = typed("Options", {name: NotRequired[hint] if name in optional else hint for name, hint in fields.items()})
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    schema.__pydantic_config__ = ConfigDict(
        extra="allow" if open_ended else "forbid", strict=True, arbitrary_types_allowed=True
    )
    try:
        return TypeAdapter(schema).validate_python(dict(options), context=folder)
    except ValidationError as error:
        kind = f"option of {getattr(function, '__name__', function)}"
        raise mistakes_of(error, options, lambda keys: fields, kind) from error


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of parameters that values of a file can be checked against."""
    try:
        hints = typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError, AttributeError):
        return {}  # they name what is imported for type checkers alone
    return {name: _adapted(hint) for name, hint in hints.items() if _is_known(hint)}


def _is_known(hint: Any) -> bool:
    try:
        create_model("Tried", __config__=ConfigDict(arbitrary_types_allowed=True), tried=(hint, ...))
    except (PydanticUserError, SchemaError, TypeError, NameError):
        return False
    return True


def _adapted(hint: Any) -> Any:
    if hint is Path:
        return LocalPath
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_adapted, arguments))]  # noqa: UP007 - of a tuple
    if (origin or hint) in (tuple, set, frozenset):
        return Annotated[hint, Strict(False)]
    return hint
