"""The lines of a profile's table: what a region of the compiled program, or all that is done for a node, costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxrnn.profiling.costs import Cost
from jaxrnn.profiling.peaks import Peaks

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


#: Regions with the share of each that a line stands for.
_Parts = Sequence[tuple[Region, float]]


@dataclass(frozen=True)
class Call:
    """What the lines of one call are held against: its seconds, and the machine's limits if they were measured."""

    seconds: float
    peaks: Peaks | None

    def by_region(self, regions: Sequence[Region]) -> list[Row]:
        """A line for each region."""
        rows = []
        for region in regions:
            several = len(region.nodes) > 1
            related = tuple(f"{name} {share:.0%}" if several else name for name, share in region.nodes.items())
            rows.append(self._row(region.name, region.opcode, related, [(region, 1.0)], 0.0))
        return rows

    def by_node(self, regions: Sequence[Region], operators: Mapping[str, str]) -> list[Row]:
        """A line for each node, and one for what could be traced to none."""
        parts: dict[str, list[tuple[Region, float]]] = defaultdict(list)
        for region in regions:
            for name, share in (region.nodes or {"": 1.0}).items():
                parts[name].append((region, share))
        rows = []
        for name, of_node in parts.items():
            seconds = sum(share * region.seconds for region, share in of_node)
            estimated = sum(share * region.seconds for region, share in of_node if len(region.nodes) > 1)
            kind = operators.get(name, "") if name else "no node"
            related = tuple(region.name for region, _ in of_node)
            rows.append(self._row(name or "(none)", kind, related, of_node, estimated / seconds if seconds else 0.0))
        return rows

    def _row(self, name: str, kind: str, related: tuple[str, ...], parts: _Parts, shared: float) -> Row:
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
        return Row(
            name=name,
            kind=kind,
            related=related,
            seconds=seconds,
            time_share=seconds / self.seconds,
            shared=shared,
            executions=max(region.executions for region, _ in parts),
            flops=cost.flops,
            nbytes=cost.nbytes,
            flops_share=flops_share,
            bytes_share=bytes_share,
            bound=bound,
        )
