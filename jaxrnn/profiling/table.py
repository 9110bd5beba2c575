"""A profile as text: a few lines about the call and the machine, and a table that adds up to the call."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrnn.errors import InputError
from jaxrnn.profiling.precision import Narrowed
from jaxrnn.profiling.results import By, Profile, Row

#: Names of the table's columns that hold numbers.
NUMBERS = ("µs", "time", "shared", "runs", "FLOP", "of peak FLOP/s", "bytes", "of peak bytes/s")
_LONGEST = 60
REST = "dispatch, loop control, gaps"


def heading(profile: Profile) -> list[str]:
    """Lines that say what was measured and what the machine can do."""
    lines = [
        f"{profile.label}, on {profile.device}, {profile.threads} thread(s)",
        f"a call takes {_microseconds(profile.seconds)} µs (median of {profile.calls}; 80 % of them within "
        f"{_microseconds(profile.fastest)} to {_microseconds(profile.slowest)} µs)",
    ]
    xla = profile.xla
    if xla:
        words = {"flops": "FLOP", "transcendentals": " transcendental functions", "bytes": "B"}
        counted = ", ".join(f"{_scaled(xla[key])}{word}" for key, word in words.items() if key in xla)
        lines.append(f"XLA's cost analysis, each loop once: {counted}")
    peaks = profile.peaks
    if peaks is not None:
        sizes = ", ".join(f"{_scaled(rate)}B/s on {_binary(size)}" for size, rate in peaks.bandwidths.items())
        lines.append(f"peak, measured here: {_scaled(peaks.flops)}FLOP/s in {peaks.dtype}; {sizes}")
    if profile.narrowed is not None:
        lines += _of_narrowed(profile.narrowed, profile.seconds)
    return [*lines, *(f"note: {note}" for note in profile.notes)]


def _of_narrowed(narrowed: Narrowed, seconds: float) -> list[str]:
    """What narrower weights gain and cost."""
    lines = [
        f"weights in {narrowed.dtype}: {_scaled(narrowed.nbytes)}B instead of {_scaled(narrowed.wide_nbytes)}B; a call "
        f"takes {_microseconds(narrowed.wide_seconds)} µs with their own type, {narrowed.wide_seconds / seconds:.2f} "
        "times as long"
    ]
    lines += [
        f"output {each.name}, over {narrowed.steps} calls: differs by at most {each.largest:.2g}, where its largest "
        f"magnitude is {each.scale:.2g}; signal over error {each.decibels:.1f} dB"
        for each in narrowed.differences
    ]
    return lines


def columns(profile: Profile, by: By) -> list[str]:
    """The table's columns."""
    first = ["node", "operator"] if by == "node" else ["region", "kind"]
    middle = ["µs", "time", *(["shared"] if by == "node" else ["runs"]), "FLOP"]
    middle += ["of peak FLOP/s"] if profile.peaks is not None else []
    middle += ["bytes"]
    middle += ["of peak bytes/s", "bound by"] if profile.peaks is not None else []
    return [*first, *middle, "regions" if by == "node" else "nodes"]


def lines(profile: Profile, by: By, top: int | None) -> list[list[str]]:
    """The table's cells: regions or nodes, the rest of the call, and the call."""
    if top is not None and top < 1:
        raise InputError(f"top must be a number of lines above 0, not {top}")
    rows = profile.rows(by)
    shown, others = rows[:top], rows[len(rows[:top]) :]
    cells = [_cells(profile, row, by) for row in shown]
    if others:
        seconds = sum(row.seconds for row in others)
        counted = [sum(row.flops for row in others), sum(row.nbytes for row in others)]
        cells.append(_sum(profile, by, f"{len(others)} more", seconds, counted))
    if profile.rest > 0:
        cells.append(_sum(profile, by, REST, profile.rest, None))
    cost = profile.cost
    cells.append(_sum(profile, by, "call", profile.seconds, [cost.flops, cost.nbytes] if rows else None))
    return cells


def text_of(profile: Profile, by: By, top: int | None) -> str:
    """All of it as text."""
    names = columns(profile, by)
    cells = lines(profile, by, top)
    widths = [max(len(line[place]) for line in [names, *cells]) for place in range(len(names))]
    right = [name in NUMBERS for name in names]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([*heading(profile), "", line(names), *map(line, cells)])


def _cells(profile: Profile, row: Row, by: By) -> list[str]:
    shared = "" if row.shared == 0 else f"{row.shared:.0%}"
    ends = [shared] if by == "node" else [f"{row.executions:,}"]
    related = ", ".join(row.related)
    if by == "node" and len(row.related) > 3:
        related = f"{', '.join(row.related[:3])}, {len(row.related) - 3} more"
    peaked = profile.peaks is not None
    return [
        row.name,
        row.kind,
        _microseconds(row.seconds),
        f"{row.time_share:.1%}",
        *ends,
        _scaled(row.flops),
        *([_share(row.flops_share)] if peaked else []),
        _scaled(row.nbytes),
        *([_share(row.bytes_share), row.bound or ""] if peaked else []),
        related if len(related) <= _LONGEST else f"{related[: _LONGEST - 1]}…",
    ]


def _sum(profile: Profile, by: By, name: str, seconds: float, counted: Sequence[float] | None) -> list[str]:
    """A line that is no single region or node."""
    cells = dict.fromkeys(columns(profile, by), "")
    cells[next(iter(cells))] = name
    cells |= {"µs": _microseconds(seconds), "time": f"{seconds / profile.seconds:.1%}"}
    if counted is not None:
        cells |= {"FLOP": _scaled(counted[0]), "bytes": _scaled(counted[1])}
        if profile.peaks is not None and seconds > 0:
            cells["of peak FLOP/s"] = _share(counted[0] / seconds / profile.peaks.flops)
    return list(cells.values())


def _microseconds(seconds: float) -> str:
    value = 1e6 * seconds
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _scaled(value: float) -> str:
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} "


def _binary(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
