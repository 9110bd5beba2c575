"""Targets of the project, and the results of each machine beside the targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.batches import ALONE
from benchmarks.export import GROUP, OFFLINE_GRAPH, RATIO
from benchmarks.layers import name_of
from benchmarks.networks import OFFLINE
from benchmarks.results import BEST, SUBJECT, Result, Row, geometric_mean
from benchmarks.sequence import SIZES
from benchmarks.start import COLD, IMPORT_JAX, NATIVE

Found = Callable[[list[Row]], float | None]


def mean_of_named(names: tuple[str, ...], contender: str) -> Found:
    """Find the geometric mean of the ratios to a contender over the rows of these names; all names are required."""

    def found(rows: list[Row]) -> float | None:
        ratios = {row.name: row.ratios[contender] for row in rows if row.name in names and contender in row.ratios}
        return geometric_mean(ratios.values()) if len(ratios) == len(names) else None

    return found


def mean_of_groups(*groups: str, contender: str = BEST, rows_at_least: int = 4) -> Found:
    """Find the geometric mean of the ratios to a contender over all rows of these groups; none can be empty."""

    def found(rows: list[Row]) -> float | None:
        ratios = [(row.group, row.ratios[contender]) for row in rows if contender in row.ratios]
        kept = {group: [ratio for of, ratio in ratios if of == group] for group in groups}
        if any(len(those) < rows_at_least for those in kept.values()):
            return None
        return geometric_mean(ratio for those in kept.values() for ratio in those)

    return found


def whole(name: str, contender: str) -> Found:
    """Find the seconds of a start."""
    return lambda rows: _seconds(row.timings[contender].median for row in rows if _has(row, name, contender))


def stages(name: str, contender: str, *parts: str) -> Found:
    """Find the seconds of some stages of a start."""
    return lambda rows: _seconds(
        sum(row.stages[contender][part].median for part in parts)
        for row in rows
        if row.name == name and set(parts) <= row.stages.get(contender, {}).keys()
    )


def over_import(names: tuple[str, ...], contender: str) -> Found:
    """Find the seconds by which the slowest start of these networks exceeds ``import jax``."""

    def found(rows: list[Row]) -> float | None:
        over = [
            (row.timings[contender].median - row.timings[IMPORT_JAX].median) / 1e6
            for row in rows
            if any(_has(row, f"{name}, start", contender) for name in names)
        ]
        return max(over) if len(over) == len(names) else None

    return found


def smallest_fact(names: tuple[str, ...], fact: str) -> Found:
    """Find the smallest value of a fact over rows of these names; all rows must have the fact."""

    def found(rows: list[Row]) -> float | None:
        values = [row.facts[fact] for row in rows if row.name in names and row.facts.get(fact) is not None]
        return min(values) if len(values) == len(names) else None

    return found


def mean_fact(group: str, fact: str, rows_at_least: int) -> Found:
    """Find the geometric mean of a fact over the rows of a group."""

    def found(rows: list[Row]) -> float | None:
        values = [row.facts[fact] for row in rows if row.group == group and row.facts.get(fact) is not None]
        return geometric_mean(values) if len(values) >= rows_at_least else None

    return found


def _has(row: Row, name: str, contender: str) -> bool:
    return row.name == name and contender in row.timings


def _seconds(microseconds: Iterable[float]) -> float | None:
    return next((value / 1e6 for value in microseconds), None)


SPEECH = ("dtln_1", "dtln_2", "silero_vad_16k_op15", "gtcrn")
EXPORTED = (*SPEECH, *(network.name for network in OFFLINE))
STREAMED = ("filter_net", "keyword_net", "wave_net")


@dataclass(frozen=True)
class Target:
    """One number to reach, from a run pinned to one core.

    Attributes:
        what: the timed work.
        against: the divisor of the time, or the subtracted time.
        reach: the largest accepted value, or a value for each vendor of processors.
        benchmark: the benchmark that measures the value.
        found: a function from rows to the value; None if rows are missing.
        least: True if ``reach`` is the smallest accepted value.
    """

    what: str
    against: str
    reach: float | Mapping[str, float]
    benchmark: str
    found: Found
    least: bool = False

    def reach_on(self, result: Result) -> float | None:
        """Return the target on the machine of a result, or None."""
        if not isinstance(self.reach, Mapping):
            return self.reach
        return next((reach for vendor, reach in self.reach.items() if vendor in result.machine), None)


def _layers(*kinds: str) -> tuple[str, ...]:
    return tuple(name_of(kind, *size) for kind in kinds for size in SIZES)


def _starts() -> list[Target]:
    """Return targets for the seconds from an ONNX file to the first streamed frame, and for stages."""
    wholes = {"dual_path": 6.0, "deep_filter": 2.5, "convolutional_recurrent": 1.2}
    parts = {"its `init`": (0.3, ("init",)), "its tracing and lowering": (1.5, ("trace", "lower"))}
    clock, row = "the clock, seconds", "{}, streamed, start"
    found = [
        Target(f"{name} to its first streamed frame", clock, reach, "start", whole(row.format(name), COLD))
        for name, reach in wholes.items()
    ]
    slowest = next(iter(wholes))
    found += [
        Target(f"{slowest}, {what}", clock, reach, "start", stages(row.format(slowest), COLD, *names))
        for what, (reach, names) in parts.items()
    ]
    return found


def _compiled_starts() -> list[Target]:
    """Return targets for starts of compiled files in seconds."""
    ways = {"a compiled file": SUBJECT, "a compiled file with machine code": NATIVE}
    return [
        Target(f"start of {what}, {which}", "`import jax`, seconds", reach, "start", over_import(names, contender))
        for what, contender in ways.items()
        for which, names, reach in (("GTCRN", SPEECH[3:], 1.0), ("the slowest of the others", SPEECH[:3], 0.3))
    ]


TARGETS = (
    *_starts(),
    *_compiled_starts(),
    Target(
        "step, NumPy in and out, four speech networks",
        "ONNX Runtime",
        {"Intel": 0.6, "AMD": 0.5},
        "step",
        mean_of_named(SPEECH, "ONNX Runtime"),
    ),
    Target("step of DTLN's two networks", "LiteRT", 0.95, "step", mean_of_named(SPEECH[:2], "LiteRT")),
    Target("a pulse of filter, keyword and wave nets", "tract", 0.3, "pulses", mean_of_named(STREAMED, "tract")),
    Target("a pulse of deep_filter", "tract", 0.5, "pulses", mean_of_named(("deep_filter",), "tract")),
    Target(
        "a pulse of convolutional_recurrent",
        "tract",
        0.5,
        "pulses",
        mean_of_named(("convolutional_recurrent",), "tract"),
    ),
    Target(
        "a step of an exported file in ONNX Runtime",
        "the offline graph, one pulse",
        1.3,
        "export",
        mean_of_groups(GROUP, contender=OFFLINE_GRAPH, rows_at_least=len(EXPORTED)),
    ),
    Target("nodes of an exported file", "the offline graph", 2.0, "export", mean_fact(GROUP, RATIO, len(EXPORTED))),
    Target(
        "sequence, LSTM and GRU, ten sizes",
        "ONNX Runtime",
        0.95,
        "sequence",
        mean_of_named(_layers("LSTM", "GRU"), "ONNX Runtime"),
    ),
    Target("sequence, LSTM", "ONNX Runtime", 0.95, "sequence", mean_of_named(_layers("LSTM"), "ONNX Runtime")),
    Target("sequence, GRU", "ONNX Runtime", 0.95, "sequence", mean_of_named(_layers("GRU"), "ONNX Runtime")),
    Target(
        "sequence, LSTM and GRU", "best peer at each size", 1.0, "sequence", mean_of_named(_layers("LSTM", "GRU"), BEST)
    ),
    Target("sequence, RNN", "best peer at each size", 0.5, "sequence", mean_of_named(_layers("RNN"), BEST)),
    Target(
        "LSTM and GRU as bodies of `Scan`",
        "best peer's `Scan`",
        0.5,
        "sequence",
        mean_of_groups("LSTM as Scan", "GRU as Scan"),
    ),
    Target(
        "recording through `scan`, four speech networks",
        "ONNX Runtime's loop",
        0.25,
        "recording",
        mean_of_named(SPEECH, "ONNX Runtime"),
    ),
    Target(
        "recording, 64 streams, one of them",
        "a single stream",
        0.6,
        "recording",
        mean_of_groups("64 streams, float32", contender=ALONE),
    ),
    Target(
        "DTLN, 64 recordings, the lower of its two networks",
        "the core's measured peak",
        0.85,
        "accelerator",
        smallest_fact(("dtln_1, 64 recordings", "dtln_2, 64 recordings"), "of the peak"),
        least=True,
    ),
    Target(
        "corpus of files through DTLN",
        "ONNX Runtime's loop",
        0.25,
        "corpus",
        mean_of_groups("corpus", contender="ONNX Runtime", rows_at_least=1),
    ),
    Target(
        "LSTM and GRU, forward and backward",
        "PyTorch",
        0.9,
        "train",
        mean_of_groups("LSTM training", "GRU training", contender="PyTorch"),
    ),
)


def target_cells(machines: Mapping[str, Mapping[str, Result]]) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of all targets, with the value and a verdict for each machine.

    ``machines`` are results of runs on one core, by machine and benchmark.
    """
    rows = [
        [
            target.what,
            target.against,
            _to_reach(target),
            *(_verdict(target, results.get(target.benchmark)) for results in machines.values()),
        ]
        for target in TARGETS
    ]
    return ["what", "against", "to reach", *machines], rows


def _to_reach(target: Target) -> str:
    if isinstance(target.reach, Mapping):
        return ", ".join(f"{reach:g} ({vendor})" for vendor, reach in target.reach.items())
    return f"{target.reach:g}" + (" or more" if target.least else "")


def _verdict(target: Target, result: Result | None) -> str:
    value = target.found(result.rows) if result else None
    if result is None or value is None:
        return "not measured"
    reach = target.reach_on(result)
    if reach is None:
        return f"{value:.2f}"
    reached = value >= reach if target.least else value <= reach
    return f"{value:.2f}: {'yes' if reached else 'no'}" + (", by a quick run" if result.quick else "")
