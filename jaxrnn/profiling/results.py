"""Profiles: regions with times and costs, rows of the table, and the text of the table."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxrnn._files.messages import bytes_of, short_repr
from jaxrnn.errors import InputError, check_count
from jaxrnn.profiling.hlo import Cost
from jaxrnn.profiling.timing import Peaks
from jaxrnn.steps.stepspec import said_past

By = Literal["node", "region"]
#: A region below this share of both peaks is bound by neither peak.
_NEAR = 0.25


@short_repr
@dataclass(frozen=True)
class Region:
    """An instruction of the compiled program, such as a fusion or a matrix product, with all executions in a call.

    Attributes:
        name: name in XLA; the name of a fusion lists the last operations of the fusion.
        opcode: opcode in XLA.
        nodes: ONNX nodes (or scopes) of the region, with estimated shares of the work.
        seconds: time in a call, without the time that the profiler adds.
        executions: executions in a call; several in a loop.
        cost: operations and bytes of all executions, computed from shapes.
        working_set: bytes between two uses of the same data: the bytes of the enclosing loop, or of the call.
    """

    name: str
    opcode: str
    nodes: dict[str, float]
    seconds: float
    executions: int
    cost: Cost
    working_set: float


@short_repr
@dataclass(frozen=True)
class Row:
    """A row of the table: a region, a node, or a sum of rows.

    Attributes:
        name: name of the region or node.
        seconds: time in a call.
        time_share: share of the time of the whole call.
        kind: opcode of the region, or operator of the node.
        related: nodes of a region, with shares if there are several; or regions of a node.
        shared: share of the time that is an estimate, because a region of several nodes was divided.
        executions: executions in a call.
        flops: floating-point operations in a call, or None if unknown.
        nbytes: bytes read and written in a call, or None if unknown.
        flops_share: share of the peak floating-point operations per second, or None without peaks.
        bytes_share: share of the peak bytes per second for the working set, or None without peaks.
        bound: the nearer peak, ``compute`` or ``memory``, or ``neither`` if both are far; None without peaks.
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


#: Regions, each with the share that belongs to a row.
Shares = Sequence[tuple[Region, float]]


@short_repr
@dataclass(frozen=True)
class OutputDifference:
    """The difference of an output from full precision, over all compared calls.

    Attributes:
        name: name of the output.
        largest: largest absolute difference.
        scale: largest magnitude of the output in full precision.
        decibels: ratio of the energies of output and difference in dB; infinite for equal outputs.
    """

    name: str
    largest: float
    scale: float
    decibels: float


@short_repr
@dataclass(frozen=True)
class LowPrecision:
    """The effect of a compute dtype on size, time and outputs.

    Attributes:
        dtype: compute dtype, which is the type of the weights of products.
        nbytes: size of the folded parameters.
        full_nbytes: size of the folded parameters in full precision.
        full_seconds: median time of a call in full precision.
        steps: number of compared calls.
        differences: difference of each floating-point output.
    """

    dtype: str
    nbytes: int
    full_nbytes: int
    full_seconds: float
    steps: int
    differences: tuple[OutputDifference, ...]

    def lines(self, seconds: float) -> list[str]:
        """Return lines of text; `seconds` is the time of a call in low precision."""
        lines = [
            f"weights in {self.dtype}: {scaled(self.nbytes)}B instead of {scaled(self.full_nbytes)}B; a call takes "
            f"{microseconds(self.full_seconds)} µs in full precision, {self.full_seconds / seconds:.2f} times as long"
        ]
        return lines + [
            f"output {each.name}, over {self.steps} calls: largest difference {each.largest:.2g}, largest magnitude "
            f"{each.scale:.2g}, signal-to-error ratio {each.decibels:.1f} dB"
            for each in self.differences
        ]


#: Name of the row for the time outside of regions.
REST = "dispatch, loop control, gaps"


@short_repr
@dataclass(frozen=True)
class Profile:
    """The time of a compiled function by region and by node.

    Attributes:
        label: name of the function.
        device: device of the arguments.
        threads: processors that are available to the process.
        seconds: median time of a call until the results are ready, without the profiler.
        fastest: 10th percentile of the time of a call.
        slowest: 90th percentile of the time of a call.
        calls: number of timed calls.
        regions: recorded instructions, the longest first; empty if the backend reports no regions.
        rest: time of a call outside of regions: dispatch, loop control, and gaps between regions. The rest is 0 if the
            recorded regions took longer than the call, which a note explains.
        xla: totals of XLA's cost analysis (``flops``, ``transcendentals``, ``bytes``), with one trip of each loop.
        peaks: peaks of the machine, or None if not measured.
        operators: a dict from nodes to operators.
        notes: notes on the figures.
        low_precision: effect of the compute dtype, or None in full precision.
        past: the `past` that changed the model, as in `jaxrnn.stream`; otherwise None.
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
    past: int | None = None

    @property
    def cost(self) -> Cost:
        """Operations and bytes of all regions, with all trips of loops."""
        return sum((region.cost for region in self.regions), Cost())

    def rows(self, by: By = "region") -> tuple[Row, ...]:
        """Return the rows of the table, the longest time first.

        Args:
            by: ``"region"`` for a row per instruction of the compiled program, or ``"node"`` for a row per ONNX node
                (or scope). Time, operations and bytes of a region with several nodes are divided in proportion to the
                operations of the nodes; `Row.shared` is the share of such estimates.
        """
        if by not in ("node", "region"):
            raise InputError(f"by must be 'node' or 'region', not {by!r}")
        rows = []
        if by == "region":
            for region in self.regions:
                several = len(region.nodes) > 1
                related = tuple(f"{name} {share:.0%}" if several else name for name, share in region.nodes.items())
                rows.append(self._row(region.name, region.opcode, related, [(region, 1.0)]))
        else:
            shares: dict[str, list[tuple[Region, float]]] = defaultdict(list)
            for region in self.regions:
                for name, share in (region.nodes or {"": 1.0}).items():
                    shares[name].append((region, share))
            for name, of_node in shares.items():
                kind = self.operators.get(name, "") if name else "no node"
                rows.append(self._row(name or "(none)", kind, tuple(region.name for region, _ in of_node), of_node))
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def _row(self, name: str, kind: str, related: tuple[str, ...], shares: Shares) -> Row:
        seconds = sum(share * region.seconds for region, share in shares)
        divided = sum(share * region.seconds for region, share in shares if share < 1)
        bytes_share = bound = None
        row = self._sum(name, seconds, sum((region.cost * share for region, share in shares), Cost()))
        if self.peaks is not None and row.flops_share is not None:
            # The least time for the bytes: the peak of each region depends on its working set.
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

    def _sum(self, name: str, seconds: float, cost: Cost | None = None) -> Row:
        """Return a row without a share of the peak bandwidth: a sum of rows, or time outside of regions."""
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

    def lines(self, by: By = "region", top: int | None = None) -> list[Row]:
        """Return the rows of the table and sums: the omitted rows, the rest of the call, and the call.

        Args:
            by: as in `rows`.
            top: number of rows before the sum of the omitted rows; by default all rows.
        """
        if top is not None:
            check_count("top", top)
        rows = self.rows(by)
        lines, others = list(rows[:top]), rows[len(rows[:top]) :]
        if others:
            cost = Cost(sum(row.flops or 0.0 for row in others), 0.0, sum(row.nbytes or 0.0 for row in others))
            lines.append(self._sum(f"{len(others)} more", sum(row.seconds for row in others), cost))
        if self.rest > 0:
            lines.append(self._sum(REST, self.rest))
        return [*lines, self._sum("call", self.seconds, self.cost if rows else None)]

    def data(self, by: By = "region") -> dict[str, Any]:
        """Return the profile in plain types, with the rows of the table as ``rows``."""
        facts = dataclasses.asdict(replace(self, regions=(), operators={}))
        del facts["regions"], facts["operators"]  # the rows show these
        in_regions = sum(region.seconds for region in self.regions)
        rows = [dataclasses.asdict(row) for row in self.rows(by)]
        return {**facts, "in_regions": in_regions, "cost": dataclasses.asdict(self.cost), "by": by, "rows": rows}

    def heading(self) -> list[str]:
        """Return the lines above the table: label, time of a call, XLA's cost analysis, peaks and notes."""
        lines = [
            f"{self.label}, on {self.device}, {self.threads} thread(s)",
            f"a call takes {microseconds(self.seconds)} µs (median of {self.calls}; 80 % of them within "
            f"{microseconds(self.fastest)} to {microseconds(self.slowest)} µs)",
        ]
        if self.past is not None:
            lines.append(f"the model is {said_past(self.past)}")
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
        """Return heading and table as text, with arguments as in `lines`."""
        cells = columns(by, peaks=self.peaks is not None)
        return "\n".join([*self.heading(), "", *aligned(cells, self.lines(by, top))])


#: Columns with numbers.
NUMBERS = ("µs", "time", "shared", "runs", "FLOP", "of peak FLOP/s", "bytes", "of peak bytes/s")
_LONGEST, _MOST = 60, 3

Columns = dict[str, Callable[[Row], str]]


def columns(by: By, *, peaks: bool) -> Columns:
    """Return the columns of the table, each with a function that formats the cell of a row."""
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
    """Format rows as lines of text with aligned columns."""
    table = [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = [str.rjust if name in NUMBERS else str.ljust for name in columns]
    return ["  ".join(map(lambda side, *cell: side(*cell), sides, line, widths)).rstrip() for line in table]


def microseconds(seconds: float) -> str:
    """Format a time in microseconds, without the unit."""
    value = 1e6 * seconds
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def scaled(value: float | None) -> str:
    """Format a number with the prefix of a unit; the caller appends the unit."""
    if value is None:
        return ""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _listed(names: Sequence[str], most: int | None) -> str:
    """Join names, up to `most` names and a maximal length."""
    more = [f"{len(names) - most} more"] if most is not None and len(names) > most else []
    text = ", ".join([*names[:most], *more])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
