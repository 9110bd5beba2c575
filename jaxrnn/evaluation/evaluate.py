"""An evaluation in one call, from recordings to tables and a report page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.evaluation.conclusion import check_main, check_slices_of, conclude, results_of, times_of
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.evaluation import BATCH, CHUNK, Evaluation
from jaxrnn.evaluation.hosts import Host, shared
from jaxrnn.evaluation.metrics import Metric, build_metric
from jaxrnn.evaluation.progress import showing
from jaxrnn.evaluation.report import Results
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
        The results: ``rows``, one for each recording, and ``said``, their summary. Of several processes, number 0
        writes them.

    Raises:
        InputError: an argument does not fit, the folder belongs to another evaluation, or the disk is full. Finished
            units are kept.
        MissingPackageError: a metric, tables or the page need a package that is not installed.
    """
    built = [build_metric(metric) if isinstance(metric, str) else metric for metric in metrics]
    check_main(built, main)
    check_slices_of(corpus, built, slices)
    evaluation = Evaluation(system, corpus, built, Path(out), facts=facts, batch=batch, chunk=chunk, keep=keep)
    place, before, began = host or Host(), evaluation.journal.finished(), time.monotonic()
    with showing(progress, evaluation) as show:
        evaluation.run(shared(evaluation, place), lambda unit, rows: show(evaluation.journal.finished()))
    if place.index != 0:
        return results_of(evaluation, slices)
    return conclude(
        evaluation,
        slices=slices,
        times=times_of(evaluation, before, time.monotonic() - began),
        against=None if against is None else Path(against),
        title=title,
        main=main,
    )
