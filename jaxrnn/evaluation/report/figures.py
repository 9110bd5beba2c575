"""The tables of a system: over all recordings, by slice, and of every recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.report.content import Content, pooled_in
from jaxrnn.evaluation.report.selection import ROWS
from jaxrnn.evaluation.report.table import POOLED, FileName, Number, ReportTable, column, estimate, places_of
from jaxrnn.evaluation.report.wording import NONE, labelled, text

#: Metrics at the head of the page.
TILES = 4


def _places(content: Content, metric: Column) -> int:
    summary = content.results.document["summary"][metric.name]
    return places_of(summary["minimum"], summary["maximum"])


def _value(content: Content, metric: Column, summary: Mapping[str, Any]) -> Number:
    """A metric over the corpus or a slice: of all frames together where they are counted, else the mean of files."""
    pooled, places = pooled_in(summary), _places(content, metric)
    if metric.name in pooled:
        return estimate(pooled[metric.name], "value", max(POOLED, places))
    return estimate(summary["summary"][metric.name], "mean", places)


def tiles(content: Content) -> list[tuple[str, Number, str]]:
    """Label, value and unit of the first metrics over the corpus."""
    document, pooled = content.results.document, pooled_in(content.results.document)
    tiles = [
        (
            text(metric.name if metric.name in pooled else f"mean {metric.name}", 60),
            _value(content, metric, document),
            text(metric.unit, 20),
        )
        for metric in content.metrics[:TILES]
    ]
    return [tile for tile in tiles if tile[1].text != NONE]


def summary(content: Content) -> list[ReportTable]:
    """The corpus as a whole, and every metric over its recordings."""
    document, metrics = content.results.document, content.metrics
    pooled = pooled_in(document)
    tables = []
    if pooled:
        values = [estimate(value, "value", POOLED) for value in pooled.values()]
        columns = [("whole corpus", [text(name, 80) for name in pooled]), ("value, interval", values)]
        tables.append(ReportTable("Frames of all files counted together", columns))
    if metrics:
        entries = [(document["summary"][metric.name], _places(content, metric)) for metric in metrics]
        shown = {"deviation": "deviation", "lowest": "minimum", "median": "median", "highest": "maximum"}
        ends = {True: "higher is better", False: "lower is better", None: NONE}
        columns = [
            ("metric", [labelled(metric.name, metric.unit) for metric in metrics]),
            ("files", [Number(entry["n"]) for entry, _ in entries]),
            ("mean, interval", [estimate(entry, "mean", places) for entry, places in entries]),
            *(
                (head, [Number(entry[name], places=places) for entry, places in entries])
                for head, name in shown.items()
            ),
            ("direction", [ends[metric.higher_is_better] for metric in metrics]),
            *((name, [Number(entry[name]) for entry, _ in entries]) for name in ("missing", "infinite")),
        ]
        tables.append(ReportTable("Summary of every metric", columns))
    return tables


def slices(content: Content) -> list[ReportTable]:
    """The metrics by slice."""
    tables = []
    for name, groups in content.results.document["slices"].items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), [text(group["label"]) for group in groups]),
            ("files", [Number(group["recordings"]["all"]) for group in groups]),
        ]
        for metric in content.metrics:
            values = [_value(content, metric, group) for group in groups]
            columns.append((labelled(metric.name, metric.unit), values))
        tables.append(ReportTable(f"By {text(name, 60)}", columns))
    return tables


def errors(content: Content) -> ReportTable:
    """The recordings with an error."""
    shown = content.failed[:ROWS]
    longest = {"id": 160, "error": 600, "path": 300}
    columns = [(name, [text(row.get(name) or "", most) for row in shown]) for name, most in longest.items()]
    return ReportTable("Files with errors", columns)


def files(content: Content) -> ReportTable:
    """Every recording's row; of more than the page holds, errors and the worst."""
    chosen: Sequence[tuple[int, Row]] = list(enumerate(content.rows))
    if content.count > ROWS:
        worst = [*content.failed, *(content.ranked() if content.main is not None else content.good)]
        ids = {row["id"] for row in worst[:ROWS]}
        chosen = [(file, row) for file, row in chosen if row["id"] in ids]

    def of(name: str, unit: str = "") -> tuple[str, list[Any]]:
        return column(name, [row.get(name) for _, row in chosen], unit)

    columns: list[tuple[str, Sequence[Any]]] = [
        ("id", [FileName(text(row["id"]), text(row.get("path") or "", 300), file) for file, row in chosen]),
        of("seconds"),
    ]
    columns += [of(name) for name in ("status", "notes") if any(row.get(name) not in (None, "ok") for _, row in chosen)]
    columns += [of(metric.name, metric.unit) for metric in content.metrics]
    if content.baseline is not None and content.main is not None:
        name, unit = content.main.name, content.main.unit
        both = {
            f"{name} of {content.names[1]}": content.values(name, baseline=True),
            "difference": content.change(name),
        }
        columns += [column(label, [values[file] for file, _ in chosen], unit) for label, values in both.items()]
    return ReportTable("All files", [*columns, *(of(name) for name in content.columns)])
