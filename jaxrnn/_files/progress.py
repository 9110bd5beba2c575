"""Progress bars on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

#: Seconds between two drawings of a bar.
_PAUSE = 0.2


@contextlib.contextmanager
def progress_bar(
    what: str, total: float, *texts: str, shown: bool | None = None, stays: bool = False, **fields: Any
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error while the context lasts; yield a function of the progress and of fields.

    The bar is redrawn only when progress is reported, without a thread. Texts beside the bar have ``{task.completed}``,
    ``{task.total}`` and ``{task.fields[NAME]}`` filled in; ``completed`` among the fields is the initial progress. By
    default, the bar is shown only in a terminal. With ``stays``, the bar stays on the screen. Without a terminal,
    only the last state is written.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda completed, **fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # Texts have names of files, which are not markup.
    before, *beside = (TextColumn(text, markup=False) for text in (what, *texts))
    columns = [before, BarColumn(), *beside, TimeRemainingColumn()]
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
    """Print a line on standard error, above the bar."""
    print(text, file=sys.stderr, flush=True)
