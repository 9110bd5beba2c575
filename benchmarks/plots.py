"""Pictures of a result: times of all contenders by row, or curves of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.results import Result, Row
from benchmarks.tables import UNITS
from jaxrnn._files.writing import in_place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vPX<>*"


def save(result: Result, folder: Path) -> Path:
    """Draw a result as PNG, whole or not at all, and return the path."""
    from matplotlib.figure import Figure

    path = folder / f"{result.stem}.png"
    swept = [row for row in result.rows if "sweep" in row.facts]
    if swept:
        figure = Figure(figsize=(11, 7), layout="constrained")
        _curves(figure, swept, UNITS[result.unit], result.unit)
    else:
        rows = [row for row in result.rows if row.timings]
        figure = Figure(figsize=(9, 1.6 + 0.3 * max(1, len(rows))), layout="constrained")
        axes = figure.add_subplot()
        dots(axes, rows, result.contenders, result.unit)
        if rows:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    around = result.environment
    figure.suptitle(f"{result.benchmark}: {result.title}" + (", a quick run" if result.quick else ""))
    figure.supxlabel(f"{around.get('processor')}, {result.cores} core(s), JAX {around.get('jax')}", fontsize=8)
    with in_place_of(path) as written:
        figure.savefig(written, format="png", dpi=110)
    return path


def dots(axes: Axes, rows: Sequence[Row], contenders: Iterable[str], unit: str) -> None:
    """Draw a line for each row, with a mark and quartiles for each contender, over a logarithmic axis of times."""
    for number, contender in enumerate(contenders):
        places = [place for place, row in enumerate(rows) if contender in row.timings]
        timings = [rows[place].timings[contender] for place in places]
        if not timings:
            continue
        medians = [timing.median / UNITS[unit] for timing in timings]
        spread = [
            [max(0.0, (timing.median - timing.low) / UNITS[unit]) for timing in timings],
            [max(0.0, (timing.high - timing.median) / UNITS[unit]) for timing in timings],
        ]
        marker = _MARKERS[number % len(_MARKERS)]
        axes.errorbar(medians, places, xerr=spread, fmt=marker, markersize=5, capsize=2, label=contender)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    axes.invert_yaxis()
    if rows:
        axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.grid(axis="x", which="both", alpha=0.3)


def _curves(figure: object, rows: list[Row], divisor: float, unit: str) -> None:
    """Draw time above and memory below, with a column for each sweep and a curve for each group."""
    sweeps = list(dict.fromkeys(row.facts["sweep"] for row in rows))
    grid: list[list[Axes]] = figure.subplots(2, len(sweeps), squeeze=False)  # pyright: ignore[reportAttributeAccessIssue]
    for column, sweep in enumerate(sweeps):
        for group in dict.fromkeys(row.group for row in rows if row.facts["sweep"] == sweep):
            points = [row for row in rows if row.group == group]
            sizes = [row.facts["size"] for row in points]
            label = group.split(",")[0]
            grid[0][column].plot(
                sizes, [row.timings["jaxrnn"].median / divisor for row in points], "o-", markersize=4, label=label
            )
            grid[1][column].plot(sizes, [row.facts["planned MB"] for row in points], "o-", markersize=4, label=label)
        for axes, what in ((grid[0][column], unit), (grid[1][column], "planned MB")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(sweep)
            axes.set_ylabel(what)
            axes.grid(alpha=0.3)
    grid[0][0].legend(fontsize=7)
