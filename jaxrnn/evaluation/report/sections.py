"""The other sections of a report: distributions, curves, sounds, errors, all files, and what was evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrnn.evaluation.journal import Row
from jaxrnn.evaluation.report.content import Content
from jaxrnn.evaluation.report.parts import (
    Cell,
    Column,
    Example,
    Examples,
    Facts,
    Heading,
    Plots,
    Section,
    Text,
    column_of,
    flat,
    table_of,
)
from jaxrnn.evaluation.report.pictures import RANGE
from jaxrnn.evaluation.report.plots import curve, histogram, named, scatter
from jaxrnn.evaluation.report.sounds import Player
from jaxrnn.evaluation.report.wording import cell, defined, duration, is_number, number, size, text, whole

#: Histograms of metrics, and plots of one against another column; the tables have them all.
HISTOGRAMS, SCATTERS = 12, 9


def curves(content: Content) -> Section | None:
    """What a detector finds, and finds wrongly, at every threshold."""
    plots = []
    for name, said in content.results.said["corpus"].items():
        drawn = [(text(content.results.name, 60), said.get("curve") or {})]
        if content.baseline is not None:
            beside = content.baseline.said["corpus"].get(name, {})
            drawn.append((text(content.baseline.name, 60), beside.get("curve") or {}))
        lines = [
            (label, found["false_positive_rate"], found["true_positive_rate"])
            for label, found in drawn
            if found.get("false_positive_rate")
        ]
        if lines:
            plots.append(curve(f"ROC of {text(name, 60)}", lines))
    return Section("curves", "ROC", [Plots(plots)]) if plots else None


def distributions(content: Content) -> Section | None:
    """Histograms of all metrics, and each against what is known of the recordings."""
    metrics = sorted(content.metrics, key=lambda metric: metric is not content.main)
    systems = [(text(content.results.name, 60), content.good)]
    if content.baseline is not None:
        systems.append((text(content.baseline.name, 60), [row for _, row in content.pairs()]))
    plots = [
        histogram(
            text(metric.name, 60),
            metric.unit,
            [(name, [row.get(metric.name) for row in rows]) for name, rows in systems],
        )
        for metric in metrics[:HISTOGRAMS]
    ]
    numeric = [name for name in content.columns if _is_numeric([row.get(name) for row in content.good])]
    wanted = [(metric, "seconds") for metric in metrics]
    wanted[1:1] = [(metric, name) for metric in metrics[:1] for name in numeric]
    for metric, name in wanted[:SCATTERS]:
        across = [row.get(name) for row in content.good]
        if len(set(defined(across))) < 2:
            continue
        label = "duration (s)" if name == "seconds" else text(name, 60)
        up = (named(text(metric.name, 60), metric.unit), [row.get(metric.name) for row in content.good])
        title = f"{text(metric.name, 60)} against {'duration' if name == 'seconds' else label}"
        plots.append(scatter(title, (label, across), up))
    drawn = [plot for plot in plots if plot is not None]
    return Section("distributions", "Distributions", [Plots(drawn)]) if drawn else None


def _is_numeric(values: Sequence[Any]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(map(is_number, present))


def listening(content: Content) -> Section | None:
    """The best and the worst recordings, to look at and listen to."""
    count, ranked, main = content.limits.examples, content.ranked(), content.main
    if not count or not content.good:
        return None
    if main is None or not ranked:
        groups = {"First files": content.good[:count]}
    else:
        last = ranked[count:][-count:][::-1]
        names = ("Lowest", "Highest") if main.higher_is_better is None else ("Worst", "Best")
        groups = {
            f"{name} {text(main.name, 60)}": rows for name, rows in zip(names, (ranked[:count], last), strict=True)
        }
    player = Player(content.rate, content.limits.seconds, round(content.limits.megabytes * 1e6))
    made: dict[str, Example] = {}
    # Taken in turns, so that what the page holds is not used up by one end.
    for place in range(count):
        for rows in groups.values():
            if place < len(rows):
                row = rows[place]
                made[row["id"]] = Example(text(row["id"]), _values(content, row), player.sounds(content.sounds(row)))
    section = Section("listen", "Worst and best files" if main is not None and ranked else "Files to listen to")
    limits = f"At most {duration(content.limits.seconds)} of each sound are here, {size(player.used)} in all"
    left = f"; {player.left_out} found no room in the page's {content.limits.megabytes:g} MB" if player.left_out else ""
    section.parts.append(
        Text(
            f"{limits}{left}. Pictures of one file share their scales: waveforms reach to the loudest sample, "
            f"spectrograms from 0 to {content.rate / 2000:g} kHz and over {RANGE} dB. Click on a picture to play from "
            "there.",
            note=True,
        )
    )
    for title, rows in groups.items():
        if rows:
            section.parts.extend([Heading(title), Examples([made[row["id"]] for row in rows])])
    return section


def _values(content: Content, row: Row) -> list[tuple[str, str]]:
    """What stands beside the name of a recording."""
    found = [("length", duration(row.get("seconds")))]
    for metric in content.metrics:
        value = row.get(metric.name)
        found.append((text(metric.name, 60), f"{number(value if is_number(value) else None)} {metric.unit}".strip()))
    known = [(name, row[name]) for name in content.columns if row.get(name) is not None]
    return found + [(text(name, 60), text(cell(value), 60)) for name, value in known]


def errors(content: Content) -> Section | None:
    """The recordings that ended in an error."""
    failed = content.failed
    if not failed:
        return None
    shown = failed[: content.limits.rows]
    section = Section("errors", f"Errors ({whole(len(failed))})")
    columns = [
        (Column("id"), [Cell(text(row["id"])) for row in shown]),
        (Column("error"), [Cell(text(row.get("error") or "", 600)) for row in shown]),
        (Column("path"), [Cell(text(row.get("path") or "", 300)) for row in shown]),
    ]
    section.parts.append(table_of("Files with errors", columns, name="errors-table", sortable=True))
    if len(shown) < len(failed):
        section.parts.append(Text(f"{whole(len(failed) - len(shown))} more are not shown.", True))
    return section


def files(content: Content) -> Section:
    """Every recording's row."""
    rows: Sequence[Row] = sorted(content.results.rows, key=lambda row: row["id"])
    section = Section("files", f"All files ({whole(len(rows))})")
    if len(rows) > content.limits.rows:
        worst = [*content.failed, *content.ranked()]
        ids = {row["id"] for row in worst[: content.limits.rows]}
        rows = [row for row in rows if row["id"] in ids] if content.main else rows[: content.limits.rows]
        which = "errors and worst" if content.main else "first"
        section.parts.append(Text(f"The table holds the {whole(len(rows))} {which} of them; all are in the results."))
    columns = [
        (Column("id"), [Cell(text(row["id"]), hint=text(row.get("path") or "", 300)) for row in rows]),
        column_of("seconds", [row.get("seconds") for row in rows]),
    ]
    if content.failed:
        columns.append(column_of("status", [row.get("status") for row in rows]))
    if any(row.get("notes") for row in rows):
        columns.append(column_of("notes", [row.get("notes") for row in rows]))
    columns += [
        column_of(metric.name, [row.get(metric.name) for row in rows], metric.unit) for metric in content.metrics
    ]
    columns += _beside(content, rows)
    columns += [column_of(name, [row.get(name) for row in rows]) for name in content.columns]
    section.parts.append(table_of("All files", columns, name="files-table", sortable=True, filtered=True))
    return section


def _beside(content: Content, rows: Sequence[Row]) -> list[tuple[Column, list[Cell]]]:
    """The baseline's main metric, and the difference."""
    if content.baseline is None or content.main is None:
        return []
    name = content.main.name
    others = {other["id"]: other.get(name) for _, other in content.pairs()}
    found = [others.get(row["id"]) for row in rows]
    both = [defined([row.get(name), beside]) for row, beside in zip(rows, found, strict=True)]
    differences = [values[0] - values[1] if len(values) == 2 else None for values in both]
    return [
        column_of(f"{name} of {content.baseline.name}", found, content.main.unit),
        column_of("difference", differences, content.main.unit),
    ]


def facts(content: Content, times: Mapping[str, Any]) -> Section:
    """What was evaluated, on what, with which settings and in what time."""
    seconds = sum(defined([row.get("seconds") for row in content.results.rows]))
    known = {
        "system": content.results.name,
        **({"compared with": content.baseline.name} if content.baseline is not None else {}),
        "files": f"{whole(len(content.results.rows))}, {whole(len(content.failed))} of them with an error",
        "sound": duration(seconds),
    }
    section = Section("facts", "What was evaluated", [Facts(flat({**known, **content.results.said["facts"]}))])
    if times:
        section.parts.extend([Heading("Times"), Facts(flat(times))])
    return section
