"""The tables of a report: columns of words and of numbers, as they are before the template shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.differences import Difference
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.metrics.protocol import Column
from jaxrnn.evaluation.report.content import Content, pooled_in
from jaxrnn.evaluation.report.wording import NONE, decimals, defined, is_number, labelled, number, text, words

Said = Mapping[str, Any]

#: Digits of what frames of all files give together.
POOLED = 4


class Number(NamedTuple):
    """A number of a table, with its interval if it has one.

    Attributes:
        value: None or NaN for none.
        low: of its interval.
        high: of its interval.
        places: digits after the point; None for as many as it needs alone.
        sign: whether a plus is shown.
        share: whether one that would be shown as 0 is said to be below the last digit.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    places: int | None = None
    sign: bool = False
    share: bool = False

    @property
    def text(self) -> str:
        """It as people read it."""
        if self.share and self.value is not None and self.value < 10.0**-POOLED:
            return f"< {10.0**-POOLED:.{POOLED}f}"
        return number(self.value, self.places, sign=self.sign)

    @property
    def interval(self) -> str:
        """Its ends; empty for none."""
        low, high = (number(end, self.places, sign=self.sign) for end in (self.low, self.high))
        return "" if NONE in (low, high) else f"{low} … {high}"

    @property
    def exact(self) -> str:
        """It as JavaScript reads it; empty for none."""
        missing = self.value is None or math.isnan(self.value)
        return "" if missing else repr(self.value).replace("inf", "Infinity")


class FileName(NamedTuple):
    """A recording's id in a table, where its file lay, and its number on the page."""

    text: str
    path: str
    file: int


@dataclass(frozen=True)
class Table:
    """A table by columns, each a head and its cells: words, `Number` or `FileName`."""

    label: str
    columns: Sequence[tuple[str, Sequence[Any]]]

    @property
    def heads(self) -> list[tuple[str, bool]]:
        """Heads, and whether numbers are below them."""
        return [(head, any(isinstance(cell, Number) for cell in cells)) for head, cells in self.columns]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The cells of each row."""
        return list(zip(*(cells for _, cells in self.columns), strict=True))


def column(label: str, values: Sequence[Any], unit: str = "") -> tuple[str, list[Any]]:
    """A column of foreign values: of numbers where all are, else of words."""
    present = [value for value in values if value is not None]
    if present and all(map(is_number, present)):
        places = decimals(present)
        return labelled(label, unit), [Number(value, places=places) for value in values]
    return labelled(label, unit), [words(value) for value in values]


def pooled(found: Said | None, places: int = POOLED) -> Number:
    """A value of the corpus as a whole."""
    return Number(None) if found is None else Number(found["value"], found["low"], found["high"], places)


def mean(summary: Said, places: int) -> Number:
    """The mean of a column."""
    return Number(summary["mean"], summary["low"], summary["high"], places)


def places_of(*numbers: float | None) -> int:
    """Digits for means of such numbers: two at least, as integers have means that are none."""
    return max(2, decimals(numbers))


def _places(summary: Said) -> int:
    return places_of(summary["minimum"], summary["maximum"])


def tiles(content: Content) -> list[tuple[str, Number, str]]:
    """Label, value and unit of the first metrics over the corpus."""
    found = []
    for metric in content.metrics[:4]:
        name, whole, summary = text(metric.name, 60), content.results.pooled, content.results.said["summary"]
        if metric.name in whole:
            found.append((name, pooled(whole[metric.name]), text(metric.unit, 20)))
        else:
            value = mean(summary[metric.name], _places(summary[metric.name]))
            found.append((f"mean {name}", value, text(metric.unit, 20)))
    return [tile for tile in found if tile[1].text != NONE]


def summary(content: Content) -> list[Table]:
    """Every metric over all recordings, and what their frames give together."""
    tables, metrics, whole = [], content.metrics, content.results.pooled
    if whole:
        beside = content.baseline.pooled if content.baseline is not None else {}
        columns = [
            ("whole corpus", [text(name, 80) for name in whole]),
            ("value, interval", [pooled(found) for found in whole.values()]),
            *([(content.names[1], [pooled(beside.get(name)) for name in whole])] if content.baseline else []),
        ]
        tables.append(Table("Frames of all files counted together", columns))
    said = [content.results.said["summary"][metric.name] for metric in metrics]
    shown = {"deviation": "deviation", "lowest": "minimum", "median": "median", "highest": "maximum"}
    ends = {True: "higher is better", False: "lower is better", None: NONE}
    columns = [
        ("metric", [labelled(metric.name, metric.unit) for metric in metrics]),
        ("files", [Number(each["n"]) for each in said]),
        ("mean, interval", [mean(each, _places(each)) for each in said]),
        *((head, [Number(each[name], places=_places(each)) for each in said]) for head, name in shown.items()),
        ("direction", [ends[metric.higher_is_better] for metric in metrics]),
        *((name, [Number(each[name]) for each in said]) for name in ("missing", "infinite")),
    ]
    return [*tables, Table("Summary of every metric", columns)] if metrics else tables


def slices(content: Content) -> list[Table]:
    """The metrics by the values of some columns."""

    def cell(metric: Column, group: Said) -> Number:
        places, whole = _places(content.results.said["summary"][metric.name]), pooled_in(group)
        if metric.name in whole:
            return pooled(whole[metric.name], max(POOLED, places))
        return mean(group["summary"][metric.name], places)

    return [
        Table(
            f"By {text(name, 60)}",
            [
                (text(name, 60), [text(group["label"]) for group in groups]),
                ("files", [Number(group["recordings"]["all"]) for group in groups]),
                *(
                    (labelled(metric.name, metric.unit), [cell(metric, group) for group in groups])
                    for metric in content.metrics
                ),
            ],
        )
        for name, groups in content.results.said["slices"].items()
    ]


def paired(content: Content, comparison: PairedComparison) -> list[Table]:
    """Both systems: what detectors counted over all files, and every metric, paired by file."""
    (one, two), shown = content.names, comparison.differences
    tables, whole = [], [entry for group in comparison.corpus.values() for entry in group]
    if whole:
        columns = [
            ("whole corpus", [text(entry.column, 80) for entry in whole]),
            ("files", [Number(entry.n) for entry in whole]),
            (two, [Number(entry.first, places=POOLED) for entry in whole]),
            (one, [Number(entry.second, places=POOLED) for entry in whole]),
            ("difference, interval", [Number(*_change(entry), POOLED, True) for entry in whole]),
        ]
        tables.append(Table("Both systems, frames of all files counted together", columns))
    columns = [
        ("metric", [labelled(entry.column, entry.unit) for entry in shown]),
        ("files", [Number(entry.n) for entry in shown]),
        (f"mean of {two}", [Number(entry.first, places=_digits(entry)) for entry in shown]),
        (f"mean of {one}", [Number(entry.second, places=_digits(entry)) for entry in shown]),
        ("mean difference, interval", [_difference(entry, _digits(entry)) for entry in shown]),
        ("median", [Number(entry.median, places=_digits(entry), sign=True) for entry in shown]),
        ("better", [Number(entry.wins) for entry in shown]),
        ("equal", [Number(entry.ties) for entry in shown]),
        ("worse", [Number(entry.losses) for entry in shown]),
        ("p", [Number(entry.p, places=POOLED, share=True) for entry in shown]),
    ]
    return [*tables, Table("Both systems, paired by file", columns)]


def _change(entry: Any) -> tuple[float, float, float]:
    return entry.difference, entry.low, entry.high


def _digits(entry: Difference) -> int:
    return places_of(entry.first, entry.second)


def _difference(entry: Difference, places: int) -> Number:
    return Number(entry.mean, entry.low, entry.high, places, sign=True)


def differences(content: Content, comparison: PairedComparison) -> list[Table]:
    """Where the two differ: by the values of some columns, and on the files on which they do most."""
    tables = [
        Table(
            f"Mean differences by {text(name, 60)}",
            [
                (text(name, 60), [text(label) for label in cut]),
                ("files", [Number(max((entry.n for entry in group), default=0)) for group in cut.values()]),
                *(
                    (text(whole.column, 60), [_difference(group[place], _digits(whole)) for group in cut.values()])
                    for place, whole in enumerate(comparison.differences)
                ),
            ],
        )
        for name, cut in comparison.slices.items()
    ]
    if content.main is None:
        return tables
    name, count = content.main.name, max(1, content.limits.examples)
    both = [
        (mine - others, row["id"], others, mine)
        for row, mine, others in zip(content.rows, content.values(name), content.beside(name), strict=True)
        if len(defined([mine, others])) == 2
    ]
    both.sort()
    places = places_of(*(value for _, _, *values in both for value in values))
    for title, found in (("Lowest", both[:count]), ("Highest", both[count:][::-1][:count])):
        if found:
            columns = [
                ("id", [text(identity) for _, identity, _, _ in found]),
                (content.names[1], [Number(value, places=places) for _, _, value, _ in found]),
                (content.names[0], [Number(value, places=places) for _, _, _, value in found]),
                ("difference", [Number(value, places=places, sign=True) for value, *_ in found]),
            ]
            tables.append(Table(f"{title} differences in {text(name, 60)}", columns))
    return tables


def errors(content: Content) -> Table:
    """The recordings that ended in an error."""
    shown = content.failed[: content.limits.rows]
    columns = [
        ("id", [text(row["id"]) for row in shown]),
        ("error", [text(row.get("error") or "", 600) for row in shown]),
        ("path", [text(row.get("path") or "", 300) for row in shown]),
    ]
    return Table("Files with errors", columns)


def files(content: Content) -> Table:
    """Every recording's row; where they are more than the page holds, errors and the worst."""
    chosen: Sequence[Row] = content.rows
    if len(chosen) > content.limits.rows:
        worst = [*content.failed, *content.ranked()] if content.main is not None else chosen
        ids = {row["id"] for row in worst[: content.limits.rows]}
        chosen = [row for row in chosen if row["id"] in ids]
    numbers = {row["id"]: file for file, row in enumerate(content.rows)}

    def of(name: str, unit: str = "") -> tuple[str, list[Any]]:
        return column(name, [row.get(name) for row in chosen], unit)

    return Table(
        "All files",
        [
            ("id", [FileName(text(row["id"]), text(row.get("path") or "", 300), numbers[row["id"]]) for row in chosen]),
            of("seconds"),
            *([of("status")] if content.failed else []),
            *([of("notes")] if any(row.get("notes") for row in chosen) else []),
            *(of(metric.name, metric.unit) for metric in content.metrics),
            *_beside(content, [numbers[row["id"]] for row in chosen]),
            *(of(name) for name in content.columns),
        ],
    )


def _beside(content: Content, chosen: Sequence[int]) -> list[tuple[str, list[Any]]]:
    """The baseline's main metric, and the difference."""
    if content.baseline is None or content.main is None:
        return []
    name, unit = content.main.name, content.main.unit
    mine, others = ([values[file] for file in chosen] for values in (content.values(name), content.beside(name)))
    both = [defined(values) for values in zip(mine, others, strict=True)]
    differences = [values[0] - values[1] if len(values) == 2 else None for values in both]
    return [column(f"{name} of {content.names[1]}", others, unit), column("difference", differences, unit)]
