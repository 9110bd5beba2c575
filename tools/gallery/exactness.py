"""A streamed network beside the network on the whole recording, and beside the network called block by block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import jaxrnn
from tools.gallery import drawing
from tools.gallery.entry import Entry, Figures, Item
from tools.gallery.small_network import recurrent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES, PULSE = 240, 16
#: Differences that are smaller are drawn here.
FLOOR = 1e-9


def three_ways(x: jax.Array) -> dict[str, np.ndarray]:
    """Run a network on a recording: offline, as a stream, and block by block."""
    streamed = jaxrnn.stream(recurrent, x, axes=0, pulse=PULSE)
    step, state, outputs = jax.jit(streamed.step), streamed.init(), []
    for start in range(0, len(x), PULSE):
        output, state = step(None, state, x[start : start + PULSE])
        outputs.append(output)
    rest = streamed.flush(None, state)
    outputs.append(rest.outputs[: rest.counts])
    return {
        "whole recording": np.asarray(jax.jit(recurrent)(x)),
        "stream": np.concatenate(outputs)[streamed.delay :],
        "block by block": np.ravel(jax.vmap(recurrent)(x.reshape(-1, PULSE))),
    }


def make(folder: Path) -> list[Item]:
    """Draw the three outputs, and the difference of two outputs from the first."""
    walk = np.cumsum(np.random.default_rng(3).standard_normal(FRAMES)) / 4
    ways = three_ways(jnp.asarray(walk, jnp.float32))
    whole = ways["whole recording"]
    errors = {name: np.abs(output - whole) for name, output in ways.items() if name != "whole recording"}
    alt = (
        "Above, the output of a network over a recording: the stream lies on the curve of the whole recording, and the "
        "blocks start near zero each time. Below, their differences from the whole recording on a logarithmic scale: "
        f"the stream's are at most {errors['stream'].max():.0e}, those of the blocks up to "
        f"{errors['block by block'].max():.1f}."
    )
    figures = {f"largest difference, {name}": f"{error.max():.1e}" for name, error in errors.items()}
    figures["rounding of numbers of this size"] = f"{np.spacing(np.abs(whole).max()):.1e}"
    return [drawing.save(folder, "exactness", lambda: draw(ways, errors), alt), Figures(figures)]


def draw(ways: dict[str, np.ndarray], errors: dict[str, np.ndarray]) -> Figure:
    """Draw the outputs above, and the differences below."""
    figure = drawing.canvas(3.7)
    above, below = figure.subplots(2, 1, sharex=True)
    looks = {
        "whole recording": {"color": drawing.quiet(), "linewidth": 4.5, "alpha": 0.7},
        "block by block": {"color": "C1", "linewidth": 1.1},
        "stream": {"color": "C0", "linewidth": 1.3},
    }
    for name, look in looks.items():
        above.plot(ways[name], label=name, **look)
        if name in errors:
            below.semilogy(np.maximum(errors[name], FLOOR), **look)
    above.set(title="output")
    above.legend(loc="lower left", ncols=3, bbox_to_anchor=(0.16, 1.0), borderaxespad=0, columnspacing=1)
    below.set(title=f"difference from the whole recording; 0 is drawn at {FLOOR:.0e}", xlabel="output frame")
    below.grid(axis="y")
    return figure


ENTRY = Entry(
    title="A stream is exact",
    see=(
        "The thin blue line, a stream in pulses of sixteen frames, lies on the wide one, the network on the whole "
        "recording, and differs by roundings at most. The same network called on each block as if it were all forgets "
        "what was before and knows nothing of what follows."
    ),
    shown=three_ways,
    make=make,
)
