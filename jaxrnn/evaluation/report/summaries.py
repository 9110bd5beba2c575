"""The sections with a report's figures: the summary of all files, and slices of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrnn.evaluation.metrics.protocol import Column as Metric
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.parts import (
    Beside,
    Cell,
    Column,
    Section,
    Table,
    Text,
    Tile,
    numeric_cell,
    table_of,
)
from jaxrnn.evaluation.report.plots import named
from jaxrnn.evaluation.report.wording import NONE, decimals, number, text

Said = Mapping[str, Any]


def better(metric: Metric) -> str:
    """Which end of a metric is the better one, in words."""
    return {True: "higher is better", False: "lower is better", None: ""}[metric.higher_is_better]


def label_of(metric: Metric) -> str:
    """A metric's name, with its unit."""
    return text(named(metric.name, metric.unit), 80)


def places_of(summary: Said) -> int:
    """Digits for a column's mean: two at least, as integers have means that are none."""
    return max(2, decimals([summary["minimum"], summary["maximum"]]))


def _value(pooled: Said | None, places: int = 4) -> Cell:
    """A value of the corpus as a whole, with its interval."""
    return numeric_cell(None) if pooled is None else estimate(pooled["value"], pooled["low"], pooled["high"], places)


def estimate(value: Any, low: Any, high: Any, places: int, *, sign: bool = False) -> Cell:
    """A value with its interval."""
    shown = numeric_cell(value, places, sign=sign)
    ends = [number(end, places, sign=sign) for end in (low, high)]
    return shown if NONE in ends else dataclasses.replace(shown, low=ends[0], high=ends[1])


def _mean(summary: Said, places: int, *, sign: bool = False) -> Cell:
    return estimate(summary["mean"], summary["low"], summary["high"], places, sign=sign)


def _pooled(said: Said) -> dict[str, Said]:
    """Values of the corpus as a whole, by column."""
    return {name: value for metric in said["corpus"].values() for name, value in metric["values"].items()}


def tiles(content: Content) -> list[Tile]:
    """The metrics over the corpus, the main one first."""
    said, pooled = content.results.said, _pooled(content.results.said)
    found = []
    for metric in sorted(content.metrics, key=lambda metric: metric is not content.main)[:4]:
        summary, name = said["summary"][metric.name], text(metric.name, 60)
        if metric.name in pooled:
            shown, label = _value(pooled[metric.name]), name
        else:
            shown, label = _mean(summary, places_of(summary)), f"mean {name}"
        if shown.text != NONE:
            note = f"{shown.low} … {shown.high}" if shown.low else ""
            found.append(Tile(label, f"{shown.text} {text(metric.unit, 20)}".strip(), note))
    return found


def summary(content: Content) -> Section:
    """Every metric over all recordings."""
    section, said = Section("summary", "Summary"), content.results.said
    if not content.metrics:
        section.parts.append(Text("No metric was computed."))
        return section
    if pooled := _pooled(said):
        section.parts.append(_whole(content, pooled))
    rows = []
    for metric in content.metrics:
        found = said["summary"][metric.name]
        places = places_of(found)
        figures = [found[name] for name in ("deviation", "minimum", "median", "maximum")]
        rows.append(
            [
                Cell(label_of(metric)),
                numeric_cell(found["n"]),
                _mean(found, places),
                *(numeric_cell(value, places) for value in figures),
                Cell(better(metric) or NONE),
                numeric_cell(found["missing"]),
                numeric_cell(found["infinite"]),
            ]
        )
    heads = ["files", "mean, interval", "deviation", "lowest", "median", "highest"]
    columns = [Column("metric"), *(Column(head, True) for head in heads), Column("direction")]
    section.parts.append(
        Table("Summary of every metric", [*columns, Column("missing", True), Column("infinite", True)], rows)
    )
    section.parts.append(
        Text(
            "Intervals are by bootstrap over files, of 95 % where nothing else was set. Files with a missing or an "
            "infinite value are in no other figure of their row.",
            note=True,
        )
    )
    return section


def _whole(content: Content, pooled: Mapping[str, Said]) -> Table:
    columns = [
        (Column("whole corpus"), [Cell(text(name, 80)) for name in pooled]),
        (
            Column("value, interval", True),
            [_value(found) for found in pooled.values()],
        ),
    ]
    if content.baseline is not None:
        beside = _pooled(content.baseline.said)
        cells = [_value(beside.get(name)) for name in pooled]
        columns.append((Column(text(content.baseline.name, 60), True), cells))
    return table_of("Frames of all files counted together", columns)


def slices(content: Content) -> Section | None:
    """The metrics by the values of some columns."""
    said, tables = content.results.said, []
    for name, groups in said["slices"].items():
        columns = [
            (Column(text(name, 60)), [Cell(text(group["label"])) for group in groups]),
            (Column("files", True), [numeric_cell(group["recordings"]["all"]) for group in groups]),
        ]
        pooled = [_pooled(group) for group in groups]
        for metric in content.metrics:
            places = places_of(said["summary"][metric.name])
            cells = [
                _value(found[metric.name], max(4, places))
                if metric.name in found
                else _mean(group["summary"][metric.name], places)
                for found, group in zip(pooled, groups, strict=True)
            ]
            columns.append((Column(label_of(metric), True), cells))
        tables.append(table_of(f"By {text(name, 60)}", columns))
    return Section("slices", "Slices", [Beside(tables)]) if tables else None
