"""An evaluation by one call, from recordings to tables and a page."""

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

    What is finished is kept: the same call goes on where another was cut short, and its tables are the same.

    Args:
        system: what is evaluated, such as a `Chain` or an `Offline`.
        corpus: the recordings, as `from_folder` or `from_manifest` gives them.
        metrics: by which each is judged; a name stands for what `build_metric` makes of it.
        out: a folder for results.
        slices: columns of the manifest by which results are also told.
        batch: recordings at once.
        chunk: seconds of each that are on the device at once.
        keep: whether the outputs are written to ``out/outputs``.
        facts: what else decides on the results, for systems and metrics of one's own.
        host: which of several processes this is that share the folder; alone by default.
        against: the folder of results of another system on the same corpus, to compare with on the page.
        title: of the page.
        main: the metric that tells the best and the worst recordings; by default the first.
        progress: whether to show a progress bar on standard error; by default, if that is a terminal.

    Returns:
        What was found: ``rows``, one for each recording, and ``said``, what they say together. Of several processes
        that with number 0 writes it.

    Raises:
        InputError: something does not fit, the folder is another evaluation's, or the disk is full; what is finished
            stays.
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
