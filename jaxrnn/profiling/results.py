"""What a profile holds: regions with their times and costs, what they add up to, and the machine's limits beside it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxrnn._files.messages import brief, bytes_of
from jaxrnn.errors import InputError, check_count
from jaxrnn.profiling.costs import Cost
from jaxrnn.profiling.peaks import Peaks
from jaxrnn.profiling.precision import LowPrecision
from jaxrnn.profiling.rows import By, Call, Region, Row
from jaxrnn.profiling.table import aligned, columns, microseconds, scaled

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
