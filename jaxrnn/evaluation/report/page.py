"""The report page: all sections in one file without references to other files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from jaxrnn._files.messages import environment
from jaxrnn._files.stores import Location, location
from jaxrnn.audio.corpus import COLUMNS, OK, Item
from jaxrnn.evaluation.compare import PairedComparison
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.parts import Row, collected
from jaxrnn.evaluation.report.plots import Plot, PlotData, histogram, library, roc, scatter
from jaxrnn.evaluation.report.sounds import RANGE, Player
from jaxrnn.evaluation.report.table import (
    NONE,
    POOLED,
    ReportTable,
    TableCell,
    column,
    duration,
    estimate,
    flat,
    is_number,
    labelled,
    number,
    numbers,
    numeric,
    places_of,
    size,
    text,
    whole,
    words,
)
from jaxrnn.evaluation.results import Results

TEMPLATES = Path(__file__).parent / "templates"

#: The largest numbers of metrics at the head of the page, of plots of metrics, of plots of two columns, and of metrics
#: drawn for both systems; the tables have all metrics.
TILES, HISTOGRAMS, SCATTERS, COMPARED = 4, 12, 9, 4


#: Recordings in the table of files, and those in the plots.
ROWS, DRAWN = 10_000, 10_000

#: The seed of the recordings in the plots.
SEED = 0

#: Columns beside those of the results, whose names begin with a sign that no other column has: the number of a file on
#: the page, whether the file has no error, and whether the plots have the file.
FILE, GOOD, IS_DRAWN = "\N{NUMBER SIGN}file", "\N{NUMBER SIGN}good", "\N{NUMBER SIGN}drawn"


def of_baseline(name: str) -> str:
    """Return the name of the column with the baseline's values of a metric."""
    return f"\N{NUMBER SIGN}baseline {name}"


def change_of(name: str) -> str:
    """Return the name of the column with the values of a metric minus the values of the baseline."""
    return f"\N{NUMBER SIGN}change {name}"


class Shown:
    """Everything that a report shows, with a table of the recordings of the page and their values in the baseline.

    A small corpus has all rows on the page. A large corpus has errors, the worst and the best recordings, and a random
    sample. ``main`` ranks recordings; the comparison has the baseline first. ``names`` are the names of the system and
    of the baseline on the page, always different. ``metrics`` are columns, the main column first.
    """

    def __init__(
        self,
        results: Results,
        main: Column | None,
        baseline: Results | None,
        comparison: PairedComparison | None,
        corpus: Iterable[Item],
        rate: int,
        examples: int,
    ):
        self.results, self.main, self.baseline, self.comparison = results, main, baseline, comparison
        self.rate, self.examples, self._corpus = rate, examples, corpus
        one, two = (text(each.name, 60) if each else "" for each in (results, baseline))
        self.names = one, f"{two} (baseline)" if one == two else two
        self.metrics = sorted(results.columns, key=lambda metric: metric != main)
        self.count: int = results.document["recordings"]["all"]
        known = {*COLUMNS, *(column.name for column in results.columns)}
        #: The columns of the manifest.
        self.columns = [name for name in results.scan.collect_schema().names() if name not in known]
        self.rows = self._beside_baseline(self._selected()).with_row_index(FILE)

    def _selected(self) -> pl.DataFrame:
        table = self.results.scan.with_columns((pl.col("status") == OK).fill_null(False).alias(GOOD))
        if self.count <= max(ROWS, DRAWN):
            return collected(table).with_columns(pl.lit(True).alias(IS_DRAWN))
        table = table.with_row_index(FILE)
        places = [collected(part.select(FILE))[FILE] for part in (table.filter(~pl.col(GOOD)), self.ranked(table))]
        drawn = np.random.default_rng(SEED).choice(self.count, DRAWN, replace=False)
        chosen = [places[0][:ROWS], places[1][:ROWS], places[1].tail(self.examples), drawn]
        table = collected(table.filter(pl.col(FILE).is_in(np.unique(np.concatenate(chosen)).tolist())))
        return table.with_columns(pl.col(FILE).is_in(drawn.tolist()).alias(IS_DRAWN)).drop(FILE)

    def _beside_baseline(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add columns of the baseline's values of metrics, and of the changes of finite values."""
        if self.baseline is None:
            return rows
        theirs, names = self.baseline.scan, [metric.name for metric in self.metrics]
        types = theirs.collect_schema()
        numbers = [pl.col(name) if types.get(name, pl.Null).is_numeric() else pl.lit(None) for name in names]
        others = theirs.filter(pl.col("status") == OK, pl.col("id").is_in(rows["id"].implode())).select(
            "id", *(each.cast(pl.Float64).alias(of_baseline(name)) for name, each in zip(names, numbers, strict=True))
        )
        rows = rows.join(collected(others), on="id", how="left", maintain_order="left")
        rows = rows.with_columns(pl.when(GOOD).then(pl.col(map(of_baseline, names))))
        both = [(pl.col(name), pl.col(of_baseline(name)), change_of(name)) for name in names]
        return rows.with_columns(pl.when(a.is_finite() & b.is_finite()).then(a - b).alias(name) for a, b, name in both)

    @cached_property
    def drawn(self) -> int:
        """The number of recordings in the plots."""
        return int(self.rows[IS_DRAWN].sum())

    @cached_property
    def failed(self) -> pl.DataFrame:
        """The rows with an error."""
        return self.rows.filter(~pl.col(GOOD))

    def ranked(self, table: Any) -> Any:
        """Return rows without an error, worst first; lowest first if neither direction is better."""
        table = table.filter(pl.col(GOOD))
        if self.main is None:
            return table
        value = pl.col(self.main.name)
        known = table.filter(value.is_not_null() & value.is_not_nan())
        return known.sort(value, descending=self.main.higher_is_better is False, maintain_order=True)

    @cached_property
    def _items(self) -> dict[str, Item]:
        shown = set(self.rows["id"])
        return {item.id: item for item in self._corpus if item.id in shown}

    def sounds(self, row: Row) -> dict[str, Location | str]:
        """Return the sounds of a recording by label, or the reason for the absence of a sound."""
        name, item = row["id"], self._items.get(row["id"])
        if row["path"] is None:
            return {}
        sounds: dict[str, Location | str] = {"input": item.path if item is not None else location(row["path"])}
        if self.baseline is None:
            sounds["output"] = self.results.output(name)
        else:
            for system, results in zip(self.names, (self.results, self.baseline), strict=True):
                sounds[f"output of {system}"] = results.output(name)
        if item is not None and item.reference is not None:
            sounds["reference"] = item.reference
        return sounds


def pooled_in(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return values over all recordings by column, from the summary of a corpus or a slice."""
    return {name: value for metric in summary["corpus"].values() for name, value in metric["values"].items()}


def render(shown: Shown, title: str | None, times: Mapping[str, Any]) -> str:
    """Return the page as text."""
    page = environment(TEMPLATES)
    page.filters |= {each.__name__: each for each in (duration, flat, number, size, text, whole)}
    page.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    player = Player(shown.rate)
    heard = listening(shown, player)
    played = {each["file"] for group in heard.values() for each in group if any(sound.uri for sound in each["sounds"])}
    data = PlotData(shown.rows, pl.col(GOOD) & pl.col(IS_DRAWN), [file in played for file in shown.rows[FILE]])
    speed = times.get("times_real_time")
    # The browser runs these scripts and no others, whatever text is in the page.
    scripts = [library(), _file("report.js")]
    return page.get_template("report.html").render(
        title=text(title or f"Evaluation of {shown.results.name}"),
        is_named=title is not None,
        content=shown,
        times=times,
        speed=speed if is_number(speed) else None,
        tiles=tiles(shown),
        summary=summary(shown),
        **compared(shown, data),
        slices=slices(shown),
        curves=curves(shown),
        distributions=distributions(shown, data),
        heard=heard,
        player=player,
        errors=errors(shown),
        files=files(shown),
        data=data.columns,
        style=_file("report.css"),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        range=RANGE,
    )


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def curves(shown: Shown) -> list[Plot]:
    """Return the ROC curves of detectors."""
    both = [results.document["corpus"] for results in (shown.results, shown.baseline) if results is not None]
    plots = []
    for metric in both[0]:
        named = zip(shown.names, (corpus.get(metric, {}).get("curve") or {} for corpus in both), strict=False)
        drawn = [(name, curve) for name, curve in named if curve.get("false_positive_rate")]
        if drawn:
            plots.append(roc(f"ROC of {text(metric, 60)}", drawn))
    return plots


def _systems(shown: Shown, name: str) -> dict[str, str]:
    """Return a dict from the names of the systems to their columns of a metric."""
    columns = (name, of_baseline(name)) if shown.baseline is not None else (name,)
    return dict(zip(shown.names, columns, strict=False))


def distributions(shown: Shown, data: PlotData) -> list[Plot]:
    """Return histograms of all metrics, and each metric against the duration and columns of the manifest."""
    metrics = shown.metrics
    plots = [
        histogram(data, text(metric.name, 60), metric.unit, _systems(shown, metric.name))
        for metric in metrics[:HISTOGRAMS]
    ]
    against = [(metric, "seconds") for metric in metrics]
    against[1:1] = [(metric, name) for metric in metrics[:1] for name in shown.columns]
    drawn = [(metric, name) for metric, name in against if data.numbers(name)[name].drop_nulls().n_unique() > 1]
    for metric, name in drawn[:SCATTERS]:
        label = "duration" if name == "seconds" else text(name, 60)
        across = ("duration (s)" if name == "seconds" else label, name)
        up = (labelled(metric.name, metric.unit), metric.name)
        plots.append(scatter(data, f"{text(metric.name, 60)} against {label}", across, up))
    return [plot for plot in plots if plot is not None]


def listening(shown: Shown, player: Player) -> dict[str, list[dict[str, Any]]]:
    """Return the worst and the best recordings to look at and listen to, by title."""
    count, main, ranked = shown.examples, shown.main, shown.ranked(shown.rows)
    if main is None or ranked.is_empty():
        groups = {"First files": shown.rows.filter(GOOD).head(count)}
    else:
        ends = ranked.head(count), ranked.slice(count).tail(count).reverse()
        titles = ("Lowest", "Highest") if main.higher_is_better is None else ("Worst", "Best")
        groups = {f"{title} {text(main.name, 60)}": rows for title, rows in zip(titles, ends, strict=True)}
    recordings: dict[str, list[dict[str, Any]]] = {title: [] for title, rows in groups.items() if rows.height}
    # The groups take turns, so that no group uses up the limit of the page.
    for place in range(count):
        for title, rows in groups.items():
            if place < rows.height:
                row = rows.row(place, named=True)
                heard = {"file": row[FILE], "id": text(row["id"]), "facts": _facts(shown, row)}
                recordings[title].append({**heard, "sounds": player.sounds(shown.sounds(row))})
    return recordings


def _facts(shown: Shown, row: Row) -> list[tuple[str, str]]:
    """Return the facts beside a recording: duration, metrics and columns of the manifest."""
    facts = {metric.name: f"{number(row[metric.name])} {metric.unit}".strip() for metric in shown.metrics}
    facts |= {name: words(row[name]) for name in shown.columns if row[name] is not None}
    return [("length", duration(row["seconds"])), *((text(name, 60), text(fact, 60)) for name, fact in facts.items())]


def _places(shown: Shown, metric: Column) -> int:
    summary = shown.results.document["summary"][metric.name]
    return places_of(summary["minimum"], summary["maximum"])


def _value(shown: Shown, metric: Column, summary: Mapping[str, Any]) -> TableCell:
    """Return a metric over a corpus or slice: over counted frames, or else the mean and the number without a value."""
    pooled, places = pooled_in(summary), _places(shown, metric)
    if metric.name in pooled:
        return estimate(pooled[metric.name], "value", max(POOLED, places))
    entry = summary["summary"][metric.name]
    cell, missing = estimate(entry, "mean", places), entry["missing"]
    parts = [cell.interval, f"{whole(missing)} missing" if missing else ""]
    return cell._replace(interval=", ".join(filter(None, parts)))


def tiles(shown: Shown) -> list[tuple[str, TableCell, str]]:
    """Return label, value and unit of the first metrics over the corpus."""
    document, pooled = shown.results.document, pooled_in(shown.results.document)
    tiles = []
    for metric in shown.metrics[:TILES]:
        label = metric.name if metric.name in pooled else f"mean {metric.name}"
        tiles.append((text(label, 60), _value(shown, metric, document), text(metric.unit, 20)))
    return [tile for tile in tiles if tile[1].text != NONE]


def summary(shown: Shown) -> list[ReportTable]:
    """Return tables of the corpus as a whole, and of each metric over recordings."""
    document, metrics, tables = shown.results.document, shown.metrics, []
    if pooled := pooled_in(document):
        values = [estimate(value, "value", POOLED) for value in pooled.values()]
        columns = [("whole corpus", [text(name, 80) for name in pooled]), ("value, interval", values)]
        tables.append(ReportTable("Frames of all files counted together", columns))
    if metrics:
        places = [_places(shown, metric) for metric in metrics]
        entries = [document["summary"][metric.name] for metric in metrics]
        changes = [entry.get("improvement") for entry in entries]
        known = zip(changes, places, strict=True)
        improvements = [estimate(change, "mean", digits, sign=True) if change else NONE for change, digits in known]
        ends = {True: "higher is better", False: "lower is better", None: NONE}
        columns = [
            ("metric", [labelled(metric.name, metric.unit) for metric in metrics]),
            ("files", numbers(entries, "n")),
            ("mean, interval", list(map(estimate, entries, ["mean"] * len(metrics), places))),
            ("deviation", numbers(entries, "deviation", places)),
            ("lowest", numbers(entries, "minimum", places)),
            ("median", numbers(entries, "median", places)),
            ("highest", numbers(entries, "maximum", places)),
            *([("improvement, interval", improvements)] if any(changes) else []),
            ("direction", [ends[metric.higher_is_better] for metric in metrics]),
            ("missing", numbers(entries, "missing")),
            ("infinite", numbers(entries, "infinite")),
        ]
        tables.append(ReportTable("Summary of every metric", columns))
    return tables


def slices(shown: Shown) -> list[ReportTable]:
    """Return tables of metrics by slice."""
    tables = []
    for name, groups in shown.results.document["slices"].items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), [text(group["label"]) for group in groups]),
            ("files", [numeric(group["recordings"]["all"]) for group in groups]),
        ]
        columns += [
            (labelled(metric.name, metric.unit), [_value(shown, metric, group) for group in groups])
            for metric in shown.metrics
        ]
        tables.append(ReportTable(f"By {text(name, 60)}", columns))
    return tables


def errors(shown: Shown) -> ReportTable:
    """Return a table of recordings with an error."""
    rows, longest = shown.failed.head(ROWS), {"id": 160, "error": 600, "path": 300}
    columns = [(name, [text(value or "", most) for value in rows[name]]) for name, most in longest.items()]
    return ReportTable("Files with errors", columns)


def files(shown: Shown) -> ReportTable:
    """Return a table of all recordings; for a large corpus, of errors and the worst."""
    rows, main = shown.rows, shown.main
    if shown.count > ROWS:
        worst = pl.concat([shown.failed, shown.ranked(rows)]).head(ROWS)
        rows = rows.filter(pl.col(FILE).is_in(worst[FILE].implode()))

    def of(name: str, unit: str = "", label: str | None = None) -> tuple[str, list[Any]]:
        return column(label or name, rows[name].to_list(), unit)

    named = zip(rows["id"], rows["path"], rows[FILE], strict=True)
    columns: list[tuple[str, Sequence[Any]]] = [
        ("id", [TableCell(text(name), file=file, path=text(path or "", 300)) for name, path, file in named]),
        of("seconds"),
    ]
    columns += [of(name) for name in ("status", "notes") if not rows[name].is_in([None, "ok"], nulls_equal=True).all()]
    columns += [of(metric.name, metric.unit) for metric in shown.metrics]
    if shown.baseline is not None and main is not None:
        columns.append(of(of_baseline(main.name), main.unit, f"{main.name} of {shown.names[1]}"))
        columns.append(of(change_of(main.name), main.unit, "difference"))
    return ReportTable("All files", [*columns, *map(of, shown.columns)])


#: Digits of a p-value, and the text for a smaller one.
P, LEAST = 4, "< 0.0001"


def compared(shown: Shown, data: PlotData) -> dict[str, list[Any]]:
    """Return the tables and the plots of a comparison: ``paired``, ``compared`` and ``differences``."""
    if shown.comparison is None:
        return {}
    (one, two), comparison, tables = shown.names, shown.comparison, []
    if entries := [vars(entry) for group in comparison.corpus.values() for entry in group]:
        columns = [
            ("whole corpus", [text(entry["column"], 80) for entry in entries]),
            ("files", numbers(entries, "n")),
            (two, [numeric(entry["first"], places=POOLED) for entry in entries]),
            (one, [numeric(entry["second"], places=POOLED) for entry in entries]),
            ("difference, interval", [estimate(entry, "difference", POOLED, sign=True) for entry in entries]),
        ]
        tables.append(ReportTable("Both systems, frames of all files counted together", columns))
    totals = comparison.differences
    entries, places = list(map(vars, totals)), [places_of(entry.first, entry.second) for entry in totals]
    ps = numbers(entries, "p", [P] * len(entries))
    columns = [
        ("metric", [labelled(entry.column, entry.unit) for entry in totals]),
        ("pairs", numbers(entries, "n")),
        *(
            (f"only {name}", numbers(entries, key))
            for name, key in ((two, "missing_second"), (one, "missing_first"))
            if any(entry[key] for entry in entries)
        ),
        (f"mean of {two}", numbers(entries, "first", places)),
        (f"mean of {one}", numbers(entries, "second", places)),
        ("mean difference, interval", _means(totals, places)),
        ("median", numbers(entries, "median", places, sign=True)),
        ("better", numbers(entries, "wins")),
        ("equal", numbers(entries, "ties")),
        ("worse", numbers(entries, "losses")),
        (
            "p",
            [cell._replace(text=LEAST) if entry.p < 10**-P else cell for cell, entry in zip(ps, totals, strict=True)],
        ),
    ]
    tables.append(ReportTable("Both systems, paired by file", columns))
    differences = []
    for name, groups in comparison.slices.items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), list(map(text, groups))),
            ("files", [numeric(max((entry.n for entry in group), default=0)) for group in groups.values()]),
        ]
        for total, digits, *group in zip(totals, places, *groups.values(), strict=True):
            columns.append((text(total.column, 60), _means(group, [digits] * len(group))))
        differences.append(ReportTable(f"Mean differences by {text(name, 60)}", columns))
    names = {entry.column for entry in totals}
    plots = []
    for metric in [metric for metric in shown.metrics if metric.name in names][:COMPARED]:
        name, change = text(metric.name, 60), {f"{one} less {two}": change_of(metric.name)}
        both = tuple(_systems(shown, metric.name).items())
        plots.append(scatter(data, f"{name} of both", both[1], both[0], diagonal=True))
        plots.append(histogram(data, f"difference in {name}", metric.unit, change, zero=True))
    return {
        "paired": tables,
        "compared": [plot for plot in plots if plot is not None],
        "differences": differences if shown.main is None else [*differences, *_largest(shown, shown.main.name)],
    }


def _means(entries: Sequence[Any], places: Sequence[int]) -> list[TableCell]:
    return [estimate(vars(entry), "mean", digits, sign=True) for entry, digits in zip(entries, places, strict=True)]


def _largest(shown: Shown, name: str) -> list[ReportTable]:
    """Return tables of the files with the lowest and the highest differences."""
    (one, two), count, change = shown.names, max(1, shown.examples), change_of(name)
    rows = shown.rows.drop_nulls(change).sort(change, FILE)
    ends = {"Lowest": rows.head(count), "Highest": rows.slice(count).reverse().head(count)}
    places = places_of(*rows[of_baseline(name)], *rows[name])
    return [
        ReportTable(
            f"{title} differences in {text(name, 60)}",
            [
                ("id", list(map(text, end["id"]))),
                (two, [numeric(value, places=places) for value in end[of_baseline(name)]]),
                (one, [numeric(value, places=places) for value in end[name]]),
                ("difference", [numeric(value, places=places, sign=True) for value in end[change]]),
            ],
        )
        for title, end in ends.items()
        if end.height
    ]
