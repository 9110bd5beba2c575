"""Arguments in messages, in the form for the reader: Python, command-line options, or keys of settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal

_SAME = ("batch", "dtype", "length", "multiple", "opset", "past", "pulse", "state", "static", "what")
_SOUND = ("exponent", "gives", "norm", "padding", "symbol", "synthesis", "takes")
#: The command-line option for each argument of Python that messages name.
OPTIONS = {"dims": "--dim"} | {name: f"--{name}" for name in _SAME + _SOUND}
#: The arguments of `jaxrnn.load` that are keys of a file of settings.
_MODEL_KEYS = ("dims", "state", "static")

Reader = Literal["python", "command", "settings"]
_READER: ContextVar[Reader] = ContextVar("reader", default="python")


class Metavar(str):
    """A word that the reader replaces by a value, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


NAME, VALUE, SIZE, INPUT, OUTPUT = map(Metavar, ("NAME", "VALUE", "SIZE", "INPUT", "OUTPUT"))


@contextlib.contextmanager
def writing_for(reader: Reader) -> Iterator[None]:
    """Set the reader of messages inside the context: Python, the user of a command, or the author of settings."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def argument(name: str, value: Any, call: str = "") -> str:
    """Write an argument in the form for the reader of a message: ``pulse=4``, ``--pulse 4`` or ``pulse: 4``.

    The value None writes only the name. A `Metavar` such as `SIZE` is a placeholder for a value of the reader's choice.
    ``call`` is the Python call that takes the argument, such as ``"jaxrnn.load(path)"``.
    """
    reader, option = _READER.get(), OPTIONS.get(name)
    foreign = option is None if reader == "command" else bool(call) and name not in _MODEL_KEYS
    if reader == "python" or (foreign and value is not None):
        written = in_python(name, value, call)
        return written if reader == "python" else f"in Python, {written}"
    shown = name if option is None or reader == "settings" else option
    if value is None:
        return shown
    if not isinstance(value, Mapping):
        return f"{shown} {value}" if reader == "command" else f"{shown}: {value}"
    if reader == "settings":
        return f"{shown}: {{{', '.join(f'{key}: {item}' for key, item in value.items())}}}"
    return " ".join(f"{shown} {key}={item}" for key, item in value.items()) or f"{shown} none"


def in_python(name: str, value: Any, call: str = "") -> str:
    """Write an argument in Python for any reader: ``jaxrnn.load(path, state={})``."""
    written = name if value is None else f"{name}={value!r}"
    return f"{call[:-1]}{'' if call.endswith('()') else ', '}{written})" if call else written


def called(name: str) -> str:
    """Return the name of an argument for the reader: ``batch``, or ``--batch`` on the command line."""
    return argument(name, None)


def either(python: str, command: str) -> str:
    """Return the text for a reader in Python, or else the text for the user of a command."""
    return python if _READER.get() == "python" else command


def static_argument(name: str = NAME) -> str:
    """Write the argument that fixes an input while the model is loaded."""
    return argument("static", {name: VALUE}, "jaxrnn.load(path)")


def static_or_eager() -> str:
    """Write how a value that depends on data can become a constant."""
    return static_argument() + either(", or call apply outside jit, grad and vmap", "")
