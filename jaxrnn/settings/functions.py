"""Functions by name: of a table, of a module (``package.module:function``) or of a file (``file.py:function``)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.messages import near


def build(
    kind: str,
    name: str,
    table: Mapping[str, Callable[..., Callable[..., Any]]],
    options: Mapping[str, Any],
    folder: Path | None = None,
) -> Callable[..., Any]:
    """What an entry of the table builds of the options; or a function of the caller's own, with options as keywords.

    Raises:
        InputError: there is no such entry, function or option; names the nearest.
    """
    found = lookup(kind, name, table, folder)
    if name in table:
        check_options(f"the {kind} {name}", found, options)
        return found(**options)
    check_options(f"the {kind} {name}", found, options, given=3)
    return functools.partial(found, **options) if options else found


def lookup(
    kind: str, name: str, table: Mapping[str, Callable[..., Any]], folder: Path | None = None
) -> Callable[..., Any]:
    """An entry of the table, or a function of the caller's own, whose name has a colon.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name in table:
        return table[name]
    if ":" in name:
        return find_function(name, folder)
    raise InputError(
        f"there is no {kind} {name!r}{near(name, table)}; there are: {', '.join(table)}. For one of your own write "
        "package.module:function or file.py:function"
    )


def find_function(name: str, folder: Path | None = None) -> Callable[..., Any]:
    """The function called ``package.module:function``, or ``file.py:function`` with a path relative to the folder.

    A file is imported as a script is run: modules beside it can be imported by it.

    Raises:
        InputError: there is no such module, file or function, or importing it failed.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise InputError(f"{name!r} is not of the form package.module:function or file.py:function")
    module = _import_file((folder or Path()) / where) if where.endswith(".py") else _import_module(where)
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [entry for entry in vars(module) if not entry.startswith("_") and callable(getattr(module, entry))]
            raise InputError(f"{where} has no function {attribute!r}{near(attribute, public)}") from None
    if not callable(found):
        raise InputError(f"{name} is a {type(found).__name__}, not a function")
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InputError(f"the module {name!r} cannot be imported: {_said(error)}") from error


def _import_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    for name in ("__main__", path.stem):
        loaded = sys.modules.get(name)
        known = getattr(loaded, "__file__", None)
        if loaded is not None and known and Path(known).resolve() == path:
            return loaded
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    # Dataclasses look for their module there while it is being run.
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be imported: {_said(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
        if before is not None:
            sys.modules[path.stem] = before
    return module


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def check_options(what: str, function: Callable[..., Any], options: Mapping[str, Any], given: int = 0) -> None:
    """Hold options against a function's parameters, so that a mistake is told before anything is called.

    Args:
        what: what the function is called in messages.
        function: to be called with the options.
        options: keyword arguments.
        given: how many arguments it gets by position besides.

    Raises:
        InputError: an option is unknown, with the nearest, or one is missing.
    """
    parameters = list(inspect.signature(function).parameters.values())[given:]
    names = [parameter.name for parameter in parameters if parameter.kind not in _VARIADIC]
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        for option in options:
            if option not in names:
                listed = ", ".join(names) or "none"
                raise InputError(f"{what} has no option {option!r}{near(option, names)}; its options: {listed}")
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.kind not in _VARIADIC and parameter.default is parameter.empty and parameter.name not in options
    ]
    if missing:
        raise InputError(f"{what} needs {', '.join(missing)}")


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
