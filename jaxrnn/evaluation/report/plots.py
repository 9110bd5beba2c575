"""Plots as SVG inside the page: text stays text, and colours are the page's own, light or dark."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.errors import MissingPackageError
from jaxrnn.evaluation.report.wording import defined, number

#: Colours that are drawn with, and the page's that take their place.
INK, MUTED, GRID, FIRST, SECOND = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
COLOURS = {INK: "ink", MUTED: "muted", GRID: "line", FIRST: "first", SECOND: "second"}

#: Width and height of a plot, in inches of 72 points.
SIZE = (4.4, 2.7)

#: Points beyond which a scatter is drawn as a picture: each costs 100 bytes else.
MANY = 1500

#: Values beyond are not drawn: the drawing's own arithmetic does not reach so far.
LARGEST = 1e15

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Plot:
    """A plot for the page.

    Attributes:
        title: what stands above it.
        alt: what it shows, in words.
        svg: the drawing.
    """

    title: str
    alt: str
    svg: str


@contextmanager
def _axes(made: list[str], salt: str) -> Iterator[Any]:
    """Axes to draw on; behind it the drawing is the last of ``made``."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError("a report needs matplotlib: pip install 'jaxrnn[evaluate]'") from error
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        yield axes
        file = io.StringIO()
        unsaid = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # Text stays text: the reader's own fonts draw it, whatever is missing here.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(file, format="svg", transparent=True, metadata=unsaid, dpi=150)
    made.append(_inline(file.getvalue()))


def _inline(text: str) -> str:
    """A file of SVG as an element of the page: its size, names, colours and style are left to the page."""
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'<(g|text) id="[^"]*"', r"<\1", body)
    body = re.sub(r"(fill|stroke): (#\w{6})", lambda found: _coloured(*found.groups()), body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    width, height = (round(72 * side) for side in SIZE)
    return f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{body.strip()}'


def _coloured(what: str, colour: str) -> str:
    return f"{what}: var(--{COLOURS[colour]})" if colour in COLOURS else f"{what}: {colour}"


def named(label: str, unit: str) -> str:
    """A label with its unit."""
    return f"{label} ({unit})" if unit else label


def _shown(label: str) -> str:
    return label if len(label) <= 40 else label[:39] + "…"


def _drawable(values: Sequence[Any]) -> np.ndarray:
    found = np.array(defined(values))
    return found[np.abs(found) < LARGEST] if found.size else found


def edges(values: np.ndarray) -> np.ndarray:
    """Edges of a histogram's bins: Freedman and Diaconis's rule, from 8 to 50 bins."""
    low, high = float(values.min()), float(values.max())
    spread = high - low
    if spread <= 1e-9 * max(abs(low), abs(high), 1e-9):
        half = max(abs(low), 1.0) / 2
        return np.linspace(low - half, low + half, 10)
    quarters = np.percentile(values, [25, 75])
    width = 2 * (quarters[1] - quarters[0]) / len(values) ** (1 / 3)
    count = 50 if width <= 0 else min(50, max(8, math.ceil(spread / width)))
    return np.linspace(low, high, count + 1)


def histogram(
    label: str, unit: str, systems: Sequence[tuple[str, Sequence[Any]]], *, zero: bool = False
) -> Plot | None:
    """How a metric is distributed over files; None where there is nothing to draw.

    Args:
        label: the metric.
        unit: what it is in.
        systems: names and values, of one or two.
        zero: mark where it is 0.
    """
    found = [(name, values) for name, given in systems if (values := _drawable(given)).size]
    if not found:
        return None
    bins = edges(np.concatenate([values for _, values in found]))
    made: list[str] = []
    with _axes(made, f"histogram {label}") as axes:
        for (name, values), colour in zip(found, (FIRST, SECOND), strict=False):
            heights, _ = np.histogram(values, bins)
            axes.stairs(heights, bins, fill=True, color=colour, alpha=0.35)
            axes.stairs(heights, bins, color=colour, linewidth=1, label=_shown(name))
            if zero:
                axes.axvline(0, color=MUTED, linewidth=0.8)
            axes.axvline(float(np.median(values)), color=colour, linewidth=1.2, linestyle="--")
        axes.set_xlabel(_shown(named(label, unit)))
        axes.set_ylabel("files")
        axes.yaxis.get_major_locator().set_params(integer=True)
        if len(found) > 1:
            axes.legend()
    alt = "; ".join(
        f"{name}: {len(values)} files from {number(values.min(), 2)} to {number(values.max(), 2)}, "
        f"median {number(float(np.median(values)), 2)}"
        for name, values in found
    )
    return Plot(label, f"Histogram of {label}. {alt}. Dashed: median.", made[0])


def scatter(
    title: str,
    across: tuple[str, Sequence[Any]],
    up: tuple[str, Sequence[Any]],
    *,
    diagonal: bool = False,
    salt: str = "",
) -> Plot | None:
    """One column against another, a point a file; None where fewer than two files have both.

    Args:
        title: of the plot.
        across: label and values.
        up: label and values.
        diagonal: draw where both are equal, on equal axes.
        salt: what tells this plot from others of the same columns.
    """
    pairs = np.array(
        [
            (float(x), float(y))
            for x, y in zip(across[1], up[1], strict=True)
            if len(_drawable([x])) and len(_drawable([y]))
        ]
    ).reshape(-1, 2)
    if len(pairs) < 2:
        return None
    x, y = pairs.T
    made: list[str] = []
    with _axes(made, f"scatter {title} {salt}") as axes:
        if diagonal:
            ends = [float(pairs.min()), float(pairs.max())]
            axes.plot(ends, ends, color=MUTED, linewidth=0.8, linestyle="--")
        style = {"s": 9 if len(x) < 300 else 4, "linewidths": 0, "alpha": 0.8 if len(x) < 300 else 0.4}
        many = len(x) > MANY
        # A picture cannot take the page's colour: this one is seen on light and on dark.
        axes.scatter(x, y, color="#4f86c0" if many else FIRST, rasterized=many, **style)
        if not diagonal and x.min() > 0 and x.max() / x.min() > 100:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel(_shown(across[0]))
        axes.set_ylabel(_shown(up[0]))
    related = float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else math.nan
    alt = f"{len(x)} files: {up[0]} against {across[0]}; correlation {number(related, 2)}."
    if diagonal:
        alt += f" Above the dashed line, where both are equal: {int((y > x).sum())} files."
    return Plot(title, alt, made[0])


def curve(title: str, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> Plot:
    """Receiver operating characteristics: true positives over false ones.

    Args:
        title: of the plot.
        curves: by name, the share of negatives that are found wrongly and of positives that are found.
    """
    made: list[str] = []
    with _axes(made, f"curve {title}") as axes:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle="--")
        for (name, x, y), colour in zip(curves, (FIRST, SECOND), strict=False):
            axes.plot(x, y, color=colour, linewidth=1.5, label=_shown(name))
        axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        if len(curves) > 1:
            axes.legend(loc="lower right")
    alt = "; ".join(
        f"{name}: at a false positive rate of 0.1, {number(float(np.interp(0.1, x, y)), 2)} of the positives are found"
        for name, x, y in curves
    )
    return Plot(title, f"True positive rate against false positive rate. {alt}.", made[0])
