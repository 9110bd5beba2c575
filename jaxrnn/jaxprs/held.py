"""The contents of a function or module between calls: attributes, containers, arrays, global variables and closures.

A call can fill a cache: a table of positions in a buffer, an attribute, a dict, or a global variable. An exporter
writes a filled cache as a constant, although the module would fill the cache again for a longer recording, and a trace
leaves tracers that no later call can use. So all that the code can reach is put back. Objects that refuse changes in a
trace are copied for a call instead.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.core import Tracer

#: Kinds of containers, each before its base.
_CONTAINERS = OrderedDict, dict, list, set, deque
#: The type of functions with `functools.cache`.
_CACHED = type(functools.cache(len))
#: Packages whose classes and functions hold no cache of a module.
_LIBRARIES = frozenset(
    {"absl", "equinox", "flax", "haiku", "jax", "jaxlib", "jaxrnn", "jaxtyping", "keras", "ml_dtypes", "numpy", "optax"}
    | {"_pytest", "tensorflow", "torch", "treescope"}  # an `assert` that pytest rewrites names a module of pytest
)
#: Dicts of PyTorch, which the name of a tensor leaves out.
_INNER = ("_buffers", "_parameters", "_modules")


class ArrayAccess(Protocol):
    """An interface to the arrays of a framework. `are_weights` is True if no call fills the arrays."""

    are_weights: bool

    def read(self, array: Any) -> Any:
        """Return a copy of the contents."""
        ...

    def differs(self, array: Any, contents: Any) -> bool:
        """Return True if an array has other contents than a copy."""
        ...

    def write(self, array: Any, contents: Any) -> None:
        """Write the contents of a copy."""
        ...


class _Numpy:
    """NumPy's arrays."""

    are_weights = False

    def read(self, array: np.ndarray) -> np.ndarray:
        """Return a copy."""
        return array.copy()

    def differs(self, array: np.ndarray, contents: np.ndarray) -> bool:
        """Compare bits."""
        return array.dtype.hasobject or array.tobytes() != contents.tobytes()

    def write(self, array: np.ndarray, contents: np.ndarray) -> None:
        """Write, unless the array is read-only, and so unchanged."""
        if array.flags.writeable:
            array[...] = contents


class _Snapshot(NamedTuple):
    """An object with the contents that it had, as names and values."""

    path: str
    thing: Any
    contents: Any
    kind: Any  # a type of containers, an `ArrayAccess`, "cell", "class" or "globals"


class Held:
    """All that a function or module can reach and change, as it was at the time of the construction.

    Args:
        roots: functions, modules and arrays, with their names.
        owners: classes of modules, whose attributes are read also if a library defines the class.
        arrays: the types of arrays of the framework.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        owners: tuple[type, ...] = (),
        arrays: Mapping[type, ArrayAccess] = types.MappingProxyType({}),
    ):
        self._owners, self._arrays = owners, {**arrays, np.ndarray: _Numpy()}
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no other object has the same number
        self._kept: list[_Snapshot] = []
        self._cached: list[Any] = []
        pending = deque(roots.items())
        while pending:
            path, thing = pending.popleft()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                pending.extend(self._read(path, thing))

    def restore(self) -> None:
        """Put everything back."""
        for kept in self._kept:
            if self._changes(kept):
                self._write(kept)

    def drop_traces(self) -> None:
        """Put everything back if a trace has left tracers or symbolic sizes; empty functions' caches with tracers."""
        if any(_is_of_trace(value) for kept in self._kept for value in self._changes(kept).values()):
            self.restore()
        for cached in self._cached:
            things = gc.get_referents(cached)  # the results, or a dict of the results
            if any(_is_of_trace(list(each.values()) if isinstance(each, dict) else each) for each in things):
                cached.cache_clear()

    def changes(self) -> list[str]:
        """Return the names of attributes, entries, arrays and variables that changed, other than to a flag or None.

        A flag belongs to a table or, as in Keras, to the calls of a layer.
        """
        changed = (each for kept in self._kept for each in self._changes(kept).items())
        return list(dict.fromkeys(name for name, value in changed if value is not None and not isinstance(value, bool)))

    def sizes(self) -> set[int]:
        """Return the sizes of arrays that are not weights, and smaller whole numbers: a cache may end there."""
        sizes, numbers = set[int](), set[int]()
        for _, thing, contents, kind in self._kept:
            if isinstance(contents, dict):
                numbers.update(each for each in (*contents, *contents.values()) if type(each) is int)
            elif not isinstance(kind, (str, type)) and not kind.are_weights:
                sizes.update(map(int, thing.shape))
        return sizes | {number for number in numbers if number < max(sizes, default=0)}

    def _read(self, path: str, thing: Any) -> Iterator[tuple[str, Any]]:
        """Keep the contents of an object, and yield the objects to which it leads."""
        arrays = next((each for kind, each in self._arrays.items() if isinstance(thing, kind)), None)
        if arrays is not None:
            self._kept.append(_Snapshot(path, thing, arrays.read(thing), arrays))
        elif (kind := _container(thing)) is not None:
            yield from self._entries(path, thing, kind, _copied(thing, kind))
        elif isinstance(thing, (tuple, frozenset)):
            yield from ((path, each) for each in thing)
        elif isinstance(thing, types.FunctionType):
            yield from self._variables(thing)
        elif isinstance(thing, types.MethodType):
            yield from ((path, thing.__self__), (path, thing.__func__))
        elif isinstance(thing, functools.partial):
            yield from ((path, thing.func), (path, thing.args), (path, thing.keywords))
        elif isinstance(thing, (staticmethod, classmethod, property, _CACHED)):
            if isinstance(thing, _CACHED):
                self._cached.append(thing)
            yield path, thing.fget if isinstance(thing, property) else thing.__wrapped__
        elif isinstance(thing, type):
            if not _is_of_library(thing.__module__):
                yield from self._entries(thing.__qualname__, thing, "class", dict(vars(thing)))
                yield from ((path, each) for each in thing.__bases__)
        elif isinstance(thing, (types.SimpleNamespace, *self._owners)) or not _is_of_library(type(thing).__module__):
            attributes = getattr(thing, "__dict__", None)
            if type(attributes) is dict:
                yield path, attributes
                yield path, type(thing)

    def _entries(self, path: str, thing: Any, kind: Any, contents: Any) -> Iterator[tuple[str, Any]]:
        self._kept.append(_Snapshot(path, thing, contents, kind))
        if isinstance(contents, dict):
            yield from ((_named(path, key), value) for key, value in contents.items())
        else:
            yield from ((path, value) for value in contents)

    def _variables(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        """Keep the variables outside of a function that its code names."""
        if _is_of_library(function.__module__):
            return
        names = _names_in(function.__code__)
        scopes = {function.__module__: function.__globals__}
        for each in (function.__globals__.get(name) for name in names):
            if isinstance(each, types.ModuleType) and not _is_of_library(each.__name__):
                scopes[each.__name__] = vars(each)
        for path, known in scopes.items():
            contents = {name: known[name] for name in names if name in known}
            contents = {name: value for name, value in contents.items() if not isinstance(value, types.ModuleType)}
            yield from self._entries(str(path), known, "globals", contents)
        for name, cell in _cells(function).items():
            with contextlib.suppress(ValueError):  # an empty cell
                yield from self._entries(function.__qualname__, cell, "cell", {name: cell.cell_contents})
        yield from ((function.__qualname__, each) for each in (function.__defaults__, function.__kwdefaults__))
        yield function.__qualname__, getattr(function, "__wrapped__", None)

    def _changes(self, kept: _Snapshot) -> dict[str, Any]:
        """Return the changed parts of an object, keyed by name."""
        path, thing, contents, kind = kept
        if not isinstance(kind, (str, type)):
            return {path: thing} if kind.differs(thing, contents) else {}
        now = _now(kept)
        if isinstance(contents, dict):
            keys, missing = {**contents, **now}, object()
            return {
                _named(path, key): now.get(key)
                for key in keys
                if contents.get(key, missing) is not now.get(key, missing)
            }
        same = len(now) == len(contents) and (
            now == contents if isinstance(contents, set) else all(a is b for a, b in zip(now, contents, strict=True))
        )
        return {} if same else {path: now}

    def _write(self, kept: _Snapshot) -> None:
        _, thing, contents, kind = kept
        if kind == "cell":
            (thing.cell_contents,) = contents.values()
        elif kind == "globals":
            thing.update(contents)
        elif kind == "class":
            now = vars(thing)
            for name in [name for name in now if name not in contents]:
                delattr(thing, name)
            for name in [name for name, value in contents.items() if vars(thing).get(name) is not value]:
                setattr(thing, name, contents[name])
        elif isinstance(kind, type):
            kind.clear(thing)  # of the base: a class of containers of a framework would note the change
            (kind.extend if kind in (list, deque) else kind.update)(thing, contents)
        else:
            kind.write(thing, contents)


def with_copies(
    function: types.FunctionType, kinds: tuple[type, ...], copy: Callable[[list[Any]], list[Any]]
) -> Callable[..., Any]:
    """Return a function that calls `function` on copies of the objects of some classes that its code names.

    The objects are in closures, global variables and defaults of the function, and of functions that it names, also in
    a tuple, list or dict. Without such an object, the result is the function itself.

    Args:
        function: a function of Python, which stays unchanged.
        kinds: the classes.
        copy: returns copies of all objects of a call, with the same sharing.
    """
    reached, objects = _leading_to(function, kinds)
    if not objects:
        return function

    def leads(cell: types.CellType) -> bool:
        """Return True if a variable of a closure leads to an object. Other variables stay shared with the caller."""
        with contextlib.suppress(ValueError):  # an empty cell
            return any(id(each) in objects or id(each) in reached for each in _parts(cell.cell_contents))
        return False

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        copies = dict(zip(objects, copy([*objects.values()]), strict=True))

        def copied(value: Any) -> Any:
            """Return the copy of a value; the value itself if it leads to no object."""
            if not any(id(each) in copies for each in _parts(value)):
                return value
            if type(value) is dict:
                return {key: copies.get(id(each), each) for key, each in value.items()}
            if type(value) in (list, tuple):
                return type(value)(copies.get(id(each), each) for each in value)
            return copies[id(value)]

        scopes = {id(each.__globals__): dict(each.__globals__) for each in reached.values()}
        cells = {}
        for key, each in reached.items():
            for cell in each.__closure__ or ():
                cells.setdefault(id(cell), types.CellType() if leads(cell) else cell)
            closure = tuple(cells[id(cell)] for cell in each.__closure__ or ())
            made = types.FunctionType(each.__code__, scopes[id(each.__globals__)], each.__name__, None, closure)
            made.__dict__, made.__qualname__ = each.__dict__, each.__qualname__
            copies[key] = made
        for key, each in reached.items():
            made, scope = copies[key], scopes[id(each.__globals__)]
            made.__defaults__ = tuple(map(copied, each.__defaults__ or ()))
            made.__kwdefaults__ = {name: copied(value) for name, value in (each.__kwdefaults__ or {}).items()}
            scope.update({name: copied(each.__globals__[name]) for name in _names_in(each.__code__) & scope.keys()})
            for cell in filter(leads, each.__closure__ or ()):
                cells[id(cell)].cell_contents = copied(cell.cell_contents)
        return copies[id(function)](*arguments, **named)

    return call


def _leading_to(
    function: types.FunctionType, kinds: tuple[type, ...]
) -> tuple[dict[int, types.FunctionType], dict[int, Any]]:
    """Return the functions from which objects of some classes are reached by name, and the objects, by identity."""
    named: dict[int, list[Any]] = {}
    functions: dict[int, types.FunctionType] = {}
    pending = [function]
    while pending:
        each = pending.pop()
        if id(each) not in functions:
            functions[id(each)], named[id(each)] = each, (values := _named_values(each))
            own = (value for value in values if isinstance(value, types.FunctionType))
            pending += [value for value in own if not _is_of_library(value.__module__)]
    objects = {id(value): value for values in named.values() for value in values if isinstance(value, kinds)}
    reached = {key for key, values in named.items() if any(id(value) in objects for value in values)}
    while grown := {key for key in functions.keys() - reached if any(id(value) in reached for value in named[key])}:
        reached |= grown
    return {key: functions[key] for key in reached}, objects


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _named_values(function: types.FunctionType) -> list[Any]:
    """Return the values of the variables and defaults that the code of a function names."""
    scope = function.__globals__
    values = [scope[name] for name in _names_in(function.__code__) & scope.keys()]
    for cell in _cells(function).values():
        with contextlib.suppress(ValueError):  # an empty cell
            values.append(cell.cell_contents)
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [part for value in values for part in _parts(value)]


def _parts(value: Any) -> list[Any]:
    """Return a value and the values in a container."""
    inside = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return [value, *inside]


def _now(kept: _Snapshot) -> Any:
    """Return the present contents of an object, in the form in which they were kept."""
    _, thing, contents, kind = kept
    if kind == "cell":
        with contextlib.suppress(ValueError):
            return dict.fromkeys(contents, thing.cell_contents)
        return {}
    if kind == "globals":
        return {name: thing[name] for name in contents if name in thing}
    return dict(vars(thing)) if kind == "class" else _copied(thing, kind)


def _is_of_trace(value: Any) -> bool:
    """Return True for a tracer, a symbolic size, or a pytree that has one or cannot be read."""
    try:
        leaves = jax.tree.leaves(value)
    except Exception:  # keys without an order, or a class with a broken rule
        return True  # putting a value back is right in any case
    return any(isinstance(leaf, Tracer) or jax.export.is_symbolic_dim(leaf) for leaf in leaves)


def _container(thing: Any) -> Any:
    return next((kind for kind in _CONTAINERS if isinstance(thing, kind)), None)


def _copied(thing: Any, kind: Any) -> Any:
    """Return the contents as the base has them: a class may compute an entry that is read."""
    if not issubclass(type(thing), kind):  # a wrapper, which only claims to be a container
        return dict(thing) if issubclass(kind, dict) else set(thing) if kind is set else list(thing)
    return dict(kind.items(thing)) if issubclass(kind, dict) else (set if kind is set else list)(kind.__iter__(thing))


def _named(path: str, key: Any) -> str:
    return path if key in _INNER else f"{path}.{key}" if path else str(key)


def _names_in(code: types.CodeType) -> set[str]:
    """Return the names in the code of a function and of its inner functions."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


def _is_of_library(module: str | None) -> bool:
    root = (module or "builtins").partition(".")[0]
    return root in _LIBRARIES or (root in sys.stdlib_module_names and root != "__main__")
