"""The progress of a training on standard error, where that is a terminal: loss, rate and time left."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from jaxrnn._files.progress import progress_bar

#: Where a training says how far it is: what is done of the total, updates, their loss, perhaps a validation loss.
Shown = Callable[[int, int, float, float | None], None]

_logger = logging.getLogger("jaxrnn.training")


def announce(line: str, progress: bool | None) -> None:
    """Log what a training begins with, and write it where its progress is shown."""
    _logger.info(line)
    if sys.stderr.isatty() if progress is None else progress:
        print(line, file=sys.stderr)


@contextlib.contextmanager
def showing(progress: bool | None, total: int, done: int, updates: int) -> Iterator[Shown]:
    """A progress bar while the context lasts.

    Args:
        progress: whether to show one; None where standard error is a terminal.
        total: what ``done`` counts up to.
        done: what was done before.
        updates: how many updates that were.
    """
    began, before = time.monotonic(), updates
    mean: float | None = None
    best: float | None = None
    texts = ("update {task.fields[updates]}", "{task.fields[rate]}", "{task.fields[loss]}")
    fields = {"updates": updates, "rate": "", "loss": ""}
    with progress_bar("training", total, *texts, shown=progress, stays=True, completed=done, **fields) as bar:

        def show(done: int, updates: int, loss: float, validation: float | None) -> None:
            nonlocal mean, best
            mean = loss if mean is None else 0.95 * mean + 0.05 * loss
            best = validation if validation is not None else best
            rate = f"{(updates - before) / max(time.monotonic() - began, 1e-9):.3g}/s"
            text = f"loss {mean:.4g}" + ("" if best is None else f", validation {best:.4g}")
            bar(done, updates=updates, rate=rate, loss=text)

        yield show
