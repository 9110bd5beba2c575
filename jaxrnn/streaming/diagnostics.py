"""Locations of equations and errors in the user's code, and hints for what to write instead."""

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


#: What advice about Python has in it.
_PYTHON = re.compile(r"\b(?:jax|jnp|lax|np|jaxrnn)\.|fori_loop")

_POSITIONS = "select by position instead: jnp.where(jnp.arange(x.shape[0]) == 0, value, x) sets the first frame"
_OUTSIDE = "move it outside, to the inputs and outputs of a step"
_WINDOWS = "use lax.conv_general_dilated or lax.reduce_window, whose pads are fixed numbers of frames"

#: By function, as users write it.
_CALLS = {
    "jnp.roll": "to shift frames into the future by k, write jnp.pad(x, ((k, 0), (0, 0)))[: x.shape[0]]; jnp.roll by "
    "-k, which moves the first k frames to the end, does stream",
    "jnp.pad": "jnp.pad takes values from near the end it pads in modes 'constant', 'edge', 'reflect' and 'symmetric'; "
    "jnp.concatenate([x, x[:k]]) wraps the first frames to the end",
    "lax.associative_scan": "call jaxrnn.associative_scan, which takes the same arguments",
    "jnp.flip": "run forwards in time",
    "jnp.convolve": _WINDOWS,
    "jnp.correlate": _WINDOWS,
    "jnp.linspace": "count frames with jnp.arange(x.shape[0]) and divide by a fixed number",
    "jnp.tile": "repeat along another axis, or each frame with jnp.repeat",
    "jnp.split": "cut at fixed frames, or reshape into blocks",
}

#: By primitive.
_PRIMITIVES = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"), _POSITIONS),
    "dynamic_update_slice": _POSITIONS,
    **dict.fromkeys(("random_bits", "random_wrap", "random_unwrap", "threefry2x32"), "draw random numbers outside, and "
    "pass them as an input with a time axis"),
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "debug_print"), _OUTSIDE),
}  # fmt: skip

#: By what JAX says, where it hides the function that says it.
_MESSAGES = {
    "associative scan over axis": "call jaxrnn.associative_scan, which takes the same arguments",
    "slice indices must be integers": "cut an array of JAX, and not of NumPy: jnp.asarray(table)[: x.shape[0]]",
}


#: Errors of JAX about the shapes of a node, and their text for the reader of a file.
_ABOUT_FILES = (
    (r"Shape polymorphism is supported for jnp\.pad .*", "it reflects more frames than a short recording has"),
    (r"\w+ got incompatible shapes for broadcasting: (.*)", r"the shapes \1 do not broadcast"),
    (r"reshape new_sizes must all be positive, got (.*)", r"the new shape \1 is not positive"),
    (r"Cannot divide evenly the sizes of shapes (.*) and (.*)", r"\1 elements do not fill the shape \2"),
)


def error_in_words_of_file(error: Exception) -> str:
    """Return the text of an error about a node of a file without JAX's advice."""
    text = str(error).rstrip(".")
    for pattern, words in _ABOUT_FILES:
        text = re.sub(pattern, words, text)
    return text


def hint_for_message(message: str) -> str | None:
    """What to write in place of what JAX cannot trace; None where nothing is known."""
    return next((hint for part, hint in _MESSAGES.items() if part in message), None)


def hint_for_call(calls: str | None) -> str | None:
    """What to write in place of a function of JAX; None where nothing is known."""
    return None if calls is None else _CALLS.get(calls)


def hint_for_equation(primitive: str, place: Place) -> str | None:
    """What to write in place of an equation that cannot be streamed; None where its rule knows best."""
    if (place.calls, primitive) == ("jnp.pad", "pad"):  # the advice on jnp.pad is about its modes
        return None
    return hint_for_call(place.calls) or _PRIMITIVES.get(primitive)


def in_words_of_file(hint: str) -> str:
    """What to do about a node of a file: no advice about Python."""
    if _PYTHON.search(hint):
        return "export the model with other operators there, or without this part"
    return hint.replace("the function that is streamed", "the model").replace("the function", "the model")
