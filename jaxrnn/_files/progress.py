"""Progress bars on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds between two pictures of a bar.
_PAUSE = 0.2


@contextlib.contextmanager
def progress_bar(
    what: str, total: float, *texts: str, shown: bool | None = None, stays: bool = False, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show how far something is while the context lasts.

    The bar is redrawn when it is told of progress and by no thread of its own, which would take time from the work.

    Args:
        what: is done.
        total: what progress counts up to.
        texts: stand beside the bar, with ``{task.completed}``, ``{task.total}`` and ``{task.fields[NAME]}`` filled in.
        shown: whether to show a bar; None to show it if standard error is a terminal.
        stays: whether the bar is left on the screen. Where there is no terminal, only the last state of it is written.
        fields: by name, before there is progress; ``completed`` is what was done before.

    Yields:
        A function that takes how much is done, and new values of fields by name.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda completed, **fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn(what), BarColumn(), *map(TextColumn, texts), TimeRemainingColumn()]
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=console.is_terminal and not stays, auto_refresh=False) as bar:
        task, drawn = bar.add_task("", total=total, **fields), time.monotonic()
        bar.refresh()

        def show(completed: float, **fields: Any) -> None:
            nonlocal drawn
            bar.update(task, completed=completed, **fields)
            if time.monotonic() - drawn >= _PAUSE or completed >= total:
                bar.refresh()
                drawn = time.monotonic()

        yield show


def note(text: str) -> None:
    """A line on standard error, above the bar if there is one."""
    print(text, file=sys.stderr, flush=True)
