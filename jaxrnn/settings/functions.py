"""Lookup of functions in a table, a module or a file, with options checked against the signature."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.errors import PydanticUserError
from pydantic_core import CoreSchema, SchemaError, core_schema
from typing_extensions import TypedDict

from jaxrnn._files.arguments import Argument, described, documented
from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location, Url
from jaxrnn.errors import InputError, check_kind
from jaxrnn.settings.models import AnyPath, LocalPath, mistakes_of


def build(
    kind: str,
    name: str,
    table: Mapping[str, Callable[..., Callable[..., Any]]],
    options: Mapping[str, Any],
    folder: Path | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Call an entry of a table with options, or bind the options to the caller's function.

    ``usual`` are defaults for options of the function. An InputError names the nearest entry, function or option.
    """
    function = lookup(kind, name, table, folder)
    takes = inspect.signature(function).parameters
    options = {key: value for key, value in (usual or {}).items() if key in takes} | dict(options)
    if name in table:
        return function(**check_options(function, options, folder=folder))
    options = check_options(function, options, skipped=3, folder=folder)
    return functools.partial(function, **options) if options else function


def lookup(
    kind: str, name: str, table: Mapping[str, Callable[..., Any]], folder: Path | None = None
) -> Callable[..., Any]:
    """Return an entry of the table, or for a name with a colon the caller's function."""
    check_kind(kind, name, str, "a name")
    if name in table:
        return table[name]
    if ":" in name:
        return find_function(name, folder)
    raise InputError(
        f"there is no {kind} {name!r}{near(name, table)}; there are: {', '.join(table)}. For one of your own write "
        "package.module:function or file.py:function"
    )


def find_function(name: str, folder: Path | None = None) -> Callable[..., Any]:
    """Import ``package.module:function``, or ``file.py:function`` with a path relative to the folder.

    A file is imported as Python runs a script, so the file can import modules beside it.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise InputError(f"{name!r} is not of the form package.module:function or file.py:function")
    try:
        module = _import_file((folder or Path()) / where) if where.endswith(".py") else importlib.import_module(where)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where!r} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        function = operator.attrgetter(attribute)(module)
    except AttributeError:
        public = [entry for entry, value in vars(module).items() if callable(value) and not entry.startswith("_")]
        raise InputError(f"{where} has no function {attribute!r}{near(attribute, public)}") from None
    if not callable(function):
        raise InputError(f"{name} is a {type(function).__name__}, not a function")
    try:
        inspect.signature(function)
    except ValueError as error:
        raise InputError(f"{name} does not say which arguments it takes: name a function that calls it") from error
    return function


def _import_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    for name in ("__main__", path.stem):
        loaded = sys.modules.get(name)
        file = getattr(loaded, "__file__", None)
        if file and Path(file).resolve() == path:
            return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "it ends with .py"
    assert spec.loader is not None, "it ends with .py"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    # Dataclasses look up their module there while it runs.
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        if before is not None:
            sys.modules[path.stem] = before
    return module


def check_options(
    function: Callable[..., Any], options: Mapping[str, Any], *, skipped: int = 0, folder: Path | None = None
) -> dict[str, Any]:
    """Check keyword arguments of a function against its types. Paths are relative to the folder.

    ``skipped`` is the number of parameters given by position. Parameters without a type accept anything. A
    SettingsError names unknown, missing and unsuitable options.
    """
    keys = _keys(function, skipped)
    try:
        return TypeAdapter(_as_dict(function, keys)).validate_python(dict(options), context=folder)
    except ValidationError as error:
        kind = f"option of {getattr(function, '__name__', function)}"
        raise mistakes_of(error, options, lambda _: [each.name for each in keys], kind) from error


@dataclass(frozen=True)
class Options:
    """The annotation of a key whose inner keys are arguments of a Python function; the value is a dict of arguments.

    ``names`` are the arguments that are keys, by default all; a plain text or list gives the argument ``short``.
    Numbers are finite, and arguments that are left out get their defaults.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] = ()
    short: str | None = None

    def described(self) -> list[Argument]:
        """Return the keys, as `jaxrnn.settings.models.Settings.described`."""
        return _keys(self.function, names=self.names)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of pydantic."""
        keys = self.described()
        kinds = [kind for each in keys if each.name == self.short for kind in typing.get_args(each.type)]
        lists = any(typing.get_origin(kind) is list for kind in kinds)
        short: Any = str | Location | list if lists else str | Location

        def with_key(value: Any) -> Any:
            return {self.short: value} if self.short is not None and isinstance(value, short) else value

        schema = handler.generate_schema(_as_dict(self.function, keys, complete=True))
        return core_schema.no_info_before_validator_function(with_key, schema)


def _keys(function: Callable[..., Any], skipped: int = 0, names: Sequence[str] = ()) -> list[Argument]:
    """Return the parameters in ``names``, or all parameters with names after the skipped parameters."""
    hints, texts = _hints(function), documented(function.__doc__)
    return [
        Argument(each.name, hints.get(each.name, Any), each.default, described(texts.get(each.name, ""), "`"))
        for each in list(inspect.signature(function).parameters.values())[skipped:]
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and (not names or each.name in names)
    ]


def _as_dict(function: Callable[..., Any], keys: Sequence[Argument], complete: bool = False) -> Any:
    """Return the type of a dict of arguments; in a complete dict, numbers are finite, and pydantic adds defaults."""
    fields = {}
    for each in keys:
        kind = Annotated[each.type, Field(default=each.default)] if complete else each.type
        fields[each.name] = each.type if each.default is inspect.Parameter.empty else NotRequired[kind]
    typed: Any = TypedDict  # made from values, which type checkers do not follow
    made = typed("Options", fields)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values())
    made.__pydantic_config__ = ConfigDict(
        extra="allow" if open_ended else "forbid",
        strict=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=not complete,
    )
    return made


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of parameters that can be validated."""
    try:
        hints = typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError, AttributeError):
        return {}  # names imported for type checkers only
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
    if Url in arguments:  # a file here or in a store
        arguments = (AnyPath, *(each for each in arguments if each not in (str, Path, Url)))
    if os.PathLike[str] in arguments:  # a file as text or path
        arguments = tuple(LocalPath if each is str else each for each in arguments if each != os.PathLike[str])
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(_adapted, arguments))]  # noqa: UP007 - of a tuple
    if origin is list:
        return list[tuple(map(_adapted, arguments))]  # type: ignore[misc]  # of values
    if (origin or hint) in (tuple, set, frozenset):
        return Annotated[hint, Strict(False)]
    return hint
