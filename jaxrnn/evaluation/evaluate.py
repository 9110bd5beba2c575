"""An evaluation from recordings to tables and a report page."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.evaluation.conclusion import check_main, check_slices_of, conclude
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.evaluation import BATCH, CHUNK, Evaluation
from jaxrnn.evaluation.hosts import Host, shared
from jaxrnn.evaluation.metrics import Metric, build_metric
from jaxrnn.evaluation.results import Results, read_results
from jaxrnn.evaluation.systems import System


def evaluate(
    system: System,
    corpus: Sequence[Item],
    metrics: Sequence[Metric | str],
    out: str | Path,
    *,
    slices: Sequence[str] = (),
    batch: int = BATCH,
    chunk: float = CHUNK,
    keep: bool = False,
    facts: Mapping[str, Any] | None = None,
    host: Host | None = None,
    against: str | Path | None = None,
    title: str | None = None,
    main: str | None = None,
    progress: bool | None = None,
) -> Results:
    """Run a system over a corpus, and write ``results.parquet``, ``results.json`` and ``report.html``.

    Finished units are kept: after an interruption, the same call continues and writes the same tables.

    Args:
        system: what is evaluated, such as a `Chain` or an `Offline`.
        corpus: the recordings, as `from_folder` or `from_manifest` returns them.
        metrics: by which each is judged; a name is passed to `build_metric`.
        out: a folder for results.
        slices: columns of the manifest to group results by.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk.
        keep: whether to write the outputs to ``out/outputs``.
        facts: what else determines the results, for systems and metrics of one's own.
        host: the place of this process among those that share the folder; by default it is alone.
        against: the results of another system on the same corpus, to compare with on the page: their folder.
        title: of the page.
        main: the metric that ranks recordings; by default the first.
        progress: whether to show a progress bar on standard error; by default if that is a terminal.

    Returns:
        The results: ``rows``, one for each recording, and ``document``, their summary. Of several processes, number 0
        writes them.

    Raises:
        InputError: an argument does not fit, the folder belongs to another evaluation, or the disk is full. Finished
            units are kept.
        MissingPackageError: a metric, tables or the page need a package that is not installed.
    """
    built = [build_metric(metric) if isinstance(metric, str) else metric for metric in metrics]
    check_main(built, main)
    check_slices_of(corpus, built, slices)
    baseline = None if against is None else read_results(Path(against))
    evaluation = Evaluation(system, corpus, built, Path(out), facts=facts, batch=batch, chunk=chunk, keep=keep)
    host = host or Host()
    times = run(evaluation, host, progress)
    if host.index != 0:
        return evaluation.results(slices)
    return conclude(evaluation, times, slices=slices, baseline=baseline, title=title, main=main)


def run(evaluation: Evaluation, host: Host, progress: bool | None = None) -> dict[str, Any]:
    """Run the units of a host, until all units are finished by some host.

    Args:
        evaluation: what is run.
        host: the place of this process among those that share the folder.
        progress: whether to show a progress bar on standard error; by default if that is a terminal.

    Returns:
        The times of the run, for the units that were not finished before: ``seconds``, ``seconds_of_recordings`` and
        ``times_real_time``.
    """
    before, began = evaluation.journal.finished(), time.monotonic()
    with _showing(progress, evaluation) as show:
        evaluation.run(shared(evaluation, host), lambda unit, rows: show(evaluation.journal.finished()))
    took = time.monotonic() - began
    sound = sum(evaluation.seconds(unit) for unit in evaluation.units if unit.index not in before)
    return {"seconds": took, "seconds_of_recordings": sound, "times_real_time": sound / took if sound else None}


@contextlib.contextmanager
def _showing(progress: bool | None, evaluation: Evaluation) -> Iterator[Callable[[set[int]], None]]:
    """Show a progress bar in seconds of recordings; yields a function of the numbers of the finished units."""
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
