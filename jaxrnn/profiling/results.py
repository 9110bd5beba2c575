"""The lines of a profile's table: what a region of the compiled program, or all that is done for a node, costs."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from jaxrnn._files.messages import brief, bytes_of
from jaxrnn.errors import InputError, check_count
from jaxrnn.profiling.hlo import Cost
from jaxrnn.profiling.timing import Peaks

By = Literal["node", "region"]
#: A region that reaches less of either limit is held up by something else.
_NEAR = 0.25


@brief
@dataclass(frozen=True)
class Region:
    """One instruction of the compiled program, such as a fusion or a product of matrices, over one call.

    Attributes:
        name: XLA's.
        opcode: XLA's; for a fusion, what it ends with is in the name.
        nodes: the ONNX nodes (or scopes) that it works for, with their estimated shares of its work.
        seconds: of all its executions in a call, without what recording them took.
        executions: in a call; more than one in a loop.
        cost: operations and bytes of all its executions, from shapes.
        working_set: bytes that are touched before its data is used again: those of the loop around it, or of the call.
    """

    name: str
    opcode: str
    nodes: dict[str, float]
    seconds: float
    executions: int
    cost: Cost
    working_set: float


@brief
@dataclass(frozen=True)
class Row:
    """A line of the table: a region, all that was done for a node, or a sum of such lines.

    Attributes:
        name: of the region or node.
        seconds: in a call.
        time_share: of the seconds of the whole call.
        kind: the region's opcode, or the node's operator.
        related: nodes of a region, with shares where there are several; regions of a node.
        shared: the part of the seconds that is an estimate, because a region of several nodes was divided.
        executions: in a call.
        flops: floating-point operations in a call; None where they are not known.
        nbytes: bytes read and written in a call; None where they are not known.
        flops_share: of the peak floating-point operations a second; None where no peak was measured.
        bytes_share: of the peak bytes a second for the working set.
        bound: the nearer limit, ``compute`` or ``memory``; ``neither`` where both are far.
    """

    name: str
    seconds: float
    time_share: float
    kind: str = ""
    related: tuple[str, ...] = ()
    shared: float = 0.0
    executions: int | None = None
    flops: float | None = None
    nbytes: float | None = None
    flops_share: float | None = None
    bytes_share: float | None = None
    bound: str | None = None


#: Regions, each with the share of it that a line stands for.
Shares = Sequence[tuple[Region, float]]


@dataclass(frozen=True)
class Call:
    """What the lines of one call are held against: its seconds, and the machine's limits if they were measured."""

    seconds: float
    peaks: Peaks | None

    def by_region(self, regions: Sequence[Region]) -> Iterator[Row]:
        """A line for each region."""
        for region in regions:
            several = len(region.nodes) > 1
            related = tuple(f"{name} {share:.0%}" if several else name for name, share in region.nodes.items())
            yield self._row(region.name, region.opcode, related, [(region, 1.0)])

    def by_node(self, regions: Sequence[Region], operators: Mapping[str, str]) -> Iterator[Row]:
        """A line for each node, and one for what could be traced to none."""
        shares: dict[str, list[tuple[Region, float]]] = defaultdict(list)
        for region in regions:
            for name, share in (region.nodes or {"": 1.0}).items():
                shares[name].append((region, share))
        for name, of_node in shares.items():
            kind = operators.get(name, "") if name else "no node"
            yield self._row(name or "(none)", kind, tuple(region.name for region, _ in of_node), of_node)

    def sum(self, name: str, seconds: float, cost: Cost | None = None) -> Row:
        """A line for time that is no single region or node, with what was done in it where that is known."""
        known = cost is not None
        share = cost.flops / self.peaks.flops / seconds if known and self.peaks is not None and seconds > 0 else None
        return Row(
            name=name,
            seconds=seconds,
            time_share=seconds / self.seconds,
            flops=cost.flops if known else None,
            nbytes=cost.nbytes if known else None,
            flops_share=share,
        )

    def _row(self, name: str, kind: str, related: tuple[str, ...], shares: Shares) -> Row:
        seconds = sum(share * region.seconds for region, share in shares)
        divided = sum(share * region.seconds for region, share in shares if share < 1)
        bytes_share = bound = None
        row = self.sum(name, seconds, sum((region.cost * share for region, share in shares), Cost()))
        if self.peaks is not None and row.flops_share is not None:
            # The time that the bytes would take at the limit, each region's at that of its own working set.
            rates = self.peaks.bandwidth
            least = sum(share * region.cost.nbytes / rates(region.working_set) for region, share in shares)
            bytes_share = least / seconds
            nearer = "compute" if row.flops_share >= bytes_share else "memory"
            bound = nearer if max(row.flops_share, bytes_share) >= _NEAR else "neither"
        return replace(
            row,
            kind=kind,
            related=related,
            shared=divided / seconds if seconds else 0.0,
            executions=max(region.executions for region, _ in shares),
            bytes_share=bytes_share,
            bound=bound,
        )


#: Steps that outputs are compared over, each with inputs of its own and the state carried on.
STEPS = 50

Step = Callable[[Any, Any], tuple[dict[str, Any], Any]]


@brief
@dataclass(frozen=True)
class OutputDifference:
    """How far an output is from that in full precision, over all steps.

    Attributes:
        name: of the output.
        largest: the largest absolute difference.
        scale: the largest magnitude of the output, in full precision.
        decibels: energy of the output over energy of the difference; infinite where they are equal.
    """

    name: str
    largest: float
    scale: float
    decibels: float


@brief
@dataclass(frozen=True)
class LowPrecision:
    """What a compute dtype gains and costs.

    Attributes:
        dtype: the compute dtype, which the weights of products have.
        nbytes: of the folded parameters.
        full_nbytes: of the same in full precision.
        full_seconds: of a call with those: the median.
        steps: calls that outputs were compared over.
        differences: of every output of floating-point numbers.
    """

    dtype: str
    nbytes: int
    full_nbytes: int
    full_seconds: float
    steps: int
    differences: tuple[OutputDifference, ...]

    def lines(self, seconds: float) -> list[str]:
        """Lines of text, beside the seconds of a call with them."""
        lines = [
            f"weights in {self.dtype}: {scaled(self.nbytes)}B instead of {scaled(self.full_nbytes)}B; a call takes "
            f"{microseconds(self.full_seconds)} µs in full precision, {self.full_seconds / seconds:.2f} times as long"
        ]
        return lines + [
            f"output {each.name}, over {self.steps} calls: differs by at most {each.largest:.2g}, where its largest "
            f"magnitude is {each.scale:.2g}; signal over error {each.decibels:.1f} dB"
            for each in self.differences
        ]


def differences_of(
    low: Step, full: Step, first: tuple[Any, Any], frames: Iterator[Any]
) -> tuple[OutputDifference, ...]:
    """Run two functions of a state and inputs over the same inputs, each with its own state carried on."""
    states = list(first)
    errors: dict[str, list[np.ndarray]] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    for inputs in frames:
        results = []
        for place, step in enumerate((low, full)):
            values, states[place] = step(states[place], inputs)
            results.append(values)
        for name, value in results[1].items():
            if value is None or not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                continue
            expected = np.asarray(value, np.float64)
            outputs.setdefault(name, []).append(expected)
            errors.setdefault(name, []).append(np.asarray(results[0][name], np.float64) - expected)
    return tuple(_difference(name, np.stack(errors[name]), np.stack(outputs[name])) for name in outputs)


def _difference(name: str, error: np.ndarray, output: np.ndarray) -> OutputDifference:
    noise, energy = float(np.square(error).sum()), float(np.square(output).sum())
    decibels = math.inf if noise == 0 else 10 * math.log10(energy / noise) if energy else -math.inf
    return OutputDifference(name, float(np.abs(error).max(initial=0)), float(np.abs(output).max(initial=0)), decibels)


#: What the line is called that holds the seconds of a call in no region.
REST = "dispatch, loop control, gaps"
#: What `Profile.data` gives as lines of the table alone.
_LONG = ("regions", "operators")


@brief
@dataclass(frozen=True)
class Profile:
    """Where the time of a compiled function goes.

    Attributes:
        label: what was profiled.
        device: what it ran on.
        threads: processors that the process may use.
        seconds: of a call, from the call to its results, without the profiler: the median.
        fastest: the 10th percentile of the same.
        slowest: the 90th percentile of the same.
        calls: how many calls were timed.
        regions: the instructions that were seen, the longest first; empty where the backend reports none.
        rest: seconds of a call in no region: dispatch, loop control, and gaps between regions. 0 where the
            regions, recorded, took longer than the call; a note says so.
        xla: XLA's own cost analysis of the whole program (``flops``, ``transcendentals``, ``bytes``); it counts one
            trip of a loop.
        peaks: the machine's limits; None if they were not measured.
        operators: the operator of every node, by name.
        notes: what to know when reading the figures.
        low_precision: what the compute dtype gains and costs, where there is one.
    """

    label: str
    device: str
    threads: int
    seconds: float
    fastest: float
    slowest: float
    calls: int
    regions: tuple[Region, ...]
    rest: float
    xla: dict[str, float]
    peaks: Peaks | None
    operators: dict[str, str]
    notes: tuple[str, ...]
    low_precision: LowPrecision | None = None

    @property
    def cost(self) -> Cost:
        """Operations and bytes of all regions, loops with all their trips."""
        return sum((region.cost for region in self.regions), Cost())

    def rows(self, by: By = "region") -> tuple[Row, ...]:
        """The lines of the table, the longest time first.

        Args:
            by: ``"region"``: one line for each instruction of the compiled program. ``"node"``: one for each ONNX
                node (or scope); the time, operations and bytes of a region that works for several nodes are divided
                among them by the operations that each needs, and `Row.shared` says how much of a line is an estimate.
        """
        if by not in ("node", "region"):
            raise InputError(f"by must be 'node' or 'region', not {by!r}")
        call = Call(self.seconds, self.peaks)
        rows = call.by_region(self.regions) if by == "region" else call.by_node(self.regions, self.operators)
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def lines(self, by: By = "region", top: int | None = None) -> list[Row]:
        """The lines of the table, then sums: the lines that are not shown, the rest of the call, and the call.

        Args:
            by: as in `rows`.
            top: lines to show; the others are added up in one. None for all.
        """
        if top is not None:
            check_count("top", top)
        call, rows = Call(self.seconds, self.peaks), self.rows(by)
        lines, others = list(rows[:top]), rows[len(rows[:top]) :]
        if others:
            cost = Cost(sum(row.flops or 0.0 for row in others), 0.0, sum(row.nbytes or 0.0 for row in others))
            lines.append(call.sum(f"{len(others)} more", sum(row.seconds for row in others), cost))
        if self.rest > 0:
            lines.append(call.sum(REST, self.rest))
        return [*lines, call.sum("call", self.seconds, self.cost if rows else None)]

    def data(self, by: By = "region") -> dict[str, Any]:
        """All of it in plain types, the lines of the table under ``rows``."""
        whole = dataclasses.replace(self, regions=(), operators={})
        facts = {name: value for name, value in dataclasses.asdict(whole).items() if name not in _LONG}
        in_regions = sum(region.seconds for region in self.regions)
        rows = [dataclasses.asdict(row) for row in self.rows(by)]
        return {**facts, "in_regions": in_regions, "cost": dataclasses.asdict(self.cost), "by": by, "rows": rows}

    def heading(self) -> list[str]:
        """Lines that say what was measured and what the machine can do."""
        lines = [
            f"{self.label}, on {self.device}, {self.threads} thread(s)",
            f"a call takes {microseconds(self.seconds)} µs (median of {self.calls}; 80 % of them within "
            f"{microseconds(self.fastest)} to {microseconds(self.slowest)} µs)",
        ]
        if self.xla:
            words = {"flops": "FLOP", "transcendentals": " transcendental functions", "bytes": "B"}
            counted = ", ".join(f"{scaled(self.xla[key])}{word}" for key, word in words.items() if key in self.xla)
            lines.append(f"XLA's cost analysis, each loop once: {counted}")
        if self.peaks is not None:
            sizes = ", ".join(f"{scaled(rate)}B/s on {bytes_of(size)}" for size, rate in self.peaks.bandwidths.items())
            lines.append(f"peak, measured here: {scaled(self.peaks.flops)}FLOP/s in {self.peaks.dtype}; {sizes}")
        if self.low_precision is not None:
            lines += self.low_precision.lines(self.seconds)
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def table(self, by: By = "region", top: int | None = None) -> str:
        """The heading and the table as text; arguments as in `lines`."""
        cells = columns(by, peaks=self.peaks is not None)
        return "\n".join([*self.heading(), "", *aligned(cells, self.lines(by, top))])


#: Names of the columns that hold numbers.
NUMBERS = ("µs", "time", "shared", "runs", "FLOP", "of peak FLOP/s", "bytes", "of peak bytes/s")
_LONGEST, _MOST = 60, 3

Columns = dict[str, Callable[[Row], str]]


def columns(by: By, *, peaks: bool) -> Columns:
    """The table's columns, each with the text of a line in it.

    Args:
        by: what a line is.
        peaks: whether the machine's limits were measured.
    """
    time: Columns = {"µs": lambda row: microseconds(row.seconds), "time": lambda row: f"{row.time_share:.1%}"}
    flops: Columns = {"FLOP": lambda row: scaled(row.flops)}
    nbytes: Columns = {"bytes": lambda row: scaled(row.nbytes)}
    if peaks:
        flops["of peak FLOP/s"] = lambda row: _share(row.flops_share)
        nbytes |= {"of peak bytes/s": lambda row: _share(row.bytes_share), "bound by": lambda row: row.bound or ""}
    if by == "node":
        first: Columns = {"node": lambda row: row.name, "operator": lambda row: row.kind}
        shared: Columns = {"shared": lambda row: _share(row.shared or None)}
        return first | time | shared | flops | nbytes | {"regions": lambda row: _listed(row.related, _MOST)}
    first = {"region": lambda row: row.name, "kind": lambda row: row.kind}
    runs: Columns = {"runs": lambda row: "" if row.executions is None else f"{row.executions:,}"}
    return first | time | runs | flops | nbytes | {"nodes": lambda row: _listed(row.related, None)}


def aligned(columns: Columns, rows: Sequence[Row]) -> list[str]:
    """Columns and lines as text, numbers to the right."""
    table = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = [str.rjust if name in NUMBERS else str.ljust for name in columns]
    return ["  ".join(map(lambda side, *cell: side(*cell), sides, line, widths)).rstrip() for line in table]


def microseconds(seconds: float) -> str:
    """A time, without its unit."""
    value = 1e6 * seconds
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def scaled(value: float | None) -> str:
    """A number with the prefix of its unit, which follows; nothing for none."""
    if value is None:
        return ""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _listed(names: Sequence[str], most: int | None) -> str:
    """Names up to a number of them and a length."""
    more = [f"{len(names) - most} more"] if most is not None and len(names) > most else []
    text = ", ".join([*names[:most], *more])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
