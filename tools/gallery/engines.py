"""Times of a step beside other engines, from the results of the benchmarks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.plots import dots
from benchmarks.results import BEST, SUBJECT, Result, is_peer, read_all
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def results_of(benchmark: str) -> list[Result]:
    """Return the results of a benchmark on one core by machine."""
    results = [each for each in read_all(RESULTS).values() if each.cores == "one"]
    return [result for result in results if result.benchmark == benchmark]


def make(folder: Path) -> list[Item]:
    """Draw a panel for each machine, a line for each network, and the mean beside the fastest other engine."""
    results = results_of("step")
    peers = sorted({name for result in results for name in result.contenders if is_peer(name)})
    rows = [row for result in results for row in result.rows]
    fastest = sum(row.ratios[BEST] < 1 for row in rows)
    alt = (
        f"For {len(results)} machines and each network, the time of a step in microseconds, a mark an engine: jaxrnn, "
        f"{', '.join(peers)}. Of {len(rows)} lines, jaxrnn is the fastest in {fastest}."
    )
    figures = {
        f"{result.machine}: time of jaxrnn over that of the fastest other engine, mean of the speech networks": (
            f"{result.means()['speech'][BEST]:.2f}"
        )
        for result in results
    }
    return [drawing.save(folder, "engines", functools.partial(draw, results, peers), alt), Figures(figures)]


def draw(results: list[Result], peers: list[str]) -> Figure:
    """Draw the dots of the performance page, with one form of jaxrnn."""
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    rows = max(len(result.rows) for result in results)
    figure = drawing.canvas(0.6 + len(results) * (0.5 + 0.24 * rows))
    panels = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    for axes, result in zip(panels, results, strict=True):
        dots(axes, result.rows, [SUBJECT, *peers], result.unit)
        axes.set(title=result.machine, xlabel="")
    panels[-1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[-1].xaxis.set_major_formatter(ScalarFormatter())
    panels[-1].xaxis.set_minor_locator(NullLocator())
    panels[-1].set_xlabel("time of a step (µs); bars are quartiles")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


ENTRY = Entry(
    title="Beside other engines",
    see=(
        "One step of a live stream on one core, from NumPy to NumPy, further left is faster. The numbers are those of "
        "[the performance page](performance.md), where losses stand beside gains."
    ),
    shown=results_of,
    make=make,
)
