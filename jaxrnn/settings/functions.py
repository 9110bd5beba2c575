"""Functions by name: of a table, of a module (``package.module:function``) or of a file (``file.py:function``)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError


def build(
    kind: str,
    name: str,
    table: Mapping[str, Callable[..., Callable[..., Any]]],
    options: Mapping[str, Any],
    folder: Path | None = None,
    usual: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Call an entry of a table with options, or bind the options to a function of the caller's own.

    Args:
        kind: what the table holds, for messages.
        name: an entry, or the name of a function that takes three arguments besides the options.
        table: functions of options by name.
        options: keyword arguments.
        folder: what paths are relative to.
        usual: defaults of options, for a function that takes them.

    Raises:
        InputError: there is no such entry, function or option, and the message names the nearest; or an option has
            the wrong type.
    """
    from jaxrnn.settings.options import check_options

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
    # Dataclasses look for their module there while it is being run.
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        if before is not None:
            sys.modules[path.stem] = before
    return module
