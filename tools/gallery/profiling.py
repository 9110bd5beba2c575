"""Where the time of the packaged denoiser goes, node by node."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import jaxrnn
from jaxrnn.demo import PACKAGED
from tools.gallery import drawing
from tools.gallery.entry import Entry, Item, Printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxrnn.profiling import Profile

#: Frames of the recording; nodes that have a bar of their own.
FRAMES, NODES = 1_000, 6


def profiled() -> Profile:
    """The packaged denoiser over a recording of a thousand frames in one call."""
    from jaxrnn.profiling import profile_model

    model = jaxrnn.load(PACKAGED)
    return profile_model(model, "scan", length=FRAMES, peaks=False)


def make(folder: Path) -> list[Item]:
    """A bar a node, and the table."""
    profile = profiled()
    first = profile.rows("node")[0]
    alt = (
        f"Bars of the time that each ONNX node takes of a call. {first.kind} {first.name!r} takes most, "
        f"{first.time_share:.0%}; the others share the rest."
    )
    return [
        drawing.save(folder, "profile", functools.partial(draw, profile), alt),
        Printed(profile.table("node", NODES)),
    ]


def draw(profile: Profile) -> Figure:
    """Shares of the call, the longest first, with their sums below."""
    rows = profile.lines("node", NODES)[:-1]
    figure = drawing.canvas(0.7 + 0.28 * len(rows))
    axes = figure.subplots()
    nodes = [row.kind != "" for row in rows]
    names = [f"{row.name} ({row.kind})" if node else row.name for row, node in zip(rows, nodes, strict=True)]
    bars = axes.barh(
        names, [100 * row.time_share for row in rows], color=["C0" if node else drawing.quiet() for node in nodes]
    )
    axes.bar_label(bars, [f"{row.time_share:.1%}" for row in rows], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set(xlabel=f"% of a call of {1e3 * profile.seconds:.2f} ms, {FRAMES} frames")
    return figure


ENTRY = Entry(
    title="A profile by node",
    see=(
        "A call over a thousand frames, divided among the nodes of the ONNX file: the recurrence takes most, for it is "
        "all that has to wait from frame to frame. The lines add up to the call; times are of the machine that built "
        "this page."
    ),
    shown=profiled,
    make=make,
)
