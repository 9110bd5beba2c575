"""What a profile holds: regions with their times and costs, what they add up to, and the machine's limits beside it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from jaxrnn.errors import InputError
from jaxrnn.profiling.costs import Cost
from jaxrnn.profiling.peaks import Peaks
from jaxrnn.profiling.precision import Narrowed

By = Literal["node", "region"]
#: A region that reaches less of either limit is held up by something else.
_NEAR = 0.25


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


@dataclass(frozen=True)
class Row:
    """A line of the table: a region, or all that was done for a node.

    Attributes:
        name: of the region or node.
        kind: the region's opcode, or the node's operator.
        related: nodes of a region, with shares where there are several; regions of a node.
        seconds: in a call.
        time_share: of the seconds of the whole call.
        shared: the part of the seconds that is an estimate, because a region of several nodes was divided.
        executions: in a call.
        flops: floating-point operations in a call.
        nbytes: bytes read and written in a call.
        flops_share: of the peak floating-point operations a second; None where no peak was measured.
        bytes_share: of the peak bytes a second for the working set.
        bound: the nearer limit, ``compute`` or ``memory``; ``neither`` where both are far.
    """

    name: str
    kind: str
    related: tuple[str, ...]
    seconds: float
    time_share: float
    shared: float
    executions: int
    flops: float
    nbytes: float
    flops_share: float | None
    bytes_share: float | None
    bound: str | None


@dataclass(frozen=True)
class Profile:
    """Where the time of a compiled function goes.

    Attributes:
        label: what was profiled.
        device: what it ran on.
        threads: processors that the process may use.
        seconds: of a call, from the call to its results, without the profiler: the median.
        fastest, slowest: the 10th and 90th percentile of the same.
        calls: how many calls were timed.
        regions: the instructions that were seen, the longest first; empty where the backend reports none.
        rest: seconds of a call in no region: dispatch, loop control, and gaps between regions. 0 where the
            regions, recorded, took longer than the call; a note says so.
        xla: XLA's own cost analysis of the whole program (``flops``, ``transcendentals``, ``bytes``); it counts one
            trip of a loop.
        peaks: the machine's limits; None if they were not measured.
        operators: the operator of every node, by name.
        notes: what to know when reading the figures.
        narrowed: what narrower weights gain and cost, where they were asked for.
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
    narrowed: Narrowed | None = None

    @property
    def cost(self) -> Cost:
        """Operations and bytes of all regions, loops with all their trips."""
        return sum((region.cost for region in self.regions), Cost())

    def rows(self, by: By = "region") -> tuple[Row, ...]:
        """The lines of the table, the longest time first.

        Args:
            by: ``"region"``: one line for each instruction of the compiled program. ``"node"``: one for each ONNX
                node (or scope); the time, operations and bytes of a region that works for several nodes are divided
                among them by the operations that each needs, and `Row.shared` says how much of a line was so found.
        """
        if by not in ("node", "region"):
            raise InputError(f"by must be 'node' or 'region', not {by!r}")
        rows = [self._of_region(region) for region in self.regions] if by == "region" else self._of_nodes()
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def _of_region(self, region: Region) -> Row:
        several = len(region.nodes) > 1
        related = tuple(f"{name} {share:.0%}" if several else name for name, share in region.nodes.items())
        return self._row(region.name, region.opcode, related, [(region, 1.0)], 0.0)

    def _of_nodes(self) -> list[Row]:
        parts: dict[str, list[tuple[Region, float]]] = defaultdict(list)
        for region in self.regions:
            for name, share in (region.nodes or {"": 1.0}).items():
                parts[name].append((region, share))
        rows = []
        for name, of_node in parts.items():
            spent = sum(share * region.seconds for region, share in of_node)
            estimated = sum(share * region.seconds for region, share in of_node if len(region.nodes) > 1)
            kind = self.operators.get(name, "") if name else "no node"
            related = tuple(region.name for region, _ in of_node)
            rows.append(self._row(name or "(none)", kind, related, of_node, estimated / spent if spent else 0.0))
        return rows

    def _row(
        self, name: str, kind: str, related: tuple[str, ...], parts: list[tuple[Region, float]], shared: float
    ) -> Row:
        seconds = sum(share * region.seconds for region, share in parts)
        cost = sum((region.cost * share for region, share in parts), Cost())
        flops_share = bytes_share = bound = None
        if self.peaks is not None and seconds > 0:
            # The time that the bytes would take at the limit, each region's at that of its own working set.
            least = sum(
                share * region.cost.nbytes / self.peaks.bandwidth(region.working_set) for region, share in parts
            )
            flops_share, bytes_share = cost.flops / self.peaks.flops / seconds, least / seconds
            nearer = "compute" if flops_share >= bytes_share else "memory"
            bound = nearer if max(flops_share, bytes_share) >= _NEAR else "neither"
        executions = max(region.executions for region, _ in parts)
        share = seconds / self.seconds
        return Row(
            name,
            kind,
            related,
            seconds,
            share,
            shared,
            executions,
            cost.flops,
            cost.nbytes,
            flops_share,
            bytes_share,
            bound,
        )

    def data(self, by: By = "region") -> dict[str, Any]:
        """All of it in plain types, the lines of the table under ``rows``."""
        named = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("regions", "peaks", "operators", "narrowed")
        }
        cost = dataclasses.asdict(self.cost)
        peaks, narrowed = (None if part is None else dataclasses.asdict(part) for part in (self.peaks, self.narrowed))
        in_regions = sum(region.seconds for region in self.regions)
        rows = [dataclasses.asdict(row) for row in self.rows(by)]
        return {
            **named,
            "narrowed": narrowed,
            "in_regions": in_regions,
            "cost": cost,
            "peaks": peaks,
            "by": by,
            "rows": rows,
        }

    def table(self, by: By = "region", top: int | None = None) -> str:
        """The table as text.

        Args:
            by: as in `rows`.
            top: lines to show; the others are added up in one. None for all.
        """
        from jaxrnn.profiling.table import text_of

        return text_of(self, by, top)
