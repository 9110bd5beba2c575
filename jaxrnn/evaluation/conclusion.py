"""The end of an evaluation: its tables and the report page; and what of them can be checked before the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrnn._files.messages import near
from jaxrnn.errors import InputError
from jaxrnn.evaluation.corpus import Item, columns_of
from jaxrnn.evaluation.evaluation import Evaluation
from jaxrnn.evaluation.journal import COLUMNS, write_whole
from jaxrnn.evaluation.metrics import Metric
from jaxrnn.evaluation.report import EXAMPLES, write_report
from jaxrnn.evaluation.results import Results
from jaxrnn.evaluation.slices import check_slices

#: The times of a run, in a file of their own: they differ from run to run, and the results must not.
TIMES = "times.json"
REPORT = "report.html"


def check_slices_of(corpus: Iterable[Item], metrics: Iterable[Metric], slices: Iterable[str]) -> None:
    """Check before the run that results can be grouped by these columns.

    Raises:
        InputError: there is no such column; the message names the nearest.
    """
    check_slices(
        slices, [*columns_of(corpus), *COLUMNS, *(column.name for metric in metrics for column in metric.columns)]
    )


def check_main(metrics: Sequence[Metric], main: str | None) -> None:
    """Check before the run that recordings can be ranked by this metric.

    Raises:
        InputError: there is no such metric or column of one; the message names the nearest.
    """
    known = [name for metric in metrics for name in (metric.name, *(column.name for column in metric.columns))]
    # The columns of a function with several values are not known yet, but their prefix is.
    prefixes = tuple(f"{metric.name}_" for metric in metrics if metric.by_key)
    if main is not None and main not in known and not main.startswith(prefixes):
        raise InputError(f"there is no metric {main!r}{near(main, known)}; there are: {', '.join(known) or 'none'}")


def conclude(
    evaluation: Evaluation,
    times: Mapping[str, Any],
    *,
    slices: Sequence[str] = (),
    baseline: Results | None = None,
    title: str | None = None,
    main: str | None = None,
    examples: int = EXAMPLES,
) -> Results:
    """Write the tables and the report page of the finished units.

    Args:
        evaluation: what was run.
        times: of the run.
        slices: columns to group results by.
        baseline: the results of another system on the same corpus, to compare with.
        title: of the page.
        main: the metric that ranks recordings; by default the first.
        examples: recordings to listen to, of the worst and of the best each.

    Raises:
        InputError: the disk is full, the baseline is of another corpus, or there is no such column or metric.
        MissingPackageError: a package that tables or the page need is not installed.
    """
    out, results = evaluation.journal.folder, evaluation.write_results(slices)
    write_whole(out / TIMES, lambda file: file.write_text(json.dumps(dict(times), indent=1)))
    write_report(
        out / REPORT,
        results,
        baseline=baseline,
        corpus=evaluation.corpus,
        title=title,
        main=main,
        times=times,
        rate=evaluation.system.rate,
        examples=examples,
    )
    return results
