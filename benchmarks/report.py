"""The results page: a template filled with tables from JSON files, one folder per machine.

All figures come from results; neither the template nor this module contains any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.cells import merged
from benchmarks.overview import figures
from benchmarks.results import Result, read, replace_text
from benchmarks.running import BENCHMARKS
from benchmarks.sections import SECTIONS, Section
from benchmarks.targets import target_cells

TEMPLATE = Path(__file__).parent / "performance_template.md"

_PLACE = re.compile(r"\{\{ *([a-z_]+) *\}\}")

#: Results by path, to which the page links.
Found = dict[Path, Result]


def write(folder: Path, page: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        folder: the folder of results, with a subfolder for each machine.
        page: the file to write.

    Raises:
        ValueError: the folder has no results, other files, or two results of one machine and benchmark; or the template
            names an unknown part.
    """
    results = read_all(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    # Links are as seen from the page.
    seen = {Path(os.path.relpath(path.resolve(), page.parent.resolve())): result for path, result in results.items()}
    replace_text(page, fill(TEMPLATE.read_text(encoding="utf-8"), seen, page.parent))


def read_all(folder: Path) -> Found:
    """Read the results in a folder and its subfolders, in the order of the benchmarks, one core first.

    A ValueError names a folder without results, a file of another kind, or two results of one machine and benchmark.
    """
    found = {path: read(path) for path in sorted(folder.glob("**/*.json"))}
    if not found:
        raise ValueError(f"there are no results in {folder}: python -m benchmarks all --out {folder}/NAME makes them")
    places: dict[tuple[str, str], Path] = {}
    for path, result in found.items():
        if result.benchmark not in BENCHMARKS:
            raise ValueError(f"{path} is of {result.benchmark!r}, which is none of: {', '.join(BENCHMARKS)}")
        other = places.setdefault((result.machine, result.stem), path)
        if other != path:
            raise ValueError(f"{other} and {path} are both of {result.benchmark} on {result.machine}; remove one")
    order = sorted(found.items(), key=lambda item: (BENCHMARKS.index(item[1].benchmark), item[1].cores != "one"))
    return dict(order)


def fill(template: str, results: Found, folder: Path) -> str:
    """Replace each ``{{ name }}`` in the template by its part.

    ``results`` are by path relative to the page, and ``folder`` is the folder of the page. A ValueError names an
    unknown part.
    """
    machines: dict[str, dict[str, Result]] = {}
    for result in sorted(results.values(), key=lambda result: result.machine):
        machines.setdefault(result.machine, {})
        if result.cores == "one":
            machines[result.machine][result.benchmark] = result
    parts = {
        "targets": markdown(*target_cells(machines)),
        "machines": markdown(*_machines(results.values())),
        "rest": ", ".join(_link(path, results[path], folder) for path in _unshown(results)),
    }
    parts |= {name: _section(section, results, folder) for name, section in SECTIONS.items()}
    parts |= figures(results.values())

    def part(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise ValueError(f"the template asks for {match[1]!r}; there are: {', '.join(parts)}")
        return parts[match[1]]

    return _PLACE.sub(part, template)


def _unshown(results: Found) -> list[Path]:
    shown = {benchmark for section in SECTIONS.values() for benchmark in section.tables}
    return [path for path, result in results.items() if result.benchmark not in shown]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first contain numbers and are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _section(section: Section, results: Found, folder: Path) -> str:
    """Return the tables of a section for all machines, with links to the full results, and the failures."""
    pieces: list[str] = []
    mine: Found = {}
    for benchmark, tables_of in section.tables.items():
        of = {path: result for path, result in results.items() if result.benchmark == benchmark}
        mine |= of
        tables = {_place(result): tables_of(result) for result in of.values()}
        for same in zip(*tables.values(), strict=True):
            filled = {place: table for place, table in zip(tables, same, strict=True) if table.rows}
            if filled:
                pieces += [f"**{same[0].title}.**", markdown(*merged(filled))]
    if not mine:
        return "Not measured."
    notes = [f"Every row with quartiles: {', '.join(_link(path, mine[path], folder) for path in mine)}."]
    if any(result.quick for result in mine.values()):
        notes.append("Figures of a quick run do not count.")
    pieces += [" ".join(notes + _left_out(mine.values())), *_failures(mine.values())]
    return "\n\n".join(pieces)


def _link(path: Path, result: Result, folder: Path) -> str:
    """Return a link to a result, and to its picture if there is a picture."""
    picture = path.with_suffix(".png")
    drawn = f" ([picture]({picture.as_posix()}))" if (folder / picture).is_file() else ""
    return f"[{result.benchmark}, {_place(result)}]({path.as_posix()}){drawn}"


def _place(result: Result) -> str:
    """Return the machine of a result, with the kind of run."""
    return result.machine + (", all cores" if result.cores == "all" else "") + (", quick run" if result.quick else "")


def _left_out(results: Iterable[Result]) -> list[str]:
    """Return a sentence about networks that engines refused."""
    engines: dict[str, dict[str, None]] = {}
    for row in (row for result in results for row in result.rows):
        for engine in row.refused:
            engines.setdefault(engine, {})[row.name.split(",")[0]] = None
    names = "; ".join(f"{engine} ({', '.join(names)})" for engine, names in engines.items())
    return [f"Left out, why stands there: {names}."] if names else []


def _failures(results: Iterable[Result]) -> list[str]:
    """List the cases without times, with the reasons."""
    lines = [f"- {what}, {_place(each)}: {why}" for each in results for what, why in each.failures.items()]
    return ["\n".join(["Not timed, and why:", "", *lines])] if lines else []


#: The facts of a machine on the page.
SHOWN = ("date", "system", "python", "jax", "onnxruntime", "tract", "ai-edge-litert", "openvino", "torch")


def _machines(results: Iterable[Result]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each machine: dates and versions of its results."""
    machines: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.machine):
        machines.setdefault(result.machine, []).append(result)
    rows = [
        [
            machine,
            *(", ".join(sorted({str(result.environment.get(key, "-")) for result in of})) for key in SHOWN),
        ]
        for machine, of in machines.items()
    ]
    return ["machine", *SHOWN], rows
