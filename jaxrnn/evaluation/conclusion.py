"""The end of an evaluation: its tables, what they say together, and the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.evaluation import OUTPUTS, Evaluation
from jaxrnn.evaluation.metrics import Metric, latency
from jaxrnn.evaluation.metrics.checking import RESERVED
from jaxrnn.evaluation.report import Limits, Results, write_report
from jaxrnn.evaluation.slices import check_slices
from jaxrnn.evaluation.tables import DOCUMENT, document, read_results, write_results
from jaxrnn.messages import near
from jaxrnn.writing import in_place_of

#: What a run took, beside the results: it differs from run to run, as they must not.
TIMES = "times.json"
REPORT = "report.html"


def check_slices_of(corpus: Iterable[Item], metrics: Iterable[Metric], slices: Iterable[str]) -> None:
    """See that results can be told by these columns, before there are any.

    Raises:
        InputError: there is no such column; names the nearest.
    """
    manifest = [key for item in corpus for key in item.columns]
    check_slices(
        slices, [*manifest, *RESERVED, *(column.name for metric in metrics for column in metric.known_columns)]
    )


def check_main(metrics: Sequence[Metric], main: str | None) -> None:
    """See that recordings can be told apart by a metric, before there are results.

    Raises:
        InputError: there is no such metric or column of one; names the nearest.
    """
    known = [name for metric in metrics for name in (metric.name, *(column.name for column in metric.columns))]
    # What a function gives that gives several values is not known yet, but for how it begins.
    begun = tuple(f"{metric.name}_" for metric in metrics if not metric.columns)
    if main is not None and main not in known and not main.startswith(begun):
        raise InputError(f"there is no metric {main!r}{near(main, known)}; there are: {', '.join(known) or 'none'}")


def conclude(
    evaluation: Evaluation,
    *,
    slices: Sequence[str] = (),
    times: Mapping[str, Any],
    against: Path | None = None,
    title: str | None = None,
    main: str | None = None,
    limits: Limits | None = None,
) -> Results:
    """Write the tables and the page of what is done.

    Args:
        evaluation: what was run.
        slices: columns by which results are also told.
        times: what the run took.
        against: the folder of results of another system on the same corpus, to compare with.
        title: of the page.
        main: the metric that tells the best and the worst recordings; by default the first.
        limits: what the page holds at most.

    Raises:
        InputError: the disk is full, ``against`` is of another corpus, or there is no such column or metric.
        MissingPackageError: a package that tables or the page need is not installed.
    """
    out, rows = evaluation.journal.folder, evaluation.rows()
    said = write_results(out, rows, evaluation.metrics, slices=slices, facts=_facts(evaluation))
    with in_place_of(out / TIMES) as written:
        written.write_text(json.dumps(dict(times), indent=1))
    results = Results(out.name, rows, said, evaluation.outputs)
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
    """What `conclude` gives, and nothing is written."""
    rows = evaluation.rows()
    said = document(rows, evaluation.metrics, slices=slices, facts=_facts(evaluation))
    return Results(evaluation.journal.folder.name, rows, said, evaluation.outputs)


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    return evaluation.facts | {"latency": latency(evaluation.system)}


def results_in(folder: Path) -> Results:
    """What a folder of results holds.

    Raises:
        InputError: it holds none, or they cannot be read.
    """
    rows, _, _ = read_results(folder)
    outputs = folder / OUTPUTS
    said = json.loads((folder / DOCUMENT).read_text())
    return Results(folder.name, rows, said, outputs if outputs.is_dir() else None)


def times_of(evaluation: Evaluation, before: set[int], took: float) -> dict[str, Any]:
    """What a run took for the units that were not done before it.

    Args:
        evaluation: what was run.
        before: numbers of the units that were done before.
        took: seconds.
    """
    sound = sum(evaluation.seconds(unit) for unit in evaluation.units if unit.index not in before)
    return {"seconds": took, "seconds_of_recordings": sound, "times_real_time": sound / took if sound else None}
