"""Options of functions in a configuration, held against the functions' signatures: their names and their types."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Strict, create_model
from pydantic.errors import PydanticUserError

from jaxrnn.settings.loader import Keys
from jaxrnn.settings.problems import validated
from jaxrnn.settings.sections import ConfigPath
from jaxrnn.settings.source import Source


def checked_options(
    function: Callable[..., Any], options: Mapping[str, Any], source: Source, keys: Keys, *, skipped: int = 0
) -> dict[str, Any]:
    """The options as the function takes them: a list for a tuple is one, and a ``Path`` is relative to the file.

    Args:
        function: what the options are keyword arguments of. Parameters without a type take anything.
        options: as they stand in the file.
        source: the file.
        keys: the keys that lead to the options.
        skipped: how many of its parameters are given by position.

    Raises:
        InputError: an option is unknown, missing or of another type.
    """
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    hints = _hints(function)
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            default = ... if parameter.default is parameter.empty else parameter.default
            # The name in the file is an alias: a model of pydantic's has names of its own.
            fields[f"option_{parameter.name}"] = (hints.get(parameter.name, Any), default)
    aliases = {f"option_{parameter.name}": parameter.name for parameter in parameters}
    rest = "allow" if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) else "forbid"
    schema = create_model(
        "Options",
        __config__=ConfigDict(
            extra=rest, strict=True, arbitrary_types_allowed=True, alias_generator=lambda name: aliases[name]
        ),
        **fields,
    )
    given: BaseModel = validated(schema, dict(options), source, keys)
    named = {aliases[name]: getattr(given, name) for name in given.model_fields_set if name in aliases}
    return named | dict(given.model_extra or {})


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of parameters, as far as they can be held against values of a file."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}  # they name what is imported for type checkers alone
    return {name: _adapted(hint) for name, hint in hints.items() if _is_known(hint)}


def _is_known(hint: Any) -> bool:
    try:
        create_model("Tried", __config__=ConfigDict(arbitrary_types_allowed=True), tried=(hint, ...))
    except (PydanticUserError, TypeError, NameError):
        return False
    return True


def _adapted(hint: Any) -> Any:
    if hint is Path:
        return ConfigPath
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_adapted, arguments))]  # noqa: UP007 - of a tuple
    if (origin or hint) in (tuple, set, frozenset):
        return Annotated[hint, Strict(False)]
    return hint
