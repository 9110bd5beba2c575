"""Locations of equations and errors in the user's code or model, and hints for code that cannot be streamed.

Only ``source_info.traceback.frames`` of a traceback is read. `jax.extend.source_info_util.summarize` treats frames of
jaxrnn and Flax as user code, so the search for the user's line is written out here.
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
import jax.scipy.signal
import numpy as np
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation, JaxprEqn

from jaxrnn._files.messages import first_line
from jaxrnn._jax.sizes import PACKAGES
from jaxrnn.errors import JaxrnnError, StreamError
from jaxrnn.streaming.dimensions import UndecidedError

_JAX = f"{pathlib.Path(jax.__file__).parent}{os.sep}"
_JAXRNN = f"{pathlib.Path(__file__).parent.parent}{os.sep}"
_BELOW = (_JAX, _JAXRNN, f"{pathlib.Path(np.__file__).parent}{os.sep}")
#: An equation, preceded by the equations that contain this equation, outermost first.
Path = tuple[JaxprEqn, ...]

#: The remedy for an operation that needs all later frames.
BOUNDED = "bound the future (`jaxrnn.bounded`, or `future=8` for a file), which changes the function"
#: The remedy for attention to all frames.
BANDED = "bound what each frame sees (`jaxrnn.bounded`, or `future=8, past=64` for a file), which changes the function"

#: Files that call the streamed function; frames outside of these files belong to the caller of `stream`.
_TRACING = (os.path.join(_JAXRNN, "jaxprs", "equations.py"), os.path.join(_JAXRNN, "streaming", "transform.py"))
_PACKAGES = (*PACKAGES, f"{sysconfig.get_path('stdlib')}{os.sep}")

#: Public namespaces of JAX, keyed by their usual spelling.
_NAMESPACES = {
    "jnp": jnp,
    "lax": lax,
    "jax.nn": jax.nn,
    "jnp.fft": jnp.fft,
    "jnp.linalg": jnp.linalg,
    "jax.image": jax.image,
    "jax.ops": jax.ops,
    "jax.scipy.signal": jax.scipy.signal,
}


class Line(NamedTuple):
    """A line of Python code: file, number and function."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number} ({self.function})"


class Location(NamedTuple):
    """A line of the user's code, and the public JAX function called there; unknown parts are None."""

    line: Line | None
    calls: str | None

    def __str__(self) -> str:
        called = "" if self.calls is None else f"{self.calls} in "
        return "" if self.line is None else f"{called}{self.line}"


def location_of(frames: Iterable[Line]) -> Location:
    """Return the innermost line of the user's code in frames, which start with the innermost.

    Without user code, return the innermost line of an installed package, such as Flax.
    """
    inner: list[Line] = []
    packaged: Location | None = None
    for frame in frames:
        if frame.file in _TRACING:
            break
        if not frame.file.startswith((_JAX, _JAXRNN, "<frozen")):
            location = Location(frame, _public(inner))
            if not frame.file.startswith(_PACKAGES):
                return location
            packaged = packaged or location
        inner.append(frame)
    return packaged or Location(None, _public(inner))


def _public(frames: list[Line]) -> str | None:
    """Return the outermost public JAX function in frames, which start with the innermost."""
    for frame in reversed(frames):
        name = frame.function.rpartition(".")[2]
        for prefix, namespace in _NAMESPACES.items():
            code = getattr(inspect.unwrap(getattr(namespace, name, _public)), "__code__", None)
            if code is not None and code.co_filename == frame.file:
                return f"{prefix}.{name}"
    return None


def location_of_equation(path: Path) -> Location:
    """Return the line that traced the last equation of a path; inside a function of JAX, the line of the outer call."""
    calls: str | None = None
    for equation in reversed(path):
        trace = equation.source_info.traceback
        frames = () if trace is None else trace.frames
        location = location_of(Line(str(frame.file_name), frame.line_num, frame.function_name) for frame in frames)
        calls = location.calls or calls
        if location.line is not None:
            return Location(location.line, calls)
    return Location(None, calls)


def location_of_error(error: BaseException) -> Location:
    """Return the innermost line of the user's code in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)[::-1]
    location = location_of(Line(frame.filename, frame.lineno or 0, frame.name) for frame in frames)
    innermost = next((frame.line or "" for frame in frames if not frame.filename.startswith(_BELOW)), "")
    called = {*re.findall(r"\b(?:np|numpy)\.(\w+)\(", innermost)}
    if location.calls is None and len(called) == 1 and called <= {"arange", "eye", "full", "ones", "zeros"}:
        return Location(location.line, f"np.{called.pop()}")
    return location


def is_of_numpy(location: Location) -> bool:
    """Return True if the called function is NumPy's."""
    return location.calls is not None and location.calls.startswith("np.")


def scope_of(path: Path) -> str:
    """Return the name scope of the last equation of a path, outermost first; empty without a scope."""
    outer = ""
    for equation in path:
        inner = str(equation.source_info.name_stack)
        outer = outer + inner if inner.startswith("/") and outer else "/".join(filter(None, (outer, inner)))
    return outer


def node_scope_of(path: Path) -> str:
    """Return the name scope without transformations such as vmap()."""
    return re.sub(r"(^|/)\w+\(\)", "", scope_of(path))


_OPERATORS: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("operators", default=None)


@contextlib.contextmanager
def of_file(operators: Mapping[str, str]) -> Iterator[None]:
    """Name nodes and operators of a file in messages, rather than Python code.

    `operators` maps the scoped name of each node to the operator.
    """
    token = _OPERATORS.set(operators)
    try:
        yield
    finally:
        _OPERATORS.reset(token)


def is_of_file() -> bool:
    """Return True inside `of_file`, where messages avoid Python code."""
    return _OPERATORS.get() is not None


def describe_equation(path: Path) -> str:
    """Describe the last equation of a path for an error message: the primitive or the node, and the location."""
    node, operator = _node_of(path)
    if operator is not None:
        return f"node {node!r} ({operator})"
    name, location = path[-1].primitive.name, location_of_equation(path)
    if location.calls is not None and location.calls.endswith(f".{name.replace('-', '_')}"):
        location = Location(location.line, None)
    scope = node_scope_of(path)
    where = " of ".join(part for part in (f"node {scope!r}" if scope else "", str(location)) if part)
    return f"{name!r}" + (f" ({where})" if where else "")


def _node_of(path: Path) -> tuple[str, str | None]:
    """Return the node of a file that contains an equation, and the operator, or None outside of a file."""
    node, operators = node_scope_of(path), _OPERATORS.get() or {}
    while operators and node and node not in operators:
        node = node.rpartition("/")[0]
    return node, operators.get(node)


def hint_for_node(path: Path) -> str | None:
    """Return a hint for a node of a file that cannot be streamed, or None to use the hint of the rule."""
    if "DynamicQuantize" not in (_node_of(path)[1] or ""):
        return None
    return (
        "the scale of dynamic quantisation is that of the whole recording: stream the float model first, and quantise "
        "the step, with 'jaxrnn export --quantize dynamic' or onnxruntime.quantization.quantize_dynamic"
    )


@contextlib.contextmanager
def located(describe: Callable[[], str]) -> Iterator[None]:
    """Add the location to errors raised inside that do not have a location yet."""
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
    """Return a short name for the state of the last equation of a path."""
    return scope_of(path) or path[-1].primitive.name


#: Matches advice about Python.
_PYTHON = re.compile(r"\b(?:jax|jnp|lax|np|jaxrnn)\.|fori_loop")

_POSITIONS = "select by position instead: jnp.where(jnp.arange(x.shape[0]) == 0, value, x) sets the first frame"
_OUTSIDE = "move it outside, to the inputs and outputs of a step"

_TAKES_PLACE = (
    "call jaxrnn.signal.{}, which takes the same arguments; in code that is not yours, give `substitute=True`"
)

#: Hints, keyed by the usual spelling of the function.
_CALLS = {
    "jnp.roll": "to shift frames into the future by k, write jnp.pad(x, ((k, 0), (0, 0)))[: x.shape[0]], or overwrite "
    "the first k frames, as in jnp.roll(x, k, 0).at[:k].set(0); jnp.roll by -k, which moves the first k frames to the "
    "end, does stream",
    "jnp.pad": "jnp.pad takes values from near the end it pads in modes 'constant', 'edge', 'reflect' and 'symmetric'; "
    "jnp.concatenate([x, x[:k]]) wraps the first frames to the end",
    "lax.associative_scan": _TAKES_PLACE.format("associative_scan"),
    "jnp.flip": "run forwards in time",
    "jnp.convolve": _TAKES_PLACE.format("convolve"),
    "jnp.correlate": _TAKES_PLACE.format("correlate"),
    "jax.scipy.signal.convolve": "call jaxrnn.signal.convolve or jaxrnn.signal.fftconvolve",
    "jax.scipy.signal.correlate": "call jaxrnn.signal.correlate",
    "jax.scipy.signal.fftconvolve": "call jaxrnn.signal.fftconvolve, which convolves along an axis",
    "jax.scipy.signal.istft": "call jaxrnn.audio.istft",
    "jax.scipy.signal.stft": "call jaxrnn.audio.stft",
    "jnp.interp": "call jaxrnn.signal.interp, which interpolates time at a fixed ratio",
    "lax.map": "leave out batch_size= (a stream computes one pulse at a time)",
    "jax.image.resize": "resize time by a whole factor with the method nearest, or enlarge it with linear",
    "jax.ops.segment_sum": "sum segments of equal length by a reshape: x.reshape(-1, 4, *x.shape[1:]).sum(1), with "
    "`multiple=4` if the length must be divisible",
    **dict.fromkeys(("jnp.argwhere", "jnp.compress", "jnp.extract", "jnp.flatnonzero", "jnp.nonzero", "jnp.unique"),
    "the number of chosen elements is not known: keep all frames, and write jnp.where(mask, x, 0)"),
    "jnp.linspace": "count frames with jnp.arange(x.shape[0]) and divide by a fixed number",
    "jnp.tile": "repeat along another axis, or each frame with jnp.repeat",
    "jnp.split": "cut at fixed frames, or reshape into blocks",
    "jax.nn.dot_product_attention": "give mask=, computed from positions such as jnp.abs(i - j) <= 16; "
    "local_window_size= needs a fixed length",
}  # fmt: skip

#: Hints, keyed by primitive.
_PRIMITIVES = {
    "dynamic_update_slice": _POSITIONS,
    **dict.fromkeys(("random_bits", "random_gamma", "random_wrap", "random_unwrap", "threefry2x32"),
    "fold the number of each frame into the key, with jax.random.fold_in under jax.vmap, or pass random numbers as an "
    "input with a time axis"),
    **dict.fromkeys(("pure_callback", "io_callback", "debug_callback", "debug_print"), _OUTSIDE),
}  # fmt: skip

#: Hints, keyed by a part of JAX's message, for functions that do not appear in the traceback.
_MESSAGES = {
    "associative scan over axis": _TAKES_PLACE.format("associative_scan"),
    "missing 1 required positional argument": "give `params=` for a function of params and x",
    "takes 1 positional argument but 2 were given": "leave out `params=` for a function of x only",
    "slice indices must be integers": "cut an array of JAX, and not of NumPy: jnp.asarray(table)[: x.shape[0]]",
}


#: Hints, keyed by a part of JAX's message, where Python needs the value of an array that is traced.
_VALUES = {
    "Attempted boolean conversion": "a condition of Python, as in `if`, `while` or `assert`, needs the value: write "
    "jnp.where(condition, a, b), or jax.lax.cond in a scan over frames",
    "boolean indices must be concrete": _CALLS["jnp.nonzero"],
    "Abstract tracer value": "Python needs the value: compute with the array in place of float(), int() and .item(), "
    "and write jnp.where(mask, x, 0) in place of jnp.where(mask)",
    "__array__() was called": "NumPy needs the value: call the function of jax.numpy, as jnp.sin for np.sin",
    "__index__() method was called": "range() and lists of Python need the value: write jax.lax.fori_loop, or jnp.take",
}


#: Patterns of JAX's errors about shapes, and texts for the reader of a file.
_ABOUT_FILES = (
    (r"Shape polymorphism is supported for jnp\.pad .*", "it reflects more frames than a short recording has"),
    (r"\w+ got incompatible shapes for broadcasting: (.*)", r"the shapes \1 do not broadcast"),
    (r"reshape new_sizes must all be positive, got (.*)", r"the new shape \1 is not positive"),
    (r"Cannot divide evenly the sizes of shapes (.*) and (.*)", r"\1 elements do not fill the shape \2"),
)


def error_in_words_of_file(error: Exception) -> str:
    """Return the text of an error about a node of a file, without JAX's advice."""
    text = str(error).rstrip(".")
    for pattern, words in _ABOUT_FILES:
        text = re.sub(pattern, words, text)
    return text


def hint_for_tracing(error: BaseException) -> str | None:
    """Return a hint for an error of JAX while it traces the user's function, or None."""
    found = [[hint for part, hint in table.items() if part in str(error)] for table in (_MESSAGES, _VALUES)]
    return next(iter(found[0]), None) or hint_for_call(location_of_error(error).calls) or next(iter(found[1]), None)


def hint_for_call(calls: str | None) -> str | None:
    """Return a hint for a JAX function that cannot be streamed, or None."""
    if calls is not None and calls.startswith("np."):
        return f"call j{calls}, which takes the same arguments; in code that is not yours, give `substitute=True`"
    return None if calls is None else _CALLS.get(calls)


def hint_for_equation(primitive: str, location: Location, hint: str) -> str:
    """Return the hint for an equation that cannot be streamed; `hint` is the hint of its rule."""
    if location.calls == "lax.map":  # its argument is one of several causes
        return f"{hint}, and {_CALLS[location.calls]}"
    if (location.calls, primitive) == ("jnp.pad", "pad"):  # the advice about jnp.pad concerns modes
        return hint
    return hint_for_call(location.calls) or _PRIMITIVES.get(primitive) or hint


def in_words_of_file(hint: str) -> str:
    """Rewrite a hint for a node of a file, where advice about Python does not help."""
    if _PYTHON.search(hint):
        return "export the model with other operators there, or without this part"
    return hint.replace("the function that is streamed", "the model").replace("the function", "the model")


def refusal(path: Path, why: str, hint: str, kind: type[StreamError] = StreamError, first: str = "") -> StreamError:
    """Return the error for an equation that cannot be streamed: the reason, and remedies."""
    where = "the model " if is_of_file() else "the function "
    if path:
        where = f"{describe_equation(path)} "
        if is_of_file():
            hint = hint_for_node(path) or in_words_of_file(hint)
        else:
            hint = hint_for_equation(path[-1].primitive.name, location_of_equation(path), hint)
    error = kind(f"{where}cannot be streamed: {why}; {f'{first}, or ' if first else ''}{hint}")
    error.located = True
    return error
