"""The lines of a profile as text, in columns that add up to the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxrnn.profiling.rows import By, Row

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
