"""The progress of an evaluation on standard error, in seconds of its recordings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from jaxrnn.evaluation.evaluation import Evaluation


@contextlib.contextmanager
def showing(progress: bool | None, evaluation: Evaluation) -> Iterator[Callable[[set[int]], None]]:
    """Show a progress bar.

    Args:
        progress: whether to show one; None to show it if standard error is a terminal.
        evaluation: the evaluation that runs.

    Yields:
        A function that takes the numbers of the finished units.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda finished: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    seconds = {unit.index: evaluation.seconds(unit) for unit in evaluation.units}
    text = TextColumn("{task.completed:.0f} of {task.total:.0f} s of recordings")
    columns = (TextColumn("evaluating"), BarColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task("", total=sum(seconds.values()))

        def show(finished: set[int]) -> None:
            bar.update(task, completed=sum(seconds[index] for index in finished & seconds.keys()))

        show(evaluation.journal.finished())
        yield show
