"""The results page: a template filled with tables from JSON files, one folder per machine.

All figures come from results; neither the template nor this module contains any.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import export, own, start
from benchmarks.corpus import MORE_THAN_SHORT
from benchmarks.layers import GATES, name_of
from benchmarks.overview import figures
from benchmarks.results import BEST, SUBJECT, Result, Row, geometric_mean, is_peer, read_all
from benchmarks.sequence import SIZES
from benchmarks.stages import STAGES
from benchmarks.tables import UNITS, digits
from benchmarks.targets import target_cells
from benchmarks.train import GRID, KINDS
from jaxrnn._files.writing import in_place_of

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
        ValueError: the folder has no results, unknown files, or two results of the same machine and benchmark; or the
            template names an unknown part.
    """
    results = read_all(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    # Links are as seen from the page.
    seen = {Path(os.path.relpath(path.resolve(), page.parent.resolve())): result for path, result in results.items()}
    text = fill(TEMPLATE.read_text(encoding="utf-8"), seen, page.parent)
    with in_place_of(page) as written:
        written.write_text(text, encoding="utf-8")


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
    shown = {benchmark for section in SECTIONS.values() for benchmark in section}
    rest = [path for path, result in results.items() if result.benchmark not in shown]
    parts = {
        "targets": markdown(*target_cells(machines)),
        "machines": markdown(*_machines(results.values())),
        "rest": ", ".join(_link(path, results[path], folder) for path in rest),
    }
    parts |= {name: _section(section, results, folder) for name, section in SECTIONS.items()}
    parts |= figures(results.values())

    def part(match: re.Match[str]) -> str:
        if match[1] not in parts:
            raise ValueError(f"the template asks for {match[1]!r}; there are: {', '.join(parts)}")
        return parts[match[1]]

    return _PLACE.sub(part, template)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first contain numbers and are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _section(section: Mapping[str, Callable[[Result], list[Table]]], results: Found, folder: Path) -> str:
    """Return the tables of a section for all machines, with links to the full results, and the failures."""
    pieces: list[str] = []
    mine: Found = {}
    for benchmark, tables_of in section.items():
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
    """Return a link to a result, and to the picture if there is a picture."""
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
    return [f"Left out (the file has the reasons): {names}."] if names else []


def _failures(results: Iterable[Result]) -> list[str]:
    """List the cases without times, with the reasons."""
    lines = [f"- {what}, {_place(each)}: {why}" for each in results for what, why in each.failures.items()]
    return ["\n".join(["Not timed, and why:", "", *lines])] if lines else []


#: The facts of a machine on the page.
SHOWN = ("date", "system", "python", "jax", "onnxruntime", "tract", "ai-edge-litert", "openvino", "torch")


def _machines(results: Iterable[Result]) -> tuple[list[str], list[list[str]]]:
    """Return a row for each machine: dates and versions of the results."""
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


NONE = "-"


@dataclass(frozen=True)
class Table:
    """A table of the page: a title with the unit, and cells by the name of the row and the heading."""

    title: str
    rows: Mapping[str, Mapping[str, str]]


def merged(tables: Mapping[str, Table]) -> tuple[list[str], list[list[str]]]:
    """Merge the tables of all machines, and return headings and rows; each machine has separate rows."""
    headings = list(dict.fromkeys(key for table in tables.values() for cells in table.rows.values() for key in cells))
    names = list(dict.fromkeys(name for table in tables.values() for name in table.rows))
    rows = [
        [name, machine, *(table.rows[name].get(heading, NONE) for heading in headings)]
        for name in names
        for machine, table in tables.items()
        if name in table.rows
    ]
    return ["", "machine", *headings], rows


def beside(
    result: Result,
    rows: Sequence[Row],
    forms: Sequence[str] | None = None,
    *,
    unit: str | None = None,
    facts: Sequence[str] = (),
) -> dict[str, dict[str, str]]:
    """Return a table row for each result row: medians, and the ratio of jaxrnn to each contender.

    ``forms`` are the forms of jaxrnn, by default all forms. ``unit`` is the unit of times, by default the unit of the
    result. ``facts`` are further columns.
    """
    names = [name for name in result.contenders if is_peer(name) or forms is None or name in forms]
    names = [name for name in names if any(name in row.timings for row in rows)]
    return {
        row.name: {name: median_and_ratio(row, name, unit or result.unit) for name in names}
        | {key: fact(row.facts, key) for key in facts}
        for row in rows
    }


def median_and_ratio(row: Row | None, contender: str, unit: str) -> str:
    """Format the median of a contender, and the ratio of jaxrnn to this contender."""
    found = ratio(row, contender)
    return median(row, contender, unit) + ("" if found == NONE else f" [{found}]")


def median(row: Row | None, contender: str, unit: str) -> str:
    """Format the median of a contender."""
    timing = row.timings.get(contender) if row is not None else None
    return NONE if timing is None else digits(timing.median / UNITS[unit])


def ratio(row: Row | None, contender: str) -> str:
    """Format the ratio of jaxrnn to a contender."""
    value = row.ratios.get(contender) if row is not None else None
    return NONE if value is None else f"{value:.2f}"


def mean(rows: Iterable[Row | None], contender: str) -> str:
    """Format the geometric mean of the ratios to a contender over the rows with this contender."""
    ratios = [row.ratios[contender] for row in rows if row is not None and contender in row.ratios]
    return f"{geometric_mean(ratios):.2f}" if ratios else NONE


def means(rows: Sequence[Row], cells: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return a last row for `beside`: the means over some rows."""
    names = dict.fromkeys(name for row in rows for name in cells[row.name] if name != SUBJECT)
    return {name: f"[{found}]" for name in names if (found := mean(rows, name)) != NONE}


def fact(facts: Mapping[str, object], key: str) -> str:
    """Format a fact."""
    value = facts.get(key)
    return digits(value) if isinstance(value, float) else NONE if value is None else str(value)


RATIO = "[ratio of jaxrnn to it]"


def step(result: Result) -> list[Table]:
    """Return a row for each network, with the mean over the speech networks."""
    rows = beside(result, result.rows, (SUBJECT, own.JITTED, own.IN_LITERT))
    speech = means([row for row in result.rows if row.group == "speech"], rows)
    return [Table(f"One step, us {RATIO}", rows | ({"speech, mean": speech} if speech else {}))]


def starts(result: Result) -> list[Table]:
    """Return a table of networks in steps, and a table of streamed networks by stage."""
    steps = [row for row in result.rows if row.group == "start"]
    streamed = [row for row in result.rows if row.group == "streamed start"]
    peers = {name: name for name in result.contenders if is_peer(name)}
    return [
        Table(
            "From the start of a process to the first output, s",
            {_network(row): _seconds(row, STARTS | peers) for row in steps},
        ),
        Table(
            "From the start of a process to the first streamed frames, s, and the stages from ONNX",
            {
                _network(row): _seconds(row, {"from ONNX": start.COLD}) | _stages(row) | _seconds(row, STREAMED | peers)
                for row in streamed
            },
        ),
    ]


#: Ways to start, by their headings.
STREAMED = {"persistent cache": start.CACHED, "compiled file": SUBJECT, "with machine code": start.NATIVE}
STARTS = {"import jax": start.IMPORT_JAX, "from ONNX": start.COLD, **STREAMED}


def pulses(result: Result) -> list[Table]:
    """Return a row for each network."""
    return [Table(f"One pulse, us {RATIO}", beside(result, result.rows, (SUBJECT, own.JITTED)))]


def exports(result: Result) -> list[Table]:
    """Return a row for each network, with the means over all networks."""
    facts = (export.OFFLINE_NODES, export.STEP_NODES, export.RATIO, export.OPTIMISED)
    rows = beside(result, result.rows, facts=facts)
    mean = means(result.rows, rows)
    return [Table(f"One step of an exported file, us {RATIO}", rows | ({"mean": mean} if mean else {}))]


def sequence(result: Result) -> list[Table]:
    """Return a row for each size with the most frames, and means; each kind of layer has three columns."""
    rows = {row.name: row for row in result.rows}
    ways = {"ONNX Runtime": "ONNX Runtime", "best": BEST}
    layers: dict[str, dict[str, str]] = {}
    most = max(frames for _, frames, _ in SIZES)
    for size in (size for size in SIZES if size[1] == most):
        named = {kind: rows.get(name_of(kind, *size)) for kind in GATES}
        if any(named.values()):
            layers[", ".join(map(str, size))] = {
                heading: cell
                for kind, row in named.items()
                for heading, cell in (
                    (kind, median(row, SUBJECT, "ms")),
                    *((f"{kind}, {way}", ratio(row, name)) for way, name in ways.items()),
                )
            }
    layers[f"mean of {len(SIZES)} sizes"] = {
        f"{kind}, {way}": mean([rows.get(name_of(kind, *size)) for size in SIZES], name)
        for kind in GATES
        for way, name in ways.items()
    }
    return [Table("A layer of units over frames, batch: ms, and ratio to peers", layers)]


def recording(result: Result) -> list[Table]:
    """Return a table of single streams beside the peers, and a table of networks by number of streams."""
    alone = [row for row in result.rows if row.group in ("scan", "pipeline")]
    batches: dict[str, dict[str, str]] = {}
    for row in result.rows:
        if row.group.endswith("float32") or row.group == "64 streams, bfloat16":
            network, count, kind = row.name.split(", ")
            shown = f"{digits(row.timings[SUBJECT].median / 1e3)} [{next(iter(row.ratios.values())):.2f}]"
            batches.setdefault(network, {})[count if kind == "float32" else f"{count}, {kind}"] = shown
    facts = ("times real time, a core",)
    return [
        Table(f"Ten seconds of audio, ms {RATIO}", beside(result, alone, (SUBJECT,), facts=facts)),
        Table("One of many recordings of two seconds at once, ms [beside a single one in float32]", batches),
    ]


def streams(result: Result) -> list[Table]:
    """Return a row for each network."""
    return [Table(f"One frame of all live streams, us {RATIO}", beside(result, result.rows))]


def train(result: Result) -> list[Table]:
    """Return a row for each size with the most frames, and columns for each kind of layer."""
    rows = {row.name: row for row in result.rows}
    most = max(frames for _, frames, _ in GRID)
    shown = {}
    for size in (size for size in GRID if size[1] == most):
        named = {kind: rows.get(name_of(kind, *size)) for kind in KINDS}
        if any(named.values()):
            shown[", ".join(map(str, size))] = {
                heading: cell
                for kind, row in named.items()
                for heading, cell in (
                    (kind, median(row, SUBJECT, "ms")),
                    (f"{kind}, PyTorch", median_and_ratio(row, "PyTorch", "ms")),
                )
            }
    return [Table("A layer of units over frames, batch: forward and backward, ms", shown)]


def corpus(result: Result) -> list[Table]:
    """Return a row for each corpus, command or long file; short files show the additional cost of long files."""
    rows = [row for row in result.rows if row.group != "long files" or row.facts.get(MORE_THAN_SHORT) is not None]
    facts = ("times real time", "peak MB", MORE_THAN_SHORT)
    return [Table(f"From files to a table, s {RATIO}", beside(result, rows, (SUBJECT,), facts=facts, unit="s"))]


#: By the name of a section in the template, functions that return tables of a result, by benchmark.
SECTIONS: dict[str, dict[str, Callable[[Result], list[Table]]]] = {
    "step": {"step": step},
    "start": {"start": starts},
    "pulses": {"pulses": pulses},
    "export": {"export": exports},
    "sequence": {"sequence": sequence},
    "recording": {"recording": recording, "streams": streams},
    "train": {"train": train},
    "corpus": {"corpus": corpus},
}


def _network(row: Row) -> str:
    return row.name.split(",")[0]


def _seconds(row: Row, ways: Mapping[str, str]) -> dict[str, str]:
    """Return seconds of starts by heading, without starts that were not measured."""
    cells = {heading: median(row, contender, "s") for heading, contender in ways.items()}
    return {heading: cell for heading, cell in cells.items() if cell != NONE}


def _stages(row: Row) -> dict[str, str]:
    found = row.stages.get(start.COLD, {})
    return {part: digits(found[part].median / 1e6) for part in STAGES if part in found}
