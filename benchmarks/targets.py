"""What the project set out to reach, and what results say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.results import BEST, Result, Row, geometric_mean
from benchmarks.start import OVER_IMPORT

SPEECH = ("dtln_1", "dtln_2", "silero_vad_16k_op15", "gtcrn")
STREAMED = ("filter_net", "keyword_net", "wave_net")


@dataclass(frozen=True)
class Target:
    """One number to reach, from a run pinned to one core.

    Attributes:
        what: what is timed.
        against: what its time is divided by, or what is taken from it.
        reach: the largest value that will do.
        benchmark: whose result holds it.
        found: the value, from the rows; None where they do not hold all that it takes.
    """

    what: str
    against: str
    reach: float
    benchmark: str
    found: Callable[[list[Row]], float | None]


def mean_of_named(names: tuple[str, ...], contender: str) -> Callable[[list[Row]], float | None]:
    """The geometric mean of the ratios to a contender over rows of these names, all of which must be there."""

    def found(rows: list[Row]) -> float | None:
        ratios = {row.name: row.ratios[contender] for row in rows if row.name in names and contender in row.ratios}
        return geometric_mean(ratios.values()) if len(ratios) == len(names) else None

    return found


def mean_of_groups(*groups: str, contender: str = BEST, rows_at_least: int = 4) -> Callable[[list[Row]], float | None]:
    """The geometric mean of the ratios to a contender over all rows of these groups, each of which must have some."""

    def found(rows: list[Row]) -> float | None:
        ratios = [(row.group, row.ratios[contender]) for row in rows if contender in row.ratios]
        kept = {group: [ratio for of, ratio in ratios if of == group] for group in groups}
        if any(len(those) < rows_at_least for those in kept.values()):
            return None
        return geometric_mean(ratio for those in kept.values() for ratio in those)

    return found


def largest_fact(name: str) -> Callable[[list[Row]], float | None]:
    """The largest value of a fact over all rows."""
    return lambda rows: max((row.facts[name] for row in rows if row.facts.get(name) is not None), default=None)


ALONE = "jaxrnn, one stream"

TARGETS = (
    Target(
        "step, NumPy in and out, four speech networks",
        "ONNX Runtime",
        0.42,
        "step",
        mean_of_named(SPEECH, "ONNX Runtime"),
    ),
    Target("step of DTLN's two networks", "LiteRT", 0.95, "step", mean_of_named(SPEECH[:2], "LiteRT")),
    Target(
        "recording through `scan`, the same networks",
        "ONNX Runtime's loop",
        0.25,
        "recording",
        mean_of_named(SPEECH, "ONNX Runtime"),
    ),
    Target(
        "recording, 64 streams, one of them",
        "a single stream",
        0.5,
        "recording",
        mean_of_groups("64 streams, float32", contender=ALONE),
    ),
    Target(
        "the same with weights in bfloat16",
        "a single stream, float32",
        0.35,
        "recording",
        mean_of_groups("64 streams, bfloat16", contender=ALONE),
    ),
    Target(
        "corpus of files through DTLN",
        "ONNX Runtime's loop",
        0.25,
        "corpus",
        mean_of_groups("corpus", contender="ONNX Runtime", rows_at_least=1),
    ),
    Target("sequence, LSTM and GRU", "best peer at each size", 1.0, "sequence", mean_of_groups("LSTM", "GRU")),
    Target("sequence, RNN", "best peer at each size", 0.5, "sequence", mean_of_groups("RNN")),
    Target(
        "LSTM and GRU as bodies of `Scan`",
        "best peer's `Scan`",
        0.5,
        "sequence",
        mean_of_groups("LSTM as Scan", "GRU as Scan"),
    ),
    Target(
        "LSTM and GRU, forward and backward",
        "PyTorch",
        0.9,
        "train",
        mean_of_groups("LSTM training", "GRU training", contender="PyTorch"),
    ),
    Target("streamed networks", "tract", 0.3, "pulses", mean_of_named(STREAMED, "tract")),
    Target(
        "start to first output from a compiled file, seconds, the slowest network",
        "`import jax`",
        0.3,
        "start",
        largest_fact(OVER_IMPORT),
    ),
)


def target_cells(results: Mapping[str, Result]) -> list[list[str]]:
    """A row for each target: what, against, to reach, found, and whether it is reached.

    Args:
        results: of runs pinned to one core, by benchmark.
    """
    rows = []
    for target in TARGETS:
        result = results.get(target.benchmark)
        value = target.found(result.rows) if result else None
        if value is None:
            found, verdict = "-", "not measured"
        else:
            found = f"{value:.2f}"
            verdict = "yes" if value <= target.reach else f"no: {value / target.reach:.2f} times as much"
            verdict += ", by a quick run" if result and result.quick else ""
        rows.append([target.what, target.against, f"{target.reach:g}", found, verdict])
    return rows
