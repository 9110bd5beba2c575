"""The report of an evaluation as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.compare import PairedComparison, compare
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.report.content import Content, PageLimits, Results, main_of
from jaxrnn.writing import in_place_of


def write_report(
    path: Path,
    results: Results,
    *,
    baseline: Results | None = None,
    comparison: PairedComparison | None = None,
    corpus: Iterable[Item] = (),
    title: str | None = None,
    main: str | None = None,
    times: Mapping[str, Any] | None = None,
    rate: int = 16_000,
    limits: PageLimits | None = None,
) -> None:
    """Write the report of an evaluation: one HTML file, which needs no network and no file beside it.

    The same arguments and sounds give the same bytes. All foreign text, names of files among it, is shown as text.

    Args:
        path: the file to write or replace; its folder is made where it is not there.
        results: of the system.
        baseline: what another system gave on the same corpus, to compare with.
        comparison: of the baseline and the results, in this order; by default what `compare` gives of their rows,
            without what is counted over the whole corpus.
        corpus: the recordings, for their sounds; what has since been moved is a note on the page.
        title: of the page.
        main: the metric that tells the best and the worst recordings; by default the first.
        times: what a run took; a number called ``times_real_time`` stands at the head of the page.
        rate: samples a second of the system.
        limits: what the page holds at most.

    Raises:
        InputError: there is no metric ``main``, the baseline is of another corpus, or the file cannot be written.
        MissingPackageError: altair, jinja2, pillow, soundfile or vl-convert-python is not installed.
    """
    if baseline is not None and comparison is None:
        comparison = compare(
            baseline.rows,
            results.rows,
            metrics=results.columns,
            slices=tuple(results.said["slices"]),
            names=(baseline.name, results.name),
            same_files=False,
        )
    # All that draws, reads and writes sounds is loaded by those who write a report.
    with optional_package(None, "a report", "evaluate"):
        from jaxrnn.evaluation.report.page import render
    content = Content(
        results,
        main_of(results.said, main),
        baseline,
        comparison,
        {item.id: item for item in corpus},
        rate,
        limits or PageLimits(),
    )
    page = render(content, title, times or {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with in_place_of(path) as written:
            written.write_text(page, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"the report {path} cannot be written: {error.strerror or error}") from error
