"""The lines of a profile as text, in columns that add up to the call."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrnn.profiling.costs import Cost
from jaxrnn.profiling.rows import By, Call, Row

#: Names of the columns that hold numbers.
NUMBERS = ("µs", "time", "shared", "runs", "FLOP", "of peak FLOP/s", "bytes", "of peak bytes/s")
_LONGEST = 60


def columns(call: Call, by: By) -> list[str]:
    """The table's columns."""
    first = ["node", "operator", "µs", "time", "shared"] if by == "node" else ["region", "kind", "µs", "time", "runs"]
    counted = ["FLOP", "bytes"]
    if call.peaks is not None:
        counted = ["FLOP", "of peak FLOP/s", "bytes", "of peak bytes/s", "bound by"]
    return [*first, *counted, "regions" if by == "node" else "nodes"]


def row_cells(call: Call, by: By, row: Row) -> list[str]:
    """The line of a region or a node."""
    related = ", ".join(row.related)
    if by == "node" and len(row.related) > 3:
        related = f"{', '.join(row.related[:3])}, {len(row.related) - 3} more"
    cells = {
        "node": row.name,
        "region": row.name,
        "operator": row.kind,
        "kind": row.kind,
        "µs": microseconds(row.seconds),
        "time": f"{row.time_share:.1%}",
        "shared": "" if row.shared == 0 else f"{row.shared:.0%}",
        "runs": f"{row.executions:,}",
        "FLOP": scaled(row.flops),
        "of peak FLOP/s": _share(row.flops_share),
        "bytes": scaled(row.nbytes),
        "of peak bytes/s": _share(row.bytes_share),
        "bound by": row.bound or "",
    }
    last = related if len(related) <= _LONGEST else f"{related[: _LONGEST - 1]}…"
    return [*(cells[name] for name in columns(call, by)[:-1]), last]


def sum_cells(call: Call, by: By, name: str, seconds: float, cost: Cost | None) -> list[str]:
    """A line that is no single region or node."""
    names = columns(call, by)
    cells = {names[0]: name, "µs": microseconds(seconds), "time": f"{seconds / call.seconds:.1%}"}
    if cost is not None:
        cells |= {"FLOP": scaled(cost.flops), "bytes": scaled(cost.nbytes)}
        if call.peaks is not None and seconds > 0:
            cells["of peak FLOP/s"] = _share(cost.flops / seconds / call.peaks.flops)
    return [cells.get(column, "") for column in names]


def aligned(names: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns and their lines as text, numbers to the right."""
    table = [names, *lines]
    widths = [max(len(line[place]) for line in table) for place in range(len(names))]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if name in NUMBERS else text.ljust(width)
            for text, width, name in zip(texts, widths, names, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return list(map(line, table))


def microseconds(seconds: float) -> str:
    """A time, without its unit."""
    value = 1e6 * seconds
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def scaled(value: float) -> str:
    """A number with the prefix of its unit, which follows."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
