"""Which plots a report has, and which recordings are to be listened to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.plots import Plot, PlotData, histogram, roc, scatter
from jaxrnn.evaluation.report.sounds import Player, Sound
from jaxrnn.evaluation.report.wording import defined, duration, is_number, labelled, number, text, words

#: Plots of metrics, and of one metric against another column; the tables have them all.
HISTOGRAMS, SCATTERS = 12, 9


class Recording(NamedTuple):
    """One recording to look at and listen to; ``file`` is its number on the page."""

    file: int
    id: str
    values: Sequence[tuple[str, str]]
    sounds: Sequence[Sound]


def curves(content: Content) -> list[Plot]:
    """What a detector finds, and finds wrongly, at every threshold."""
    both = [results for results in (content.results, content.baseline) if results is not None]
    plots = []
    for name in content.results.document["corpus"]:
        found = [results.document["corpus"].get(name, {}).get("curve") or {} for results in both]
        drawn = [pair for pair in zip(content.names, found, strict=False) if pair[1].get("false_positive_rate")]
        if drawn:
            plots.append(roc(f"ROC of {text(name, 60)}", drawn))
    return plots


def distributions(content: Content, data: PlotData) -> list[Plot]:
    """Histograms of all metrics, and each against what is known of the recordings."""
    metrics, plots = content.metrics, []
    for metric in metrics[:HISTOGRAMS]:
        systems = [(content.names[0], content.values(metric.name)), (content.names[1], content.beside(metric.name))]
        label = text(metric.name, 60)
        plots.append(histogram(data, label, metric.unit, systems))
    against = [(metric, "seconds") for metric in metrics]
    against[1:1] = [(metric, name) for metric in metrics[:1] for name in content.columns]
    across = {name: content.values(name) for _, name in against}
    drawn = [pair for pair in against if _is_numeric(across[pair[1]]) and len(set(defined(across[pair[1]]))) > 1]
    for metric, name in drawn[:SCATTERS]:
        label = "duration" if name == "seconds" else text(name, 60)
        axis = "duration (s)" if name == "seconds" else label
        up = (labelled(metric.name, metric.unit), content.values(metric.name))
        plots.append(scatter(data, f"{text(metric.name, 60)} against {label}", (axis, across[name]), up))
    return [plot for plot in plots if plot is not None]


def _is_numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(map(is_number, present))


def listening(content: Content, player: Player) -> dict[str, list[Recording]]:
    """The worst and the best recordings, to look at and listen to, by what they are."""
    count, ranked, main = content.examples, content.ranked(), content.main
    if main is None or not ranked:
        groups = {"First files": content.good[:count]}
    else:
        last = ranked[count:][-count:][::-1]
        names = ("Lowest", "Highest") if main.higher_is_better is None else ("Worst", "Best")
        groups = {
            f"{name} {text(main.name, 60)}": rows for name, rows in zip(names, (ranked[:count], last), strict=True)
        }
    numbers = {row["id"]: file for file, row in enumerate(content.rows)}
    made: dict[str, list[Recording]] = {title: [] for title, rows in groups.items() if rows and count}
    # Taken in turns, so that what the page holds is not used up by one end.
    for place in range(count):
        for title, rows in groups.items():
            if place < len(rows):
                row = rows[place]
                sounds = player.sounds(content.sounds(row))
                made[title].append(Recording(numbers[row["id"]], text(row["id"]), _values(content, row), sounds))
    return made


def _values(content: Content, row: Any) -> list[tuple[str, str]]:
    """What stands beside the name of a recording."""
    found = [("length", duration(row.get("seconds")))]
    for metric in content.metrics:
        value = row.get(metric.name)
        found.append(
            (text(metric.name, 60), text(f"{number(value if is_number(value) else None)} {metric.unit}".strip(), 60))
        )
    known = [(name, row[name]) for name in content.columns if row.get(name) is not None]
    return found + [(text(name, 60), text(words(value), 60)) for name, value in known]
