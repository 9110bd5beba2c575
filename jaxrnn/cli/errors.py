"""Exit statuses, signals and error messages of commands: without NumPy, so that ``--help`` is fast."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import click

from jaxrnn.errors import JaxrnnError

#: Exit statuses: a failed comparison, a mistake of the user, an interrupt from the keyboard or by SIGTERM.
MISMATCH, MISTAKE, INTERRUPTED = 1, 2, 130

#: The key of click's context for ``--json``.
_JSON = "jaxrnn.json"


class MismatchError(JaxrnnError):
    """A failed comparison, after which a command writes no result."""


def ask_for_json(ctx: click.Context) -> None:
    """Print results and errors as JSON from here on."""
    ctx.meta[_JSON] = True


def wants_json() -> bool:
    """Return True if the running command prints JSON."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(_JSON, False)


def print_error(message: str) -> None:
    """Print an error as a line on standard error, and with ``--json`` also as an object on standard output."""
    with contextlib.suppress(OSError):  # such as a full disk, which may be the error
        print_json_error(message)
    click.secho(f"error: {message}", err=True, fg="red", color=False if os.environ.get("NO_COLOR") else None)


def print_json_error(message: str) -> None:
    """Print an error as a JSON object if the command prints JSON."""
    if wants_json():
        click.echo(json.dumps({"error": message}, indent=2))


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
