"""Exit statuses, signals and error messages of commands: without NumPy, so that ``--help`` is fast."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

from jaxrnn._files.readers import for_reader
from jaxrnn.errors import JaxrnnError

#: Exit statuses: a failed comparison, a mistake of the user, an interrupt from the keyboard or by SIGTERM.
MISMATCH, MISTAKE, INTERRUPTED = 1, 2, 130

#: The keys of click's context for ``--json``, and for the reader of messages.
_JSON, _READER = "jaxrnn.json", "jaxrnn.reader"


class MismatchError(JaxrnnError):
    """A failed comparison, after which a command writes no result."""


def ask_for_json(ctx: click.Context) -> None:
    """Print results and errors as JSON from here on."""
    ctx.meta[_JSON] = True


def wants_json() -> bool:
    """Return True if the running command prints JSON."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(_JSON, False)


def write_for_settings() -> None:
    """Write the messages of the running command for the author of a file of settings."""
    click.get_current_context().meta[_READER] = "settings"


def worded(message: str) -> str:
    """Return a message with arguments as options of a command, or as keys of settings."""
    ctx = click.get_current_context(silent=True)
    return for_reader(message, "command" if ctx is None else ctx.meta.get(_READER, "command"))


#: Characters that control a terminal, or change the order or the lines of text; a name in a file can have them.
_CONTROLS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return a text with control characters as escapes of JSON; tabs and line ends stay."""
    return _CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], text)


def echo(text: str, **style: Any) -> None:
    """Print a line without control characters; ``style`` as in ``click.secho``."""
    with naming_output():
        click.secho(printable(text), **style)


@contextlib.contextmanager
def naming_output() -> Iterator[None]:
    """Let errors of printing, such as a full disk, name the standard output."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = "standard output"
        raise


def print_error(message: str) -> None:
    """Print an error as a line on standard error, and with ``--json`` also as an object on standard output."""
    message = worded(message)
    with contextlib.suppress(OSError):  # such as a full disk, which may be the error
        print_json_error(message)
    echo(f"error: {message}", err=True, fg="red", color=False if os.environ.get("NO_COLOR") else None)


def print_json_error(message: str) -> None:
    """Print an error as a JSON object if the command prints JSON."""
    if wants_json():
        echo(json.dumps({"error": message}, indent=2))


@contextlib.contextmanager
def on_signal(number: int, handle: Callable[[int, Any], Any]) -> Iterator[None]:
    """Handle a signal by a function inside the context; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
