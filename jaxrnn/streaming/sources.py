"""Where an equation or an error comes from: the node or module that it was traced in, and the line of the user's code.

Of a traceback, ``source_info.traceback.frames`` is read and nothing else; `jax.extend.source_info_util.summarize` knows
of no libraries but JAX.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import pathlib
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn

from jaxrnn._files.messages import first_line
from jaxrnn.errors import JaxrnnError
from jaxrnn.streaming.dimensions import UndecidedError

_JAX = f"{pathlib.Path(jax.__file__).parent}{os.sep}"
_JAXRNN = f"{pathlib.Path(__file__).parent.parent}{os.sep}"
#: An equation, after those inside of which it is, the outermost first.
Path = tuple[JaxprEqn, ...]

#: Where the function that is streamed is called; what calls `stream` is no part of it.
_TRACING = (os.path.join(_JAXRNN, "jaxprs", "equations.py"), os.path.join(_JAXRNN, "streaming", "transform.py"))
_PACKAGES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib", "stdlib")})

#: What functions of JAX are called where users write them.
_NAMESPACES = {"jnp": jnp, "lax": lax, "jax.nn": jax.nn, "jnp.fft": jnp.fft, "jnp.linalg": jnp.linalg}


class Line(NamedTuple):
    """A line of Python: its file, number and function."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number} ({self.function})"


class Place(NamedTuple):
    """A line of the user's code, and the function of JAX that it calls, as one writes it; None where unknown."""

    line: Line | None
    calls: str | None

    def __str__(self) -> str:
        called = "" if self.calls is None else f"{self.calls} in "
        return "" if self.line is None else f"{called}{self.line}"


def place_of(frames: Iterable[Line]) -> Place:
    """The innermost line of the user's code in frames, the innermost first.

    Lines of installed packages, such as Flax, stand for it where there is no other.
    """
    inner: list[Line] = []
    packaged: Place | None = None
    for frame in frames:
        if frame.file in _TRACING:
            break
        if not frame.file.startswith((_JAX, _JAXRNN, "<frozen")):
            place = Place(frame, _public(inner))
            if not frame.file.startswith(_PACKAGES):
                return place
            packaged = packaged or place
        inner.append(frame)
    return packaged or Place(None, _public(inner))


def _public(frames: list[Line]) -> str | None:
    """The outermost function of JAX's public namespaces in frames, the innermost first."""
    for frame in reversed(frames):
        name = frame.function.rpartition(".")[2]
        for prefix, namespace in _NAMESPACES.items():
            code = getattr(inspect.unwrap(getattr(namespace, name, _public)), "__code__", None)
            if code is not None and code.co_filename == frame.file:
                return f"{prefix}.{name}"
    return None


def place_of_equation(path: Path) -> Place:
    """Where the last equation of a path was traced; inside a function of JAX's own, where that was called."""
    calls: str | None = None
    for equation in reversed(path):
        trace = equation.source_info.traceback
        frames = () if trace is None else trace.frames
        place = place_of(Line(str(frame.file_name), frame.line_num, frame.function_name) for frame in frames)
        calls = place.calls or calls
        if place.line is not None:
            return Place(place.line, calls)
    return Place(None, calls)


def place_of_error(error: BaseException) -> Place:
    """The innermost line of the user's code that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    return place_of(Line(frame.filename, frame.lineno or 0, frame.name) for frame in reversed(frames))


def scope_of(path: Path) -> str:
    """The scope that the last equation of a path was traced in, from the outermost on; empty where there is none."""
    outer = ""
    for equation in path:
        inner = str(equation.source_info.name_stack)
        outer = outer + inner if inner.startswith("/") and outer else "/".join(filter(None, (outer, inner)))
    return outer


def node_scope_of(path: Path) -> str:
    """The same of nodes and modules alone: transformations such as vmap() are none."""
    return re.sub(r"(^|/)\w+\(\)", "", scope_of(path))


_OPERATORS: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("operators", default=None)


@contextlib.contextmanager
def of_file(operators: Mapping[str, str]) -> Iterator[None]:
    """Messages made here are about a file: they name its nodes and operators, and not what was traced of them.

    Args:
        operators: those of the nodes, by the names of the nodes that they are inside of and their own, as in scopes.
    """
    token = _OPERATORS.set(operators)
    try:
        yield
    finally:
        _OPERATORS.reset(token)


def is_of_file() -> bool:
    """Whether messages are about a file, whose reader does not write Python."""
    return _OPERATORS.get() is not None


def describe_equation(path: Path) -> str:
    """The last equation of a path for an error message: its primitive, or in a file its node, and where it is from."""
    node, operators = node_scope_of(path), _OPERATORS.get() or {}
    while operators and node and node not in operators:
        node = node.rpartition("/")[0]
    if node in operators:
        return f"node {node!r} ({operators[node]})"
    name, place = path[-1].primitive.name, place_of_equation(path)
    if place.calls is not None and place.calls.endswith(f".{name.replace('-', '_')}"):
        place = Place(place.line, None)
    scope = re.sub(r"(^|/)\w+\(\)", "", scope_of(path))  # transformations such as vmap() are no nodes
    where = " of ".join(part for part in (f"node {scope!r}" if scope else "", str(place)) if part)
    return f"{name!r}" + (f" ({where})" if where else "")


@contextlib.contextmanager
def located(describe: Callable[[], str]) -> Iterator[None]:
    """Errors raised here say where, those that do not yet."""
    try:
        yield
    except JaxrnnError as error:
        if error.located:
            raise
        raise _said_of(describe(), type(error), str(error)) from error
    except InconclusiveDimensionOperation as error:
        raise _said_of(describe(), UndecidedError, first_line(error)) from error


def _said_of(where: str, kind: type[JaxrnnError], what: str) -> JaxrnnError:
    error = kind(f"{where}: {what}")
    error.located = True
    return error


def label_of(path: Path) -> str:
    """A short name for the state that the last equation of a path needs."""
    return scope_of(path) or path[-1].primitive.name
