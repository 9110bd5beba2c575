"""Sections of the results page; the JSON files contain all further figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import export, own, start
from benchmarks.cells import NONE, Table, beside, mean, means, median, median_and_ratio, ratio
from benchmarks.corpus import MORE_THAN_SHORT
from benchmarks.layers import GATES
from benchmarks.results import BEST, SUBJECT, Result, Row, is_peer
from benchmarks.sequence import SIZES, name_of
from benchmarks.stages import STAGES
from benchmarks.tables import digits
from benchmarks.train import GRID, KINDS

RATIO = "[ratio of jaxrnn to it]"


def step(result: Result) -> list[Table]:
    """Return a row for each network, with the mean over the speech networks."""
    rows = beside(result, result.rows, (SUBJECT, own.JITTED))
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
    return [Table("A layer of so many units over so many frames, batch: ms, and ratio to peers", layers)]


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
    return [Table("A layer of so many units over so many frames, batch: forward and backward, ms", shown)]


def corpus(result: Result) -> list[Table]:
    """Return a row for each corpus, command or long file; short files show the additional cost of long files."""
    rows = [row for row in result.rows if row.group != "long files" or row.facts.get(MORE_THAN_SHORT) is not None]
    facts = ("times real time", "peak MB", MORE_THAN_SHORT)
    return [Table(f"From files to a table, s {RATIO}", beside(result, rows, (SUBJECT,), facts=facts, unit="s"))]


@dataclass(frozen=True)
class Section:
    """A part of the page: by benchmark, a function that returns the same number of tables for each result."""

    tables: Mapping[str, Callable[[Result], list[Table]]]


#: The sections by their names in the template.
SECTIONS = {
    "step": Section({"step": step}),
    "start": Section({"start": starts}),
    "pulses": Section({"pulses": pulses}),
    "export": Section({"export": exports}),
    "sequence": Section({"sequence": sequence}),
    "recording": Section({"recording": recording, "streams": streams}),
    "train": Section({"train": train}),
    "corpus": Section({"corpus": corpus}),
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
