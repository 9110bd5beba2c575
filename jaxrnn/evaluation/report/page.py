"""The report page: all sections in one file without references to other files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrnn._files.messages import environment
from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.figures import differences, errors, files, paired, slices, summary, tiles
from jaxrnn.evaluation.report.plots import Plot, PlotData, histogram, library, roc, scatter
from jaxrnn.evaluation.report.sounds import RANGE, Player, Sound
from jaxrnn.evaluation.report.table import (
    defined,
    duration,
    flat,
    is_number,
    labelled,
    number,
    size,
    text,
    whole,
    words,
)

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


#: Plots of metrics, plots of one metric against another column, and metrics of which both systems are drawn; the tables
#: have them all.
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
    # The groups take turns, so that one of them does not use up what the page may hold.
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
