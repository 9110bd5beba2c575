"""The report of an evaluation: figures, plots and sounds in one HTML file that opens anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxrnn._files.stores import Location
from jaxrnn.errors import check_count, optional_package
from jaxrnn.evaluation.compare import compare
from jaxrnn.evaluation.corpus import Item
from jaxrnn.evaluation.journal import write_whole
from jaxrnn.evaluation.report.content import EXAMPLES, Content, main_of
from jaxrnn.evaluation.results import Results

__all__ = ["EXAMPLES", "write_report"]


def write_report(
    path: Location,
    results: Results,
    *,
    baseline: Results | None = None,
    corpus: Iterable[Item] = (),
    title: str | None = None,
    main: str | None = None,
    times: Mapping[str, Any] | None = None,
    rate: int = 16_000,
    examples: int = EXAMPLES,
) -> None:
    """Write the report of an evaluation: one HTML file, which needs no network and no other file.

    The same arguments and sounds give the same bytes. All foreign text, names of files among it, is shown as text.

    Args:
        path: the file to write or replace; its folder is created if missing.
        results: of the system.
        baseline: the results of another system on the same corpus, to compare with.
        corpus: the recordings, for their sounds; where one is no longer there, the page says so.
        title: of the page.
        main: the metric that ranks recordings; by default the first.
        times: of the run; a number called ``times_real_time`` stands at the head of the page.
        rate: samples a second of the system.
        examples: recordings to listen to, of the worst and of the best each.

    Raises:
        InputError: there is no metric ``main``, the baseline is of another corpus, or the file cannot be written.
        MissingPackageError: altair, jinja2, pillow, soundfile or vl-convert-python is not installed.
    """
    check_count("examples", examples, 0)
    comparison = None
    if baseline is not None:
        comparison = compare(baseline, results, slices=tuple(results.document["slices"]), same_files=False)
    with optional_package(None, "a report", "evaluate"):
        from jaxrnn.evaluation.report.page import render
    content = Content(results, main_of(results, main), baseline, comparison, corpus, rate, examples)
    page = render(content, title, times or {})
    write_whole(path, lambda file: file.write_text(page, encoding="utf-8", newline="\n"))
