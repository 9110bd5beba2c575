"""Profiles: regions with times, rows of the table, and the text of the table."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxrnn._files.messages import bytes_of, short_repr
from jaxrnn.errors import InputError, check_count
from jaxrnn.profiling.peaks import Peaks
from jaxrnn.steps.stepspec import said_past

By = Literal["node", "region"]
#: A call below this share of both peaks is bound by neither peak.
_NEAR = 0.25


@short_repr
@dataclass(frozen=True, eq=False)
class Region:
    """An instruction of the compiled program, such as a fusion or a matrix product, with all executions in a call.

    Attributes:
        name: name in XLA; the name of a fusion lists the last operations of the fusion.
        opcode: opcode in XLA.
        nodes: ONNX nodes (or scopes) of the region, with estimated shares of the work.
        seconds: time in a call, without the time that the profiler adds.
        executions: executions in a call; several in a loop.
    """

    name: str
    opcode: str
    nodes: dict[str, float]
    seconds: float
    executions: int


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
    """

    name: str
    seconds: float
    time_share: float
    kind: str = ""
    related: tuple[str, ...] = ()
    shared: float = 0.0
    executions: int | None = None


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
        has_loops: True if the program has a loop, so that `xla` can be less than the work of a call.
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
    has_loops: bool
    peaks: Peaks | None
    operators: dict[str, str]
    notes: tuple[str, ...]
    low_precision: LowPrecision | None = None
    past: int | None = None

    @property
    def shares_of_peaks(self) -> tuple[float, float] | None:
        """The shares of peak operations and bytes per second in a call; None without peaks, or if a loop hides work."""
        if self.peaks is None or self.has_loops or not {"flops", "bytes"} <= self.xla.keys():
            return None
        nbytes = self.xla["bytes"]
        return self.xla["flops"] / self.seconds / self.peaks.flops, nbytes / self.seconds / self.peaks.bandwidth(nbytes)

    @property
    def bound(self) -> str | None:
        """The nearer peak of a call, ``compute`` or ``memory``; ``neither`` if both are far, None if unknown."""
        shares = self.shares_of_peaks
        if shares is None:
            return None
        return "neither" if max(shares) < _NEAR else "compute" if shares[0] >= shares[1] else "memory"

    def rows(self, by: By = "region") -> tuple[Row, ...]:
        """Return the rows of the table, the longest time first.

        Args:
            by: ``"region"`` for a row per instruction of the compiled program, or ``"node"`` for a row per ONNX node
                (or scope). XLA fuses operations of several nodes, and no measurement divides a fusion: the time is
                divided in proportion to the sizes of the results, and `Row.shared` is the share of such estimates.
        """
        if by not in ("node", "region"):
            raise InputError(f"by must be 'node' or 'region', not {by!r}")
        rows = []
        if by == "region":
            for region in self.regions:
                several = len(region.nodes) > 1
                related = tuple(f"{name} {share:.0%}" if several else name for name, share in region.nodes.items())
                rows.append(self._row(region.name, region.opcode, related, {region: 1.0}))
        else:
            shares: dict[str, dict[Region, float]] = defaultdict(dict)
            for region in self.regions:
                for name, share in (region.nodes or {"": 1.0}).items():
                    shares[name][region] = share
            for name, regions in shares.items():
                kind = self.operators.get(name, "") if name else "no node"
                rows.append(self._row(name or "(none)", kind, tuple(region.name for region in regions), regions))
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def _row(self, name: str, kind: str, related: tuple[str, ...], shares: dict[Region, float]) -> Row:
        seconds = sum(share * region.seconds for region, share in shares.items())
        divided = sum(share * region.seconds for region, share in shares.items() if share < 1)
        shared, executions = divided / seconds if seconds else 0.0, max(region.executions for region in shares)
        return Row(name, seconds, seconds / self.seconds, kind, related, shared, executions)

    def _sum(self, name: str, seconds: float) -> Row:
        return Row(name, seconds, seconds / self.seconds)

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
            lines.append(self._sum(f"{len(others)} more", sum(row.seconds for row in others)))
        if self.rest > 0:
            lines.append(self._sum(REST, self.rest))
        return [*lines, self._sum("call", self.seconds)]

    def data(self, by: By = "region") -> dict[str, Any]:
        """Return the profile in plain types, with the rows of the table as ``rows``."""
        facts = dataclasses.asdict(replace(self, regions=(), operators={}))
        del facts["regions"], facts["operators"]  # the rows show these
        in_regions = sum(region.seconds for region in self.regions)
        rows = [dataclasses.asdict(row) for row in self.rows(by)]
        shares = dict(zip(("flops_share", "bytes_share"), self.shares_of_peaks or (None, None), strict=True))
        return {**facts, "in_regions": in_regions, **shares, "bound": self.bound, "by": by, "rows": rows}

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
            lines.append(f"XLA's cost analysis{', each loop once' if self.has_loops else ''}: {counted}")
        if self.peaks is not None:
            sizes = ", ".join(f"{scaled(rate)}B/s on {bytes_of(size)}" for size, rate in self.peaks.bandwidths.items())
            lines.append(f"peak, measured here: {scaled(self.peaks.flops)}FLOP/s in {self.peaks.dtype}; {sizes}")
        if (shares := self.shares_of_peaks) is not None:
            flops, nbytes = (
                f"{share:.0%} of the peak {unit}/s" for share, unit in zip(shares, ("FLOP", "B"), strict=True)
            )
            lines.append(f"a call reaches {flops} and {nbytes}; bound by {self.bound}")
        if self.low_precision is not None:
            lines += self.low_precision.lines(self.seconds)
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def table(self, by: By = "region", top: int | None = None) -> str:
        """Return heading and table as text, with arguments as in `lines`."""
        return "\n".join([*self.heading(), "", *aligned(columns(by), self.lines(by, top))])


#: Columns with numbers.
NUMBERS = ("µs", "time", "shared", "runs")
_LONGEST, _MOST = 60, 3

Columns = dict[str, Callable[[Row], str]]


def columns(by: By) -> Columns:
    """Return the columns of the table, each with a function that formats the cell of a row."""
    time: Columns = {"µs": lambda row: microseconds(row.seconds), "time": lambda row: f"{row.time_share:.1%}"}
    if by == "node":
        first: Columns = {"node": lambda row: row.name, "operator": lambda row: row.kind}
        shared: Columns = {"shared": lambda row: f"{row.shared:.0%}" if row.shared else ""}
        return first | time | shared | {"regions": lambda row: _listed(row.related, _MOST)}
    runs: Columns = {"runs": lambda row: "" if row.executions is None else f"{row.executions:,}"}
    first = {"region": lambda row: row.name, "kind": lambda row: row.kind}
    return first | time | runs | {"nodes": lambda row: _listed(row.related, None)}


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


def scaled(value: float) -> str:
    """Format a number with the prefix of a unit; the caller appends the unit."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _listed(names: Sequence[str], most: int | None) -> str:
    """Join names, up to `most` names and a maximal length."""
    more = [f"{len(names) - most} more"] if most is not None and len(names) > most else []
    text = ", ".join([*names[:most], *more])
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
