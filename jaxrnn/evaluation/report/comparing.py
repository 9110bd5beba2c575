"""The tables of two systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.table import POOLED, Number, ReportTable, estimate, places_of
from jaxrnn.evaluation.report.wording import labelled, text

#: Digits of a p-value, and the text for a smaller one.
P, LEAST = 4, "< 0.0001"


def paired(content: Content) -> list[ReportTable]:
    """The corpus as a whole under both systems, and every metric, paired by file."""
    if content.comparison is None:
        return []
    (one, two), tables = content.names, []
    if whole := [entry for group in content.comparison.corpus.values() for entry in group]:
        columns = [
            ("whole corpus", [text(entry.column, 80) for entry in whole]),
            ("files", [Number(entry.n) for entry in whole]),
            (two, [Number(entry.first, places=POOLED) for entry in whole]),
            (one, [Number(entry.second, places=POOLED) for entry in whole]),
            ("difference, interval", [estimate(vars(entry), "difference", POOLED, sign=True) for entry in whole]),
        ]
        tables.append(ReportTable("Both systems, frames of all files counted together", columns))
    entries = [(entry, places_of(entry.first, entry.second)) for entry in content.comparison.differences]
    columns = [
        ("metric", [labelled(entry.column, entry.unit) for entry, _ in entries]),
        ("files", [Number(entry.n) for entry, _ in entries]),
        (f"mean of {two}", [Number(entry.first, places=places) for entry, places in entries]),
        (f"mean of {one}", [Number(entry.second, places=places) for entry, places in entries]),
        ("mean difference, interval", [estimate(vars(entry), "mean", places, sign=True) for entry, places in entries]),
        ("median", [Number(entry.median, places=places, sign=True) for entry, places in entries]),
        ("better", [Number(entry.wins) for entry, _ in entries]),
        ("equal", [Number(entry.ties) for entry, _ in entries]),
        ("worse", [Number(entry.losses) for entry, _ in entries]),
        ("p", [Number(entry.p, places=P, instead=LEAST if entry.p < 10**-P else "") for entry, _ in entries]),
    ]
    return [*tables, ReportTable("Both systems, paired by file", columns)]


def differences(content: Content) -> list[ReportTable]:
    """The differences of both systems by slice, and the files with the largest ones."""
    if content.comparison is None:
        return []
    tables, wholes = [], content.comparison.differences
    for name, slices in content.comparison.slices.items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), [text(label) for label in slices]),
            ("files", [Number(max((entry.n for entry in group), default=0)) for group in slices.values()]),
        ]
        for whole, *entries in zip(wholes, *slices.values(), strict=True):
            places = places_of(whole.first, whole.second)
            cells = [estimate(vars(entry), "mean", places, sign=True) for entry in entries]
            columns.append((text(whole.column, 60), cells))
        tables.append(ReportTable(f"Mean differences by {text(name, 60)}", columns))
    return tables if content.main is None else [*tables, *_largest(content, content.main.name)]


def _largest(content: Content, name: str) -> list[ReportTable]:
    """The files whose values differ most, in either direction."""
    (one, two), count = content.names, max(1, content.examples)
    change, theirs, ours = content.change(name), content.values(name, baseline=True), content.values(name)
    rows = sorted((value, row) for row, value in enumerate(change) if value is not None)
    places = places_of(*(values[row] for _, row in rows for values in (theirs, ours)))
    return [
        ReportTable(
            f"{title} differences in {text(name, 60)}",
            [
                ("id", [text(content.rows[row]["id"]) for _, row in end]),
                (two, [Number(theirs[row], places=places) for _, row in end]),
                (one, [Number(ours[row], places=places) for _, row in end]),
                ("difference", [Number(value, places=places, sign=True) for value, _ in end]),
            ],
        )
        for title, end in (("Lowest", rows[:count]), ("Highest", rows[count:][::-1][:count]))
        if end
    ]
