"""How messages write what the reader is to give: an argument in Python, an option of a command, a key of settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

#: How an argument is written: of its name, its value (None for the name alone) and the call that takes it.
Voice = Callable[[str, Any, str], str]


class Placeholder(str):
    """What a reader puts something else in place of."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


NAME, VALUE, SIZE, INPUT, OUTPUT = map(Placeholder, ("NAME", "VALUE", "SIZE", "INPUT", "OUTPUT"))


def in_python(name: str, value: Any, call: str) -> str:
    """An argument as one writes it in Python: ``jaxrnn.load(path, state={})`` of a call ``jaxrnn.load(path)``."""
    written = name if value is None else f"{name}={value!r}"
    return f"{call[:-1]}{'' if call.endswith('()') else ', '}{written})" if call else written


_VOICE: ContextVar[Voice] = ContextVar("voice", default=in_python)


@contextlib.contextmanager
def speaking(voice: Voice) -> Iterator[None]:
    """Messages made here write arguments in another voice than Python's: that of a command line, of its settings."""
    token = _VOICE.set(voice)
    try:
        yield
    finally:
        _VOICE.reset(token)


def argument(name: str, value: Any, call: str = "") -> str:
    """An argument that the reader of a message is to give, as the reader writes it.

    Args:
        name: of the argument in Python.
        value: of it, None for its name alone; `NAME`, `SIZE` and the like in place of what only the reader knows.
        call: what takes it in Python, with its other arguments.
    """
    return _VOICE.get()(name, value, call)


def called(name: str) -> str:
    """The name of an argument as the reader knows it: ``batch``, or ``--batch`` where a command has such an option."""
    return argument(name, None)


def either(python: str, command: str) -> str:
    """What a message says in Python, or where a command speaks."""
    return python if _VOICE.get() is in_python else command


def static_argument(name: str = NAME) -> str:
    """How an input is fixed when a model is loaded."""
    return argument("static", {name: VALUE}, "jaxrnn.load(path)")


def static_or_eager() -> str:
    """How a value that depends on data becomes known."""
    return static_argument() + either(", or call apply outside jit, grad and vmap", "")
