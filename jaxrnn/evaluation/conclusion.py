"""The end of an evaluation: its tables, their summary, and the report page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.evaluation import OUTPUTS, Evaluation
from jaxrnn.evaluation.journal import write_whole
from jaxrnn.evaluation.metrics import Metric, latency
from jaxrnn.evaluation.metrics.checking import RESERVED
from jaxrnn.evaluation.report import PageLimits, Results, write_report
from jaxrnn.evaluation.slices import check_slices
from jaxrnn.evaluation.tables import DOCUMENT, document, read_results, write_results
from jaxrnn.messages import near

#: The times of a run, in a file of their own: they differ from run to run, and the results must not.
TIMES = "times.json"
REPORT = "report.html"


def check_slices_of(corpus: Iterable[Item], metrics: Iterable[Metric], slices: Iterable[str]) -> None:
    """Check before the run that results can be grouped by these columns.

    Raises:
        InputError: there is no such column; the message names the nearest.
    """
    manifest = [key for item in corpus for key in item.columns]
    check_slices(
        slices, [*manifest, *RESERVED, *(column.name for metric in metrics for column in metric.known_columns)]
    )


def check_main(metrics: Sequence[Metric], main: str | None) -> None:
    """Check before the run that recordings can be ranked by this metric.

    Raises:
        InputError: there is no such metric or column of one; the message names the nearest.
    """
    known = [name for metric in metrics for name in (metric.name, *(column.name for column in metric.columns))]
    # The columns of a function with several values are not known yet, but their prefix is.
    prefixes = tuple(f"{metric.name}_" for metric in metrics if not metric.columns)
    if main is not None and main not in known and not main.startswith(prefixes):
        raise InputError(f"there is no metric {main!r}{near(main, known)}; there are: {', '.join(known) or 'none'}")


def conclude(
    evaluation: Evaluation,
    *,
    slices: Sequence[str] = (),
    times: Mapping[str, Any],
    against: Path | None = None,
    title: str | None = None,
    main: str | None = None,
    limits: PageLimits | None = None,
) -> Results:
    """Write the tables and the report page of the finished units.

    Args:
        evaluation: what was run.
        slices: columns to group results by.
        times: of the run, as `times_of` returns them.
        against: the folder of results of another system on the same corpus, to compare with.
        title: of the page.
        main: the metric that ranks recordings; by default the first.
        limits: the limits of the page.

    Raises:
        InputError: the disk is full, ``against`` is of another corpus, or there is no such column or metric.
        MissingPackageError: a package that tables or the page need is not installed.
    """
    out, rows = evaluation.journal.folder, evaluation.rows()
    summary = write_results(out, rows, evaluation.metrics, slices=slices, facts=_facts(evaluation))
    write_whole(out / TIMES, lambda file: file.write_text(json.dumps(dict(times), indent=1)))
    results = Results(out.name, rows, summary, evaluation.outputs)
    write_report(
        out / REPORT,
        results,
        baseline=None if against is None else results_in(against),
        corpus=evaluation.corpus,
        title=title,
        main=main,
        times=times,
        rate=evaluation.system.rate,
        limits=limits,
    )
    return results


def results_of(evaluation: Evaluation, slices: Sequence[str] = ()) -> Results:
    """The results that `conclude` returns, without writing anything."""
    rows = evaluation.rows()
    summary = document(rows, evaluation.metrics, slices=slices, facts=_facts(evaluation))
    return Results(evaluation.journal.folder.name, rows, summary, evaluation.outputs)


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return evaluation.facts | {"latency": latency(evaluation.system)}


def results_in(folder: Path) -> Results:
    """Read the results in a folder.

    Raises:
        InputError: the folder holds none, or they cannot be read.
    """
    rows, _, _ = read_results(folder)
    outputs = folder / OUTPUTS
    summary = json.loads((folder / DOCUMENT).read_text())
    return Results(folder.name, rows, summary, outputs if outputs.is_dir() else None)


def times_of(evaluation: Evaluation, before: set[int], took: float) -> dict[str, Any]:
    """The times of a run, for the units that it finished.

    Args:
        evaluation: what was run.
        before: numbers of the units that were finished before the run.
        took: its duration in seconds.
    """
    sound = sum(evaluation.seconds(unit) for unit in evaluation.units if unit.index not in before)
    return {"seconds": took, "seconds_of_recordings": sound, "times_real_time": sound / took if sound else None}
