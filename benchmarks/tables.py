"""Tables of a result for the terminal, and the format of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.own import EXECUTABLE
from benchmarks.results import BEST, SUBJECT, Result, Row, is_peer
from benchmarks.stages import STAGES
from benchmarks.timing import Timing
from jaxrnn.cli.output import Table, print_block

if TYPE_CHECKING:
    from rich.console import Console

UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def show(out: Console, result: Result) -> None:
    """Print a result."""
    for header, rows in tables(result):
        title = f"{result.title}: median (quartiles), [ratio of jaxrnn to it]"
        print_block(out, Table(title, header, rows, right=header[1:]))
    header, rows = stage_cells(result)
    if rows:
        print_block(out, Table("stages: median (quartiles)", header, rows, right=header[1:]))
    header, rows = mean_cells(result)
    if rows:
        title = "geometric means of the ratios (below 1, jaxrnn is faster)"
        print_block(out, Table(title, header, rows, right=header[1:]))
    for engine, package in result.absent.items():
        out.print(f"{engine} is not installed (pip install {package}) and left out")
    for what, why in refusals(result):
        out.print(f"left out: {what}: {why}")
    around = result.environment
    if result.benchmark == "accelerator" and around.get("device") == "cpu":
        out.print("JAX has no accelerator here: this was a CPU")
    out.print(", ".join(f"{key} {value}" for key, value in around.items()), style="dim")


def tables(result: Result) -> list[tuple[list[str], list[list[str]]]]:
    """Return headings and rows of a table for each kind of rows: times and ratios of all contenders, and facts.

    Rows are of one kind if they have the same forms of jaxrnn, apart from its executable, which some rows lack.
    """
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in result.rows:
        kinds.setdefault(
            tuple(sorted(name for name in row.timings if not is_peer(name) and name != EXECUTABLE)), []
        ).append(row)
    return [_cells(result, rows) for rows in kinds.values()]


def _cells(result: Result, rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    contenders = [name for name in result.contenders if any(name in row.timings for row in rows)]
    facts = list(dict.fromkeys(key for row in rows for key in row.facts))
    peers = any(BEST in row.ratios for row in rows)
    differences = any(row.difference is not None for row in rows)
    header = [result.benchmark, *contenders, *["best peer"] * peers, *["difference"] * differences, *facts]
    cells = []
    for row in rows:
        shown = [row.name]
        for contender in contenders:
            timing, unit = row.timings.get(contender), row.unit or result.unit
            shown.append("-" if timing is None else _time(timing, unit, row.ratios.get(contender)))
        if peers:
            shown.append(f"{row.ratios[BEST]:.2f} ({row.best})" if BEST in row.ratios else "-")
        if differences:
            shown.append("-" if row.difference is None else f"{row.difference:.0e}")
        cells.append([*shown, *(fact_text(row.facts.get(key)) for key in facts)])
    return header, cells


def _time(timing: Timing, unit: str, ratio: float | None) -> str:
    median, low, high = (digits(value / UNITS[unit]) for value in (timing.median, timing.low, timing.high))
    return f"{median} {unit} ({low} to {high})" + (f" [{ratio:.2f}]" if ratio is not None else "")


def digits(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    if value >= 100 or value == 0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def fact_text(value: Any) -> str:
    """Format a fact; a missing fact is empty."""
    if value is None:
        return ""
    return ("-" if value < 0 else "") + digits(abs(value)) if isinstance(value, float) else str(value)


def stage_cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the stages, one row for each contender with stages."""
    parted = [(row, contender, parts) for row in result.rows for contender, parts in row.stages.items()]
    names = list(dict.fromkeys(part for _, _, parts in parted for part in parts))
    names.sort(key=lambda name: STAGES.index(name) if name in STAGES else len(STAGES))
    rows = [
        [f"{row.name}, {who}", *(_time(parts[n], row.unit or result.unit, None) if n in parts else "-" for n in names)]
        for row, who, parts in parted
    ]
    return ["stages", *names], rows


def mean_cells(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of the geometric means, one row for each group."""
    means = result.means()
    names = list(dict.fromkeys(name for of in means.values() for name in of))
    names.sort(key=lambda name: (name == BEST, not name.startswith(SUBJECT)))
    rows = [[group, *(f"{of[name]:.2f}" if name in of else "-" for name in names)] for group, of in means.items()]
    return ["geometric mean", *names], rows


def refusals(result: Result) -> list[tuple[str, str]]:
    """Return engines with the models that they refuse, and each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in result.rows:
        for engine, why in row.refused.items():
            found.setdefault((engine, why), []).append(row.name)
    return [(f"{engine} ({', '.join(names)})", why) for (engine, why), names in found.items()]
