"""The lines of a profile's table: what a region of the compiled program, or all that is done for a node, costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jaxrnn._files.messages import brief
from jaxrnn.profiling.costs import Cost
from jaxrnn.profiling.peaks import Peaks

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
