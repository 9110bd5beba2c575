"""The style of the gallery's pictures: as wide as text on a phone, each for a light page and for a dark page."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.gallery.entry import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inches. On a phone, whose text is 360 pixels wide, letters of 9 points are 10 pixels high.
WIDTH = 4.5
#: Dots per inch of images inside a picture.
DOTS = 120

#: Colours of text, secondary elements, background and curves; all pairs differ for people who do not see red or green.
_COLOURS = {
    "light": ("#24292f", "#8a949e", "#ffffff", ("#0063a3", "#c85200", "#00805e", "#a3478a", "#8a6d00", "#5d5d6e")),
    "dark": ("#e4e6eb", "#8b93a1", "#1e2129", ("#5cb3f0", "#ff9a4d", "#43c59e", "#e58ccb", "#e0c04c", "#b6b6c8")),
}


def save(folder: Path, name: str, draw: Callable[[], Figure], alt: str) -> Picture:
    """Write a picture for each theme as SVG, with letters as outlines and with a background.

    Args:
        folder: the folder for ``NAME.light.svg`` and ``NAME.dark.svg``.
        name: the name of the picture.
        draw: draws the picture, once for each theme; ``C0`` to ``C5`` are the colours of curves.
        alt: a description for readers who do not see the picture.
    """
    import matplotlib as mpl

    width = height = 0.0
    for look in _COLOURS:
        settings: Any = {**mpl.rcParamsDefault, **_settings(look), "backend": "agg"}
        with mpl.rc_context(settings):
            figure = draw()
            figure.savefig(folder / f"{name}.{look}.svg", format="svg", dpi=DOTS, metadata={"Date": None})
            width, height = 72 * figure.get_size_inches()
    return Picture(name, alt, round(width), round(height))


@functools.cache
def _settings(look: str) -> dict[str, Any]:
    from cycler import cycler

    ink, quiet, paper, curves = _COLOURS[look]
    inked = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor", "legend.labelcolor")
    stands_back = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color", "patch.edgecolor")
    return {
        **dict.fromkeys(inked, ink),
        **dict.fromkeys(stands_back, quiet),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), paper),
        "axes.prop_cycle": cycler(color=curves),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 9,
        "font.size": 9,
        "grid.alpha": 0.35,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "svg.fonttype": "path",
        "svg.hashsalt": "jaxrnn",
    }


def canvas(height: float) -> Figure:
    """Return an empty figure of a height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def ink() -> str:
    """Return the colour of text in the current theme."""
    import matplotlib as mpl

    return mpl.rcParams["text.color"]


def quiet() -> str:
    """Return the colour of secondary elements in the current theme."""
    import matplotlib as mpl

    return mpl.rcParams["grid.color"]
