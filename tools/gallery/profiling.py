"""Where the time of the packaged denoiser goes, node by node."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import jaxrnn
from benchmarks.machine import processor
from jaxrnn.demo import PACKAGED
from jaxrnn.profiling import Profile, profile_model
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Frames of the recording; nodes that have a bar of their own.
FRAMES, NODES = 400, 6


def profiled() -> Profile:
    """Profile the packaged denoiser over many frames in one call."""
    model = jaxrnn.load(PACKAGED)
    return profile_model(model, "scan", length=FRAMES)


def make(folder: Path) -> list[Item]:
    """Draw a bar for each node, and for the call."""
    profile = profiled()
    first = profile.rows("node")[0]
    alt = (
        f"Bars of the time that each ONNX node takes of a call. {first.kind} {first.name!r} takes most, "
        f"{first.time_share:.0%}; the others share the rest."
    )
    return [
        drawing.save(folder, "profile", functools.partial(draw, profile), alt),
        Figures(
            {
                "a call": f"{1e3 * profile.seconds:.1f} ms",
                "a frame": f"{1e6 * profile.seconds / FRAMES:.1f} µs",
                "made on": f"{processor()}, {profile.threads} threads",
            }
        ),
    ]


def draw(profile: Profile) -> Figure:
    """Draw the shares of the call, the longest first, with sums below."""
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
    axes.set(xlabel=f"% of a call of {1e3 * profile.recorded:.2f} ms with the profiler, {FRAMES} frames")
    return figure


ENTRY = Entry(
    title="A profile by node",
    see=(
        f"A call over {FRAMES} frames, divided among the nodes of the ONNX file: the recurrence takes most, for it is "
        "all that has to wait from frame to frame. Shares of nodes that the compiler has fused are estimates, and the "
        "times are those of the machine that built this page."
    ),
    shown=profiled,
    make=make,
)
