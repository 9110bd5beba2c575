"""Results of a benchmark: rows of timings and ratios, means, and JSON files."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import BENCHMARKS
from benchmarks.timing import Timing
from jaxrnn._files.messages import as_json
from jaxrnn._files.writing import in_place_of

#: The contender to which peers are compared. Names that begin with this name are forms of jaxrnn, not peers.
SUBJECT = "jaxrnn"
BEST = "best peer"
#: The table of engines, which has a separate page: `benchmarks.engines`.
ENGINES = "engines.json"


@dataclass
class Row:
    """The timings of a case.

    Attributes:
        name: the name of the row.
        group: the name of a group of similar rows, over which means are computed.
        timings: timings by contender.
        ratios: time of jaxrnn over time of a contender, as a median over rounds; ``best peer`` is the peer with the
            lowest median.
        best: the name of the best peer.
        difference: the largest difference between outputs, relative as `benchmarks.timing.AGREEMENT` is.
        refused: engines that refuse the model, with the reason.
        facts: further numbers, by name.
        margins: time of jaxrnn minus time of a contender in microseconds, as a median over rounds.
        unit: the unit of the times, if it differs from the unit of the result.
        stages: consecutive parts of the time, by contender.
    """

    name: str
    group: str
    timings: dict[str, Timing]
    ratios: dict[str, float] = field(default_factory=dict)
    best: str | None = None
    difference: float | None = None
    refused: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    margins: dict[str, float] = field(default_factory=dict)
    unit: str | None = None
    stages: dict[str, dict[str, Timing]] = field(default_factory=dict)


def row_of(name: str, group: str, samples: Mapping[str, Sequence[float]], **more: Any) -> Row:
    """Return a row of samples by contender; equal indices of two contenders are from the same round."""
    timings = {contender: Timing.of(times) for contender, times in samples.items()}
    ratios: dict[str, float] = {}
    margins: dict[str, float] = {}
    best = None
    if SUBJECT in samples:
        for contender, times in samples.items():
            if contender != SUBJECT:
                pairs = list(zip(samples[SUBJECT], times, strict=True))
                ratios[contender] = statistics.median(mine / its for mine, its in pairs)
                margins[contender] = statistics.median(mine - its for mine, its in pairs)
        peers = [contender for contender in samples if is_peer(contender)]
        if peers:
            best = min(peers, key=lambda contender: timings[contender].median)
            ratios[BEST] = ratios[best]
    return Row(name, group, timings, ratios, best, margins=margins, **more)


def is_peer(contender: str) -> bool:
    """Return True for an engine other than jaxrnn."""
    return not contender.startswith(SUBJECT)


@dataclass
class Result:
    """The result of a run of a benchmark.

    Attributes:
        benchmark: the name of the benchmark.
        title: a description of the timed work.
        unit: the unit in which times are shown, ``us``, ``ms`` or ``s``. Timings are in microseconds.
        cores: ``one`` or ``all``.
        quick: True for a quick run with fewer rounds and cases.
        command: the command line of the run.
        environment: machine and versions.
        absent: engines that are not installed, with their packages.
        rows: the rows.
        failures: cases that failed, with the reason.
        seconds: the duration of the run; None if unknown.
    """

    benchmark: str
    title: str
    unit: str
    cores: str
    quick: bool
    command: str
    environment: dict[str, Any]
    absent: dict[str, str]
    rows: list[Row] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def machine(self) -> str:
        """The processor, with the vector extension if recorded."""
        name, vectors = (self.environment.get(key) for key in ("processor", "vectors"))
        return f"{name} ({vectors})" if vectors else str(name)

    @property
    def contenders(self) -> list[str]:
        """All contenders, forms of jaxrnn first."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.timings))
        return sorted(names, key=is_peer)

    @property
    def stem(self) -> str:
        """The name of the files of this result, without the suffix."""
        return self.benchmark if self.cores == "one" else f"{self.benchmark}_all_cores"

    def means(self) -> dict[str, dict[str, float]]:
        """Geometric means of the ratios, by group and contender, over the rows with the ratio."""
        found: dict[str, dict[str, float]] = {}
        for group in dict.fromkeys(row.group for row in self.rows):
            rows = [row for row in self.rows if row.group == group]
            names = list(dict.fromkeys(name for row in rows for name in row.ratios))
            if names:
                found[group] = {
                    name: geometric_mean(row.ratios[name] for row in rows if name in row.ratios) for name in names
                }
        return found

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON values, with the means."""
        return as_json({**dataclasses.asdict(self), "means": self.means()})


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN for an empty sequence."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def save(result: Result, folder: Path) -> Path:
    """Write the result as JSON, whole or not at all, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.stem}.json"
    with in_place_of(path) as written:
        written.write_text(json.dumps(result.plain(), indent=1) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> Result:
    """Read a file that `save` wrote; a ValueError reports any other file."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        rows = [_row(entry) for entry in plain.pop("rows")]
        del plain["means"]
        return Result(**plain, rows=rows)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result of a benchmark: {type(error).__name__}: {error}") from error


def read_all(folder: Path) -> dict[Path, Result]:
    """Read the results in a folder and its subfolders, in the order of the benchmarks, one core first.

    A ValueError names a folder without results, an unknown file, or two results of the same machine and benchmark.
    """
    found = {path: read(path) for path in sorted(folder.glob("**/*.json")) if path.name != ENGINES}
    if not found:
        raise ValueError(f"there are no results in {folder}: python -m benchmarks all --out {folder}/NAME makes them")
    # A folder is of one machine, and older results do not name the vector extension.
    known = {path.parent: each.environment["vectors"] for path, each in found.items() if "vectors" in each.environment}
    places: dict[tuple[str, str], Path] = {}
    for path, result in found.items():
        result.environment.setdefault("vectors", known.get(path.parent))
        if result.benchmark not in BENCHMARKS:
            raise ValueError(f"{path} is of {result.benchmark!r}, which is none of: {', '.join(BENCHMARKS)}")
        other = places.setdefault((result.machine, result.stem), path)
        if other != path:
            raise ValueError(f"{other} and {path} are both of {result.benchmark} on {result.machine}; remove one")
    order = sorted(found.items(), key=lambda item: (list(BENCHMARKS).index(item[1].benchmark), item[1].cores != "one"))
    return dict(order)


def _row(entry: dict[str, Any]) -> Row:
    stages = {name: _timings(parts) for name, parts in entry.get("stages", {}).items()}
    return Row(**{**entry, "timings": _timings(entry["timings"]), "stages": stages})


def _timings(entry: dict[str, Any]) -> dict[str, Timing]:
    return {name: Timing(**timing) for name, timing in entry.items()}
