"""The section that holds a system against another, file by file."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrnn.evaluation.compare import Comparison
from jaxrnn.evaluation.differences import Difference
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.protocol import Column as Metric
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.parts import Beside, Cell, Column, Plots, Section, Table, Text, numeric_cell, table_of
from jaxrnn.evaluation.report.plots import Plot, histogram, scatter
from jaxrnn.evaluation.report.summaries import estimate, label_of
from jaxrnn.evaluation.report.wording import decimals, defined, number, text, whole

#: Metrics that are drawn, the main one first; the tables have them all.
DRAWN = 4


def comparison(content: Content) -> Section | None:
    """The system beside its baseline, file by file."""
    found = content.comparison
    if found is None or content.baseline is None:
        return None
    one, two = text(content.results.name, 60), text(content.baseline.name, 60)
    section = Section("comparison", "Comparison", [Text(_scope(found, one, two))])
    metrics = {metric.name: metric for metric in content.metrics}
    shown = [entry for entry in found.differences if entry.column in metrics]
    rows = [[Cell(label_of(metrics[entry.column])), *_figures(entry)] for entry in shown]
    heads = ["files", f"mean of {two}", f"mean of {one}", "mean difference, interval", "median"]
    columns = [Column("metric"), *(Column(head, True) for head in (*heads, "better", "equal", "worse"))]
    columns.append(Column("p", True, "Wilcoxon's signed-rank test, two-sided"))
    if found.corpus:
        section.parts.append(_whole(found, one, two))
    section.parts.append(Table("Both systems, paired by file", columns, rows))
    section.parts.append(
        Text(
            f"Better, equal and worse: files on which {one} is that; the higher value counts as better where neither "
            "direction is. p: Wilcoxon's signed-rank test, how often as much would be seen of two systems of which "
            "neither is better.",
            note=True,
        )
    )
    pairs = content.pairs()
    drawn = sorted((metrics[entry.column] for entry in shown), key=lambda metric: metric is not content.main)
    plots = [plot for metric in drawn[:DRAWN] for plot in _plots(metric, pairs, one, two)]
    section.parts.append(Plots([plot for plot in plots if plot is not None]))
    tables = [*_slices(found), *_extremes(content, pairs, one, two)]
    if tables:
        section.parts.append(Beside(tables))
    return section


def _scope(found: Comparison, one: str, two: str) -> str:
    said = f"{one} beside {two} on the {whole(found.recordings)} files of both; differences are {one} less {two}."
    for name, only in ((one, found.only_second), (two, found.only_first)):
        if only:
            said += f" {whole(len(only))} files only {name} has."
    if found.only_columns:
        said += f" Only one of them has {text(', '.join(found.only_columns))}."
    return said


def _whole(found: Comparison, one: str, two: str) -> Table:
    """What detectors counted, all files together."""
    entries = [entry for group in found.corpus.values() for entry in group]
    columns = [
        (Column("whole corpus"), [Cell(text(entry.column, 80)) for entry in entries]),
        (Column("files", True), [numeric_cell(entry.n) for entry in entries]),
        (Column(two, True), [numeric_cell(entry.first, 4) for entry in entries]),
        (Column(one, True), [numeric_cell(entry.second, 4) for entry in entries]),
        (
            Column("difference, interval", True),
            [estimate(entry.difference, entry.low, entry.high, 4, sign=True) for entry in entries],
        ),
    ]
    return table_of("Both systems, frames of all files counted together", columns)


def _figures(entry: Difference) -> list[Cell]:
    places = max(2, decimals([entry.first, entry.second]))
    return [
        numeric_cell(entry.n),
        numeric_cell(entry.first, places),
        numeric_cell(entry.second, places),
        estimate(entry.mean, entry.low, entry.high, places, sign=True),
        numeric_cell(entry.median, places, sign=True),
        *(numeric_cell(count) for count in (entry.wins, entry.ties, entry.losses)),
        Cell("< 0.0001" if entry.p < 0.0001 else number(entry.p, 4), True),
    ]


def _plots(metric: Metric, pairs: Sequence[tuple[Row, Row]], one: str, two: str) -> list[Plot | None]:
    both = _both(pairs, metric.name)
    first, second = [value for value, _ in both], [value for _, value in both]
    differences = [mine - others for mine, others in both]
    return [
        scatter(text(metric.name, 60), (two, second), (one, first), diagonal=True),
        histogram(f"difference in {label_of(metric)}", "", [(f"{one} less {two}", differences)], zero=True),
    ]


def _both(pairs: Sequence[tuple[Row, Row]], name: str) -> list[tuple[float, float]]:
    """The values of a column where both are finite."""
    found = [defined([row.get(name), other.get(name)]) for row, other in pairs]
    return [(values[0], values[1]) for values in found if len(values) == 2]


def _slices(found: Comparison) -> list[Table]:
    """Mean differences by the values of some columns."""
    tables = []
    for name, cut in found.slices.items():
        columns = [
            (Column(text(name, 60)), [Cell(text(label)) for label in cut]),
            (
                Column("files", True),
                [numeric_cell(max((entry.n for entry in group), default=0)) for group in cut.values()],
            ),
        ]
        for place, whole_of in enumerate(found.differences):
            places = max(2, decimals([whole_of.first, whole_of.second]))
            entries = [group[place] for group in cut.values()]
            cells = [estimate(entry.mean, entry.low, entry.high, places, sign=True) for entry in entries]
            columns.append((Column(text(whole_of.column, 60), True), cells))
        tables.append(table_of(f"Mean differences by {text(name, 60)}", columns))
    return tables


def _extremes(content: Content, pairs: Sequence[tuple[Row, Row]], one: str, two: str) -> list[Table]:
    """The files on which the two differ most."""
    if content.main is None:
        return []
    name, count = content.main.name, max(1, content.limits.examples)
    both = [
        (row[name] - other[name], row["id"], row[name], other[name])
        for row, other in pairs
        if len(defined([row.get(name), other.get(name)])) == 2
    ]
    both.sort()
    places = max(2, decimals([value for _, _, *values in both for value in values])) if both else 2
    tables = []
    for title, found in (("Lowest", both[:count]), ("Highest", both[count:][::-1][:count])):
        if found:
            columns = [
                (Column("id"), [Cell(text(label)) for _, label, _, _ in found]),
                (Column(two, True), [numeric_cell(value, places) for _, _, _, value in found]),
                (Column(one, True), [numeric_cell(value, places) for _, _, value, _ in found]),
                (Column("difference", True), [numeric_cell(value, places, sign=True) for value, *_ in found]),
            ]
            tables.append(table_of(f"{title} differences in {text(name, 60)}", columns))
    return tables
