"""A system beside its baseline, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.differences import Difference
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.plots import Plot, PlotData, histogram, scatter
from jaxrnn.evaluation.report.table import Number, Table, estimate, places_of
from jaxrnn.evaluation.report.wording import labelled, text

#: Digits of what frames of all files give together and of a p-value, and what stands for a lesser one.
POOLED, P, LEAST = 4, 4, "< 0.0001"

#: Metrics that are drawn; the tables have them all.
DRAWN = 4


def _places(entry: Difference) -> int:
    return places_of(entry.first, entry.second)


def paired(content: Content, comparison: PairedComparison) -> list[Table]:
    """What both systems' frames give over all files, and every metric, paired by file."""
    (one, two), shown = content.names, comparison.differences
    tables, whole = [], [entry for group in comparison.corpus.values() for entry in group]
    if whole:
        columns = [
            ("whole corpus", [text(entry.column, 80) for entry in whole]),
            ("files", [Number(entry.n) for entry in whole]),
            (two, [Number(entry.first, places=POOLED) for entry in whole]),
            (one, [Number(entry.second, places=POOLED) for entry in whole]),
            ("difference, interval", [estimate(vars(entry), "difference", POOLED, sign=True) for entry in whole]),
        ]
        tables.append(Table("Both systems, frames of all files counted together", columns))
    columns = [
        ("metric", [labelled(entry.column, entry.unit) for entry in shown]),
        ("files", [Number(entry.n) for entry in shown]),
        (f"mean of {two}", [Number(entry.first, places=_places(entry)) for entry in shown]),
        (f"mean of {one}", [Number(entry.second, places=_places(entry)) for entry in shown]),
        ("mean difference, interval", [estimate(vars(entry), "mean", _places(entry), sign=True) for entry in shown]),
        ("median", [Number(entry.median, places=_places(entry), sign=True) for entry in shown]),
        ("better", [Number(entry.wins) for entry in shown]),
        ("equal", [Number(entry.ties) for entry in shown]),
        ("worse", [Number(entry.losses) for entry in shown]),
        ("p", [Number(entry.p, places=P, instead=LEAST if entry.p < 10**-P else "") for entry in shown]),
    ]
    return [*tables, Table("Both systems, paired by file", columns)]


def differences(content: Content, comparison: PairedComparison) -> list[Table]:
    """Where the two differ: by the values of some columns, and on the files on which they do most."""
    tables = []
    for name, cut in comparison.slices.items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), [text(label) for label in cut]),
            ("files", [Number(max((entry.n for entry in group), default=0)) for group in cut.values()]),
        ]
        for place, whole in enumerate(comparison.differences):
            entries = [vars(group[place]) for group in cut.values()]
            cells = [estimate(entry, "mean", _places(whole), sign=True) for entry in entries]
            columns.append((text(whole.column, 60), cells))
        tables.append(Table(f"Mean differences by {text(name, 60)}", columns))
    if content.main is not None:
        name, count = content.main.name, max(1, content.examples)
        values = zip(content.change(name), content.rows, content.beside(name), content.values(name), strict=True)
        both = sorted(
            ((change, text(row["id"]), others, mine) for change, row, others, mine in values if change is not None),
            key=lambda found: found[0],
        )
        places = places_of(*(value for _, _, others, mine in both for value in (others, mine)))
        for title, ends in (("Lowest", both[:count]), ("Highest", both[count:][::-1][:count])):
            if ends:
                columns = [
                    ("id", [identity for _, identity, _, _ in ends]),
                    (content.names[1], [Number(value, places=places) for _, _, value, _ in ends]),
                    (content.names[0], [Number(value, places=places) for _, _, _, value in ends]),
                    ("difference", [Number(value, places=places, sign=True) for value, *_ in ends]),
                ]
                tables.append(Table(f"{title} differences in {text(name, 60)}", columns))
    return tables


def compared(content: Content, comparison: PairedComparison, data: PlotData) -> list[Plot]:
    """Metrics of both systems, one against the other, and their differences."""
    one, two = content.names
    known, plots = {entry.column for entry in comparison.differences}, []
    for metric in [metric for metric in content.metrics if metric.name in known][:DRAWN]:
        name = text(metric.name, 60)
        both = (two, content.beside(metric.name)), (one, content.values(metric.name))
        plots.append(scatter(data, f"{name} of both", *both, diagonal=True))
        change = [(f"{one} less {two}", content.change(metric.name))]
        plots.append(histogram(data, f"difference in {name}", metric.unit, change, zero=True))
    return [plot for plot in plots if plot is not None]
