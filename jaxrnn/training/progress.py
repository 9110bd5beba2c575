"""The progress of a training on standard error, where that is a terminal: loss, rate and time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

#: Where a training says how far it is: what is done of the total, updates, their loss, perhaps a validation loss.
Shown = Callable[[int, int, float, float | None], None]


@contextlib.contextmanager
def showing(progress: bool | None, total: int, done: int, updates: int) -> Iterator[Shown]:
    """A progress bar while the context lasts.

    Args:
        progress: whether to show one; None where standard error is a terminal.
        total: what ``done`` counts up to.
        done: what was done before.
        updates: how many updates that were.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda done, updates, loss, validation: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        TextColumn("update {task.fields[updates]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    # Redrawn between updates and by no thread of its own, which would take time from them.
    console = Console(stderr=True, highlight=False)
    began = last_drawn = time.monotonic()
    before, mean = updates, None
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, completed=done, updates=updates, rate="", loss="")

        def show(done: int, updates: int, loss: float, validation: float | None) -> None:
            nonlocal last_drawn, mean, best
            mean = loss if mean is None else 0.95 * mean + 0.05 * loss
            best = validation if validation is not None else best
            now = time.monotonic()
            if now - last_drawn < 0.2 and done < total and validation is None:
                return
            last_drawn = now
            rate = f"{(updates - before) / max(now - began, 1e-9):.3g}/s"
            text = f"loss {mean:.4g}" + ("" if best is None else f", validation {best:.4g}")
            bar.update(task, completed=done, updates=updates, rate=rate, loss=text, refresh=True)

        best: float | None = None
        yield show
