"""The report page: all sections in one file without references to other files, and the tables of a system."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrnn._files.messages import environment
from jaxrnn.evaluation.metrics import Column
from jaxrnn.evaluation.report.content import ROWS, Content, pooled_in
from jaxrnn.evaluation.report.plots import Plot, PlotData, histogram, library, roc, scatter
from jaxrnn.evaluation.report.sounds import RANGE, Player, Sound
from jaxrnn.evaluation.report.table import (
    NONE,
    POOLED,
    FileName,
    Number,
    ReportTable,
    column,
    defined,
    duration,
    estimate,
    flat,
    is_number,
    labelled,
    number,
    places_of,
    size,
    text,
    whole,
    words,
)
from jaxrnn.evaluation.tables import Row

TEMPLATES = Path(__file__).parent / "templates"


def render(content: Content, title: str | None, times: Mapping[str, Any]) -> str:
    """Return the page as text."""
    page = environment(TEMPLATES)
    page.filters |= {each.__name__: each for each in (duration, flat, number, size, text, whole)}
    page.policies["json.dumps_kwargs"] = {"sort_keys": True, "allow_nan": False}
    player = Player(content.rate)
    heard = listening(content, player)
    sounding = {each.file for group in heard.values() for each in group if any(sound.uri for sound in each.sounds)}
    names, sounds = [text(row["id"]) for row in content.rows], [file in sounding for file in range(len(content.rows))]
    data = PlotData(file=names, sound=sounds)
    # The browser runs these scripts and no others, whatever text is in the page.
    scripts = [library(), _file("report.js")]
    return page.get_template("report.html").render(
        title=text(title or f"Evaluation of {content.results.name}"),
        is_named=title is not None,
        content=content,
        comparison=content.comparison,
        times=times,
        speed=times.get("times_real_time") if is_number(times.get("times_real_time")) else None,
        seconds=content.results.document["recordings"]["seconds"],
        tiles=tiles(content),
        summary=summary(content),
        paired=paired(content),
        compared=compared(content, data),
        differences=differences(content),
        slices=slices(content),
        curves=curves(content),
        distributions=distributions(content, data),
        heard=heard,
        player=player,
        errors=errors(content),
        files=files(content),
        data=data.columns,
        style=_file("report.css"),
        scripts=scripts,
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        range=RANGE,
    )


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


#: The largest numbers of plots of metrics, of plots of two columns, and of metrics drawn for both systems; the tables
#: have all metrics.
HISTOGRAMS, SCATTERS, COMPARED = 12, 9, 4


class PlayedRecording(NamedTuple):
    """A recording to look at and listen to; ``file`` is the file number on the page."""

    file: int
    id: str
    values: Sequence[tuple[str, str]]
    sounds: Sequence[Sound]


def curves(content: Content) -> list[Plot]:
    """Return the ROC curves of detectors."""
    both = [results.document["corpus"] for results in (content.results, content.baseline) if results is not None]
    plots = []
    for metric in both[0]:
        named = zip(content.names, (corpus.get(metric, {}).get("curve") or {} for corpus in both), strict=False)
        drawn = [(name, curve) for name, curve in named if curve.get("false_positive_rate")]
        if drawn:
            plots.append(roc(f"ROC of {text(metric, 60)}", drawn))
    return plots


def distributions(content: Content, data: PlotData) -> list[Plot]:
    """Return histograms of all metrics, and each metric against the duration and columns of the manifest."""
    metrics, (one, two), plots = content.metrics, content.names, []
    for metric in metrics[:HISTOGRAMS]:
        both = content.values(metric.name), content.values(metric.name, baseline=True)
        systems = list(zip((one, two), map(content.plotted, both), strict=True))
        plots.append(histogram(data, text(metric.name, 60), metric.unit, systems))
    against = [(metric, "seconds") for metric in metrics]
    against[1:1] = [(metric, name) for metric in metrics[:1] for name in content.columns]
    drawn = [(metric, name) for metric, name in against if _varies(content.plotted(content.values(name)))]
    for metric, name in drawn[:SCATTERS]:
        label = "duration" if name == "seconds" else text(name, 60)
        across = ("duration (s)" if name == "seconds" else label, content.plotted(content.values(name)))
        up = (labelled(metric.name, metric.unit), content.plotted(content.values(metric.name)))
        plots.append(scatter(data, f"{text(metric.name, 60)} against {label}", across, up))
    return [plot for plot in plots if plot is not None]


def _varies(values: Sequence[Any]) -> bool:
    """Return True for a column of numbers with two different values."""
    return all(value is None or is_number(value) for value in values) and len(set(defined(values))) > 1


def compared(content: Content, data: PlotData) -> list[Plot]:
    """Return plots of both systems against each other, and of their differences."""
    if content.comparison is None:
        return []
    (one, two), plots = content.names, []
    common = {entry.column for entry in content.comparison.differences}
    for metric in [metric for metric in content.metrics if metric.name in common][:COMPARED]:
        name = text(metric.name, 60)
        values = content.values(metric.name, baseline=True), content.values(metric.name)
        both = zip((two, one), map(content.plotted, values), strict=True)
        plots.append(scatter(data, f"{name} of both", *both, diagonal=True))
        change = [(f"{one} less {two}", content.plotted(content.change(metric.name)))]
        plots.append(histogram(data, f"difference in {name}", metric.unit, change, zero=True))
    return [plot for plot in plots if plot is not None]


def listening(content: Content, player: Player) -> dict[str, list[PlayedRecording]]:
    """Return the worst and the best recordings to listen to, by title."""
    count, ranked, main = content.examples, content.ranked(), content.main
    if main is None or not ranked:
        groups = {"First files": content.good[:count]}
    else:
        ends = ranked[:count], ranked[count:][-count:][::-1]
        titles = ("Lowest", "Highest") if main.higher_is_better is None else ("Worst", "Best")
        groups = {f"{title} {text(main.name, 60)}": rows for title, rows in zip(titles, ends, strict=True)}
    files = {row["id"]: file for file, row in enumerate(content.rows)}
    recordings: dict[str, list[PlayedRecording]] = {title: [] for title, rows in groups.items() if rows and count}
    # The groups take turns, so that no group uses up the limit of the page.
    for place in range(count):
        for title, rows in groups.items():
            if place < len(rows):
                row = rows[place]
                sounds = player.sounds(content.sounds(row))
                recordings[title].append(
                    PlayedRecording(files[row["id"]], text(row["id"]), _values(content, row), sounds)
                )
    return recordings


def _values(content: Content, row: Row) -> list[tuple[str, str]]:
    """Return the facts beside a recording: duration, metrics and columns of the manifest."""
    values = [("length", duration(row.get("seconds")))]
    for metric in content.metrics:
        value = row.get(metric.name)
        shown = f"{number(value if is_number(value) else None)} {metric.unit}".strip()
        values.append((text(metric.name, 60), text(shown, 60)))
    known = [(name, row[name]) for name in content.columns if row.get(name) is not None]
    return values + [(text(name, 60), text(words(value), 60)) for name, value in known]


#: Metrics at the head of the page.
TILES = 4


def _places(content: Content, metric: Column) -> int:
    summary = content.results.document["summary"][metric.name]
    return places_of(summary["minimum"], summary["maximum"])


def _value(content: Content, metric: Column, summary: Mapping[str, Any]) -> Number:
    """Return a metric over a corpus or slice: over counted frames if possible, else the mean of files."""
    pooled, places = pooled_in(summary), _places(content, metric)
    if metric.name in pooled:
        return estimate(pooled[metric.name], "value", max(POOLED, places))
    return estimate(summary["summary"][metric.name], "mean", places)


def tiles(content: Content) -> list[tuple[str, Number, str]]:
    """Return label, value and unit of the first metrics over the corpus."""
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
    """Return tables of the corpus as a whole, and of each metric over recordings."""
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
            *improvements(content),
            ("direction", [ends[metric.higher_is_better] for metric in metrics]),
            *((name, [Number(entry[name]) for entry, _ in entries]) for name in ("missing", "infinite")),
        ]
        tables.append(ReportTable("Summary of every metric", columns))
    return tables


def improvements(content: Content) -> list[tuple[str, Sequence[Any]]]:
    """Return a column of the mean improvement over the unprocessed recordings; none if they were not judged."""
    changes = [content.results.document["summary"][metric.name].get("improvement") for metric in content.metrics]
    if not any(changes):
        return []
    places = [_places(content, metric) for metric in content.metrics]
    pairs = zip(changes, places, strict=True)
    cells = [estimate(change, "mean", digits, sign=True) if change else NONE for change, digits in pairs]
    return [("improvement, interval", cells)]


def slices(content: Content) -> list[ReportTable]:
    """Return tables of metrics by slice."""
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
    """Return a table of recordings with an error."""
    shown = content.failed[:ROWS]
    longest = {"id": 160, "error": 600, "path": 300}
    columns = [(name, [text(row.get(name) or "", most) for row in shown]) for name, most in longest.items()]
    return ReportTable("Files with errors", columns)


def files(content: Content) -> ReportTable:
    """Return a table of all recordings; for a large corpus, of errors and the worst."""
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


#: Digits of a p-value, and the text for a smaller one.
P, LEAST = 4, "< 0.0001"


def paired(content: Content) -> list[ReportTable]:
    """Return tables of both systems over the whole corpus, and of each metric, paired by file."""
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
    """Return tables of differences by slice, and of the files with the largest differences."""
    if content.comparison is None:
        return []
    tables, wholes = [], content.comparison.differences
    for name, slices in content.comparison.slices.items():
        columns: list[tuple[str, Sequence[Any]]] = [
            (text(name, 60), [text(label) for label in slices]),
            ("files", [Number(max((entry.n for entry in group), default=0)) for group in slices.values()]),
        ]
        for total, *entries in zip(wholes, *slices.values(), strict=True):
            places = places_of(total.first, total.second)
            cells = [estimate(vars(entry), "mean", places, sign=True) for entry in entries]
            columns.append((text(total.column, 60), cells))
        tables.append(ReportTable(f"Mean differences by {text(name, 60)}", columns))
    return tables if content.main is None else [*tables, *_largest(content, content.main.name)]


def _largest(content: Content, name: str) -> list[ReportTable]:
    """Return tables of the files with the lowest and the highest differences."""
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
