"""The facts of a stream beside what they are about: which input frames an output frame depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from tools.gallery import drawing
from tools.gallery.entry import Entry, Item, Printed
from tools.gallery.small_network import convolved, recurrent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRAMES, PULSE = 40, 4
Network = Callable[[jax.Array], jax.Array]


def with_slopes(network: Network) -> tuple[jaxrnn.Streamed, np.ndarray]:
    """Return a stream with its spec, and derivatives ``[output, input]``."""
    x = jnp.sin(jnp.arange(FRAMES, dtype=jnp.float32))
    streamed = jaxrnn.stream(network, x, axes=0, pulse=PULSE)
    return streamed, np.asarray(jax.jacobian(network)(x))


def make(folder: Path) -> list[Item]:
    """Draw a panel for a network with a finite receptive field, and a panel for a network with an infinite one."""
    panels = {"two convolutions": convolved, "and a recurrence": recurrent}
    found = {title: with_slopes(network) for title, network in panels.items()}
    streamed = found["two convolutions"][0]
    alt = (
        f"Two grids of {FRAMES // 2} output frames by {FRAMES} input frames, a cell dark where the output depends on "
        f"the input. On the left a band of {streamed.receptive_field} frames, on the right all of the past, fading; "
        f"both end at the line of the look-ahead, {streamed.look_ahead} frames after the diagonal."
    )
    picture = drawing.save(folder, "facts", lambda: draw(found), alt)
    return [picture, Printed(streamed.table())]


def draw(found: dict[str, tuple[jaxrnn.Streamed, np.ndarray]]) -> Figure:
    """Draw the derivatives, with lines for look-ahead and receptive field."""
    figure = drawing.canvas(3.3)
    grids = figure.subplots(1, len(found), sharex=True, sharey=True)
    for axes, (title, (streamed, derivatives)) in zip(grids, found.items(), strict=True):
        _grid(axes, streamed, derivatives)
        axes.set(title=title, xlabel="input frame")
    grids[0].set_ylabel("output frame")
    labels = {label: line for axes in grids for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=2)
    return figure


def _grid(axes: Axes, streamed: jaxrnn.Streamed, derivatives: np.ndarray) -> None:
    shares = np.abs(derivatives) / np.abs(derivatives).max(axis=1, keepdims=True)
    masked = np.ma.masked_where(shares == 0, np.sqrt(shares))
    axes.imshow(masked, aspect="auto", cmap="Blues", vmin=-0.6, vmax=1.4, interpolation="nearest")
    outputs = np.arange(len(derivatives))
    place = outputs / float(streamed.rate)
    latest = place + streamed.look_ahead
    axes.plot(place, outputs, color=drawing.ink(), linestyle=":", linewidth=1, label="its own place")
    lines = {"look-ahead": ("C1", latest)}
    if streamed.receptive_field is not None:
        lines["receptive field"] = ("C2", latest - streamed.receptive_field)
    lines[f"leaves, in pulses of {PULSE}"] = ("C3", leaving(streamed, outputs) - 1)
    edges = np.arange(len(derivatives) + 1) - 0.5
    for label, (colour, frames) in lines.items():
        axes.stairs(frames + 0.5, edges, orientation="horizontal", baseline=None, color=colour, label=label, lw=1.4)
    axes.set(yticks=outputs[::5], xlim=(-0.5, derivatives.shape[1] - 0.5), ylim=(edges[-1], edges[0]))


def leaving(streamed: jaxrnn.Streamed, outputs: np.ndarray) -> np.ndarray:
    """Return the number of input frames that have come when each output frame leaves."""
    each = int(streamed.rate * streamed.pulse)
    return ((outputs + streamed.delay) // each + 1) * streamed.pulse


ENTRY = Entry(
    title="What a stream knows about itself",
    see=(
        "A row is an output frame, and its shaded cells are the input frames that it depends on, as JAX's derivatives "
        "tell; the lines are the look-ahead and the receptive field that `stream` found without running anything. A "
        "frame leaves with the first pulse that reaches the line of the look-ahead, which is what the delay means."
    ),
    shown=with_slopes,
    make=make,
)
