"""An evaluation from recordings to tables and a report page."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrnn._files.locations import Location, location
from jaxrnn._files.progress import progress_bar
from jaxrnn.evaluation.cluster import WorkerPool
from jaxrnn.evaluation.conclusion import check_main, check_slices_of, conclude
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.evaluation import BATCH, CHUNK, Evaluation
from jaxrnn.evaluation.evaluator import Evaluator
from jaxrnn.evaluation.joining import Workers
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics import Metric, build_metric
from jaxrnn.evaluation.results import OUTPUTS, Results, read_results
from jaxrnn.evaluation.systems import System
from jaxrnn.evaluation.units import Unit


def evaluate(
    system: System | Callable[[], System],
    corpus: Sequence[Item],
    metrics: Sequence[Metric | str],
    out: Location | str,
    *,
    slices: Sequence[str] = (),
    batch: int = BATCH,
    chunk: float = CHUNK,
    keep: bool = False,
    facts: Mapping[str, Any] | None = None,
    workers: Workers | int | None = None,
    against: Location | str | None = None,
    title: str | None = None,
    main: str | None = None,
    progress: bool | None = None,
) -> Results:
    """Run a system over a corpus, and write ``results.parquet``, ``results.json`` and ``report.html``.

    Finished units are kept: after an interruption, the same call continues and writes the same tables.

    Args:
        system: what is evaluated, such as a `Chain` or an `Offline`, or a function that makes it.
        corpus: the recordings, as `from_folder` or `from_manifest` returns them.
        metrics: by which each is judged; a name is passed to `build_metric`.
        out: a folder for results, here or by URL.
        slices: columns of the manifest to group results by.
        batch: recordings in a batch.
        chunk: seconds of each recording in a chunk.
        keep: whether to write the outputs to ``out/outputs``.
        facts: what else determines the results, for systems and metrics of one's own.
        workers: processes that compute; a number of them is on this machine. They need Ray, and a function as
            ``system``, which each of them calls. By default, this process computes.
        against: the results of another system on the same corpus, to compare with on the page: their folder.
        title: of the page.
        main: the metric that ranks recordings; by default the first.
        progress: whether to show a progress bar on standard error; by default if that is a terminal.

    Returns:
        The results: ``rows``, one for each recording, and ``document``, their summary.

    Raises:
        InputError: an argument does not fit, the folder belongs to another evaluation, or the disk is full. Finished
            units are kept.
        MissingPackageError: a metric, tables, the page or workers need a package that is not installed.
    """
    built = [build_metric(metric) if isinstance(metric, str) else metric for metric in metrics]
    check_main(built, main)
    check_slices_of(corpus, built, slices)
    out = location(out)
    baseline = None if against is None else read_results(against)
    pool = None
    if workers is not None:
        workers = Workers(workers) if isinstance(workers, int) else workers
        pool = WorkerPool(workers, functools.partial(_evaluator, system, built, batch, chunk, out if keep else None))
    evaluation = Evaluation(
        _made(system), corpus, built, out, facts=facts, batch=batch, chunk=chunk, keep=keep, computing=pool
    )
    times = run(evaluation, progress)
    return conclude(evaluation, times, slices=slices, baseline=baseline, title=title, main=main)


def _made(system: System | Callable[[], System]) -> System:
    return system() if callable(system) else system


def _evaluator(
    system: System | Callable[[], System], metrics: Sequence[Metric], batch: int, chunk: float, out: Location | None
) -> Evaluator:
    return Evaluator(_made(system), metrics, batch=batch, chunk=chunk, outputs=None if out is None else out / OUTPUTS)


def run(evaluation: Evaluation, progress: bool | None = None) -> dict[str, Any]:
    """Compute the units that are not finished.

    Args:
        evaluation: what is run.
        progress: whether to show a progress bar on standard error; by default if that is a terminal.

    Returns:
        The times of the run, for the units that were not finished before: ``seconds``, ``seconds_of_recordings``,
        ``times_real_time``, and ``workers``.
    """
    units, computing = evaluation.units, evaluation.computing
    finished = evaluation.journal.finished()
    count, before, total = len(finished), sum(units[index].seconds for index in finished), units.seconds
    began, sound, workers = time.monotonic(), 0.0, 0
    text = (
        "{task.fields[workers]} workers, {task.fields[units]} units, {task.fields[hours]} h of sound, "
        "{task.fields[speed]} times real time, left:"
    )

    def fields() -> dict[str, Any]:
        return {
            "workers": str(computing.workers),
            "units": f"{count:,} of {len(units):,}",
            "hours": f"{(before + sound) / 3600:,.2f} of {total / 3600:,.2f}",
            "speed": f"{sound / (time.monotonic() - began):,.0f}",
        }

    with progress_bar("evaluating", total, text, shown=progress, completed=before, **fields()) as show:

        def watch(unit: Unit, rows: list[Row]) -> None:
            nonlocal count, sound, workers
            count, sound, workers = count + 1, sound + unit.seconds, max(workers, computing.workers)
            show(before + sound, **fields())

        evaluation.run(watch=watch)
    took = time.monotonic() - began
    return {
        "seconds": took,
        "seconds_of_recordings": sound,
        "times_real_time": sound / took if sound else None,
        "workers": workers,
    }
