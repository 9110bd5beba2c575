"""How a command ends that did not do what it was asked for: exit statuses, and errors for people and programs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator

import click

from jaxrnn.errors import JaxrnnError

#: Exit statuses: a comparison failed, the user can mend something, another process was lost so that the same command
#: goes on, the keyboard interrupted it.
MISMATCH, MISTAKE, LOST, INTERRUPTED = 1, 2, 75, 130

#: Where the context of a command holds whether it prints JSON.
_JSON = "jaxrnn.json"


class MismatchError(JaxrnnError):
    """A comparison failed, so that there is no result."""


def ask_for_json(ctx: click.Context) -> None:
    """Have results and errors printed as JSON."""
    ctx.meta[_JSON] = True


def wants_json() -> bool:
    """Whether the command that runs prints JSON."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(_JSON, False)


def print_error(message: str) -> None:
    """Print an error: a line on standard error, and with ``--json`` an object on standard output."""
    print_json_error(message)
    click.secho(f"error: {message}", err=True, fg="red", color=False if os.environ.get("NO_COLOR") else None)


def print_json_error(message: str) -> None:
    """With ``--json``, print an error as an object."""
    if wants_json():
        click.echo(json.dumps({"error": message}, indent=2))


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM ends a command as Ctrl-C does, so that it lets go of what it holds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
