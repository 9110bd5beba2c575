"""The report of an evaluation: figures, plots and sounds in one HTML file that opens anywhere."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from jaxrnn._files.messages import near
from jaxrnn._files.stores import Location
from jaxrnn.audio.corpus import Item
from jaxrnn.errors import InputError, check_count, optional_package
from jaxrnn.evaluation.compare import compare
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.parts import write_whole
from jaxrnn.evaluation.report.table import LATEX_ESCAPES, number, places_of
from jaxrnn.evaluation.results import Results, document_columns

__all__ = ["EXAMPLES", "write_report", "write_summary"]

#: Recordings to listen to, of the worst and of the best each.
EXAMPLES = 5

#: The files of the statistics of each metric.
CSV, LATEX = "summary.csv", "summary.tex"


def load_page() -> Any:
    """Import the module of the page, and with it Altair, Jinja, Pillow, soundfile and vl-convert."""
    with optional_package(None, "a report", "evaluate"):
        return importlib.import_module(f"{__name__}.page")


def write_report(
    results: Results,
    path: Location,
    *,
    baseline: Results | None = None,
    corpus: Iterable[Item] = (),
    title: str | None = None,
    main: str | None = None,
    times: Mapping[str, Any] | None = None,
    rate: int = 16_000,
    examples: int = EXAMPLES,
) -> None:
    """Write the report of an evaluation: one HTML file that needs no network and no other file.

    The same arguments and sounds give the same bytes. Foreign text, including file names, is shown as text.

    Args:
        results: the results of the system.
        path: the file to write or replace; the folder is created if missing.
        baseline: the results of a second system on the same corpus, for a comparison.
        corpus: the recordings, for their sounds; the report notes missing files.
        title: the title of the report.
        main: the metric that ranks recordings; by default the first.
        times: the times of the run; ``times_real_time`` appears at the top.
        rate: samples per second of the system.
        examples: the number of worst and of best recordings to listen to.

    Raises:
        InputError: the metric ``main`` does not exist, the baseline is of another corpus, or the file cannot be
            written.
        MissingPackageError: altair, jinja2, pillow, soundfile or vl-convert-python is not installed.
    """
    check_count("examples", examples, 0)
    comparison = None
    if baseline is not None:
        comparison = compare(baseline, results, slices=tuple(results.document["slices"]), same_files=False)
    page = load_page()
    shown = page.Shown(results, main_of(results, main), baseline, comparison, corpus, rate, examples)
    text = page.render(shown, title, times or {})
    write_whole(path, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def main_of(results: Results, name: str | None) -> Column | None:
    """Return the column that ranks recordings, by the name of a column or metric; by default the first."""
    if name is None:
        return next(iter(results.columns), None)
    known = {column.name: column for column in results.columns}
    for metric in results.document["metrics"]:
        for column in document_columns(metric):
            known.setdefault(metric["name"], column)
    if name not in known:
        raise InputError(
            f"main: there is no metric {name!r}{near(name, known)}; there are: {', '.join(known) or 'none'}"
        )
    return known[name]


def write_summary(results: Results, folder: Location) -> None:
    """Write the statistics of each metric over recordings: ``summary.csv``, and ``summary.tex`` for a paper."""
    with optional_package("jinja2", "a report", "evaluate"):
        import jinja2
    summary = results.document["summary"]
    rows = [{"metric": column.name, "unit": column.unit, **summary[column.name]} for column in results.columns]
    for row in rows:
        change = row.pop("improvement", None)
        row |= {f"improvement {key}": change[key] for key in ("mean", "low", "high")} if change else {}
    write_whole(folder / CSV, pl.DataFrame(rows, infer_schema_length=None).write_csv)
    # All that is printed is a number or foreign text.
    template = (Path(__file__).parent / "templates" / "summary.tex").read_text(encoding="utf-8")
    escapes = str.maketrans(LATEX_ESCAPES)
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    page = jinja2.Environment(finalize=lambda value: str(value).translate(escapes), **options)
    page.filters["digits"] = lambda row: places_of(row["minimum"], row["maximum"])
    page.filters["number"] = number
    improved, missing = any("improvement mean" in row for row in rows), any(row["missing"] for row in rows)
    latex = page.from_string(template).render(name=results.name, rows=rows, improved=improved, missing=missing)
    write_whole(folder / LATEX, lambda file: file.write_text(latex, encoding="utf-8", newline="\n"))
