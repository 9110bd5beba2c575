"""Draw the pictures of the pages. Facts about streams come from streamed functions.

    python docs/pictures/draw.py --out docs/pictures

The same version of matplotlib writes the same bytes. Pictures have a background, so they are readable on light and dark
pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import onnx
from jax import lax
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import jaxrnn
from jaxrnn.jaxprs.schedule import BatchedEquations, Loop, Step, one_loop

ROOT = Path(__file__).resolve().parent.parent.parent
INK, QUIET, PAPER = "#1f2933", "#6b7785", "#ffffff"
FILLS = {"input": "#cfe3f7", "state": "#fde3b5", "output": "#cdebd2", "nothing": "#ffffff"}


def box(ax: Axes, x: float, y: float, text: str, kind: str, width: float = 1.0, height: float = 0.8) -> None:
    """Draw a frame; a frame that does not exist has a dashed outline."""
    absent = kind == "nothing"
    edge = QUIET if absent else INK
    style = (0, (3, 2)) if absent else "-"
    ax.add_patch(
        Rectangle(
            (x, y), width, height, facecolor=FILLS[kind], edgecolor=edge, linestyle=style, linewidth=1, clip_on=False
        )
    )
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", color=edge, fontsize=10)


def note(ax: Axes, x: float, y: float, text: str, **options: Any) -> None:
    """Write text."""
    ax.text(x, y, text, **{"color": INK, "fontsize": 10, "va": "center", "ha": "left", **options})


def named_part(
    ax: Axes, x: float, y: float, width: float, name: str, kind: str, words: str = "", height: float = 1.9
) -> None:
    """Draw a box with a name and a description."""
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, "round,pad=0,rounding_size=0.2", facecolor=FILLS[kind], edgecolor=INK)
    )
    lines = words.count("\n") + 1 if words else 0
    note(ax, x + width / 2, y + height / 2 + 0.38 * lines, name, ha="center", weight="bold", fontsize=12.5)
    note(ax, x + width / 2, y + height / 2 - (0.38 if words else 0), words, ha="center", fontsize=11)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    """Draw an arrow."""
    ax.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    )


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty picture, ``width`` frames wide."""
    figure, ax = plt.subplots(figsize=(width * 0.5, height * 0.5), layout="constrained")
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.axis("off")
    figure.patch.set_facecolor(PAPER)
    return figure, ax


def smooth(x: jax.Array) -> jax.Array:
    """Return the mean of each frame and both neighbours."""
    return lax.reduce_window(x, 0.0, lax.add, (3,), (1,), ((1, 1),)) / 3


def look_ahead() -> Figure:
    """Draw a centred window over a stream, in one step."""
    streamed = jaxrnn.stream(smooth, jnp.zeros(8), axes=0, pulse=2)
    (history,) = (entry.shape[0] for entry in streamed.state if entry.kind == "history")
    pulse, delay, step = streamed.pulse, streamed.delay, 2
    here, left = step * pulse, 2.6
    end = left + here + pulse
    figure, ax = canvas(13, 7.3)
    note(ax, 0.2, 5.4, "input")
    for frame in range(here + pulse):
        box(
            ax,
            left + frame,
            5,
            str(frame),
            "input" if frame >= here else "state" if frame >= here - history else "nothing",
        )
    groups = {"forgotten": (0, here - history), "history buffer": (here - history, here), "pulse": (here, here + pulse)}
    for row, (name, (first, last)) in enumerate(groups.items()):
        ax.plot([left + first + 0.05, left + last - 0.05], [6.05, 6.05], color=QUIET, linewidth=1)
        note(ax, left + (first + last) / 2, 6.9 if row == 1 else 6.4, name, ha="center")
    note(ax, 0.2, 2.4, "output")
    for frame in range(here - delay, here - delay + pulse):
        box(ax, left + frame, 2, str(frame), "output")
        for seen in range(frame - 1, frame + 2):
            arrow(ax, (left + seen + 0.5, 4.95), (left + frame + 0.5, 2.85), QUIET)
    note(ax, left + here - delay + pulse / 2, 1.6, f"output of step {step}", ha="center", color=QUIET)
    ax.plot([end, end], [2, 4.9], color=QUIET, linewidth=1, linestyle=":")
    note(ax, end + 0.25, 2.4, f"delay: {delay} frame")
    late = here + pulse - delay
    note(
        ax,
        0.2,
        0.4,
        f"Output frame {late} needs input frame {late + 1}, so output frame {late} leaves with the next step.",
    )
    return figure


def branches() -> Figure:
    """Draw two branches with different delays that are combined."""
    streamed = jaxrnn.stream(lambda x: x - smooth(x), jnp.zeros(8), axes=0)
    (wait,) = (entry.shape[0] for entry in streamed.state if entry.kind == "delay")
    late = jaxrnn.stream(smooth, jnp.zeros(8), axes=0).delay
    figure, ax = canvas(18, 7.2)

    def part(x: float, y: float, width: float, text: str, kind: str) -> None:
        ax.add_patch(
            FancyBboxPatch((x, y), width, 1.2, "round,pad=0,rounding_size=0.2", facecolor=FILLS[kind], edgecolor=INK)
        )
        note(ax, x + width / 2, y + 0.6, text, ha="center")

    def frame(x: float, y: float, behind: int) -> None:
        note(ax, x, y, "n" if not behind else f"n - {behind}", color=QUIET, ha="center")

    part(0.3, 3.0, 2.0, "x", "input")
    part(5.4, 4.8, 5.2, "centred mean", "output")
    part(5.4, 1.2, 5.2, f"delay buffer, {wait} frame", "state")
    part(13.0, 3.0, 1.4, "-", "output")
    part(16.2, 3.0, 1.5, "y", "output")
    for y in (5.4, 1.8):
        ax.plot([2.3, 3.6, 3.6], [3.6, 3.6, y], color=INK, linewidth=1.1)
        arrow(ax, (3.6, y), (5.4, y))
        ax.plot([10.6, 11.8, 11.8], [y, y, 3.6], color=INK, linewidth=1.1)
    arrow(ax, (11.8, 3.6), (13.0, 3.6))
    arrow(ax, (14.4, 3.6), (16.2, 3.6))
    frame(2.9, 4.0, 0)
    frame(4.5, 5.8, 0)
    frame(4.5, 2.2, 0)
    frame(11.3, 5.8, late)
    frame(11.3, 2.2, wait)
    frame(15.3, 4.0, streamed.delay)
    note(ax, 0.3, 0.4, "On the lines: the frame that passes in step n, in pulses of one frame.", color=QUIET)
    return figure


def timeline() -> Figure:
    """Draw the frames of each pass, and the frames that exist."""
    front, behind, window, pulse, total = 2, 3, 6, 4, 9

    def function(x: jax.Array) -> jax.Array:
        return lax.reduce_window(jnp.pad(x, (front, behind)), 0.0, lax.add, (window,), (1,), "VALID")

    streamed = jaxrnn.stream(function, jnp.zeros(8), axes=0, pulse=pulse)
    tail = total % pulse
    flushed = streamed.flush(None, streamed.init(), jnp.zeros(tail), tail)
    last = flushed.outputs.shape[0]
    # Delay and length of the input, of the padded input, and of the output.
    rows = {
        "input": (0, total, "input"),
        "padded": (-front, total + front + behind, "state"),
        "output": (streamed.delay, total, "output"),
    }
    passes = [("warm-up", -front, front), *((f"step {n}", n * pulse, pulse) for n in range(total // pulse))]
    passes.append(("flush", total - tail, last))
    size, gap, left = 0.95, 0.7, 3.0
    figure, ax = canvas(left + gap * (len(passes) - 1) + size * sum(count for *_, count in passes) + 0.2, 7.6)
    x = left
    for name, first, count in passes:
        note(ax, x + size * count / 2, 6.9, name, ha="center", weight="bold")
        for row, (label, (delay, length, kind)) in enumerate(rows.items()):
            y = 5.3 - 1.55 * row
            if x == left:
                note(ax, 0.2, y + 0.4, label)
                note(ax, 0.2, y - 0.25, f"delay {delay}", fontsize=8.5, color=QUIET)
            for index in range(count):
                frame = first - delay + index
                exists = 0 <= frame < length
                box(ax, x + size * index, y, str(frame), kind if exists else "nothing", width=size)
        x += size * count + gap
    note(
        ax,
        0.2,
        0.75,
        f"{total} frames in pulses of {pulse}: step n holds the frames from {pulse} n - delay on.",
    )
    note(ax, 0.2, 0.1, "Dashed frames do not exist. A pad writes its value there; in an output, the caller drops them.")
    return figure


def training_modes() -> Figure:
    """Draw the modes of training, and the effect of chunks."""
    frames, left, chunk = 6, 4.3, 3
    figure, ax = canvas(14.6, 13.6)

    def calls(y: float, name: str, words: str, sizes: list[int]) -> None:
        """Draw the calls of the graph in one mode."""
        note(ax, 0.2, y + 0.95, name, weight="bold", fontsize=11)
        note(ax, 0.2, y + 0.2, words, fontsize=8.5, color=QUIET)
        first = 0
        for size in sizes:
            x = left + 1.6 * first
            for frame in range(first, first + size):
                box(ax, x + 1.6 * (frame - first), y - 0.6, str(frame), "input", 1.2, 0.7)
            box(ax, x, y + 0.5, "graph" if size > 1 else "", "output", 1.6 * size - 0.4, 0.9)
            first += size

    def states(y: float, places: list[int], color: str = INK) -> None:
        """Draw the state between calls."""
        for place in places:
            arrow(ax, (left + 1.6 * place - 0.4, y), (left + 1.6 * place, y), color)

    def gradients(y: float, ends: list[tuple[int, int]]) -> None:
        """Draw the path of the gradient."""
        for first, last in ends:
            arrow(ax, (left + 1.6 * last - 0.4, y), (left + 1.6 * first, y), QUIET)

    calls(11.2, "apply", "one call, no state", [frames])
    calls(8.2, "step", "one call, state in and out", [frames])
    states(9.15, [0, frames])
    calls(5.2, "scan", "a call for each frame", [1] * frames)
    states(6.15, list(range(frames + 1)))
    calls(1.9, "step, chunked", f"chunk={chunk}: two updates", [chunk, chunk])
    states(2.85, [0, chunk, frames])
    gradients(3.75, [(0, chunk), (chunk, frames)])
    for y in (12.95, 9.95, 6.95):
        gradients(y, [(0, frames)])
    note(ax, 0.2, 0.4, "Black: the state, forward. Grey: the gradient, backward; it ends where a chunk begins.")
    return figure


def overview() -> Figure:
    """Draw inputs, functions and results."""
    figure, ax = canvas(20, 8.8)

    top, middle, bottom = 6.6, 3.5, 0.4
    named_part(ax, 0.2, middle, 5.0, "model.onnx", "input", "PyTorch, Keras, ...")
    named_part(ax, 0.2, bottom, 5.0, "a JAX function", "input", "Flax, Equinox, ...")
    named_part(ax, 6.9, top, 5.9, "jit, grad, vmap", "state", "any JAX program")
    named_part(ax, 6.9, middle, 5.9, "apply, step, scan", "state", "state in and out")
    named_part(ax, 6.9, bottom, 5.9, "stream", "state", "in pulses, exact")
    named_part(ax, 14.5, top, 5.3, "the file, tuned", "output", "the same graph")
    named_part(ax, 14.5, middle, 5.3, "live streams", "output", "NumPy in and out")
    named_part(ax, 14.5, bottom, 5.3, "a streaming file", "output", "for other engines")
    half = 0.95
    for y in (middle, bottom):
        arrow(ax, (5.2, y + half), (6.9, y + half))
    arrow(ax, (9.85, middle + 1.9), (9.85, top))
    arrow(ax, (9.85, middle), (9.85, bottom + 1.9))
    for start, end in ((top, top), (middle, middle), (bottom, middle), (bottom, bottom)):
        arrow(ax, (12.8, start + half), (14.5, end + half))
    return figure


def parts() -> Figure:
    """Draw the packages, each above the packages that it imports."""
    rows = [
        [("errors, answers, comparison, _files, _jax", "exceptions; files and stores; types, mesh axes", "nothing")],
        [("cells", "LSTM, GRU, RNN, attention, convolutions; no ONNX", "input")],
        [("jaxprs", "evaluate, slice, walk; the schedule of a step; recognised cells", "input")],
        [("steps, signal, settings", "arrays, the protocol of a step; scans and filters; settings files", "input")],
        [("runtime", "Runner, StreamPool, compiled files", "state")],
        [("onnx", "file, graph, program, state", "state"), ("streaming", "chunks, a rule per primitive", "state")],
        [("model", "load, Model, load_cached", "state")],
        [("verification", "comparison with other engines, and of pulses with the whole", "output")],
        [("export", "a step as an ONNX file: rules, rewrites, metadata, flush", "output")],
        [("nnx, frameworks, training, evaluation, profiling, inspection, demo", "independent of each other", "output")],
        [("cli", "the commands", "output")],
    ]
    figure, ax = canvas(20, 2.1 * len(rows))
    for level, row in enumerate(rows):
        width = (19.6 - 0.3 * (len(row) - 1)) / len(row)
        for place, (name, words, kind) in enumerate(row):
            named_part(ax, 0.2 + place * (width + 0.3), 0.1 + 2.1 * level, width, name, kind, words, height=1.8)
    return figure


def flow() -> Figure:
    """Draw the way of a model from a file to live streams."""
    figure, ax = canvas(22, 16.2)
    width, height = 6.0, 1.9
    left, centre, right = 0.2, 8.0, 15.8
    places = {
        "file": (centre, 14.1, "model.onnx", "", "input"),
        "graph": (centre, 11.4, "one graph", "onnx: reading, graph", "state"),
        "program": (centre, 8.7, "Program", "bound nodes, params", "state"),
        "state": (left, 8.7, "its state", "onnx: state", "state"),
        "function": (right, 8.7, "a function", "of params and inputs", "state"),
        "apply": (right, 11.4, "Model.apply", "", "output"),
        "step": (left, 6.0, "a step", "pack, scan: Schedule", "state"),
        "streamed": (right, 6.0, "Streamed", "streaming", "state"),
        "protocol": (centre, 3.3, "Stepper", "spec, init, step, flush", "output"),
        "exported": (left, 0.6, "step.onnx, flush.onnx", "export", "input"),
        "compiled": (centre, 0.6, "compiled file", "", "input"),
        "runner": (right, 0.6, "Runner, StreamPool", "evaluation, profile", "output"),
    }
    for x, y, name, words, kind in places.values():
        named_part(ax, x, y, width, name, kind, words, height)

    def side(name: str, across: float, up: float) -> tuple[float, float]:
        x, y, *_ = places[name]
        return x + across * width, y + up * height

    for first, last in (("file", "graph"), ("graph", "program"), ("state", "step"), ("function", "streamed")):
        arrow(ax, side(first, 0.5, 0), side(last, 0.5, 1))
    arrow(ax, side("program", 0, 0.5), side("state", 1, 0.5))
    arrow(ax, side("program", 1, 0.5), side("function", 0, 0.5))
    arrow(ax, side("function", 0.5, 1), side("apply", 0.5, 0))
    arrow(ax, side("function", 0.2, 0), side("step", 1, 0.8))
    arrow(ax, side("step", 0.8, 0), side("protocol", 0, 0.8))
    arrow(ax, side("streamed", 0.2, 0), side("protocol", 1, 0.8))
    arrow(ax, side("protocol", 0.2, 0), side("exported", 0.8, 1))
    arrow(ax, side("protocol", 0.45, 0), side("compiled", 0.45, 1))
    arrow(ax, side("compiled", 0.55, 1), side("protocol", 0.55, 0))
    arrow(ax, side("protocol", 0.8, 0), side("runner", 0.2, 1))
    return figure


#: The graph of docs/how_it_works.md whose shapes fold.
HEADS = """<ir_version: 9, opset_import: ["" : 18]>
heads (float[time,8] x) => (float[time,2,4] y)
<int64 first = {0}, int64[2] heads = {2, 4}, int64[1] axis = {0}> {
  product = MatMul (x, W)
  shape = Shape (product)
  frames = Gather (shape, first)
  frames_1 = Unsqueeze (frames, axis)
  target = Concat <axis = 0> (frames_1, heads)
  y = Reshape (product, target)
}"""


def folding() -> Figure:
    """Draw static nodes, and the remaining equations of a graph."""
    proto = onnx.parser.parse_model(HEADS)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 8), np.float32), "W"))
    model = jaxrnn.load(proto)
    jaxpr = jax.make_jaxpr(model.apply)(model.params, {"x": jnp.zeros((5, 8))})
    nodes = [node.op_type for node in proto.graph.node]
    left = [equation.primitive.name for equation in jaxpr.eqns]
    figure, ax = canvas(20, 6.4)
    width, gap = 2.7, 0.55
    note(ax, 0.2, 5.9, "nodes of the file", weight="bold")
    note(ax, 3.45, 2.6, "remaining equations", weight="bold")
    middles = {}
    for index, name in enumerate(nodes):
        x, known = 0.2 + (width + gap) * index, name not in ("MatMul", "Reshape")
        middles[name] = x + width / 2
        box(ax, x, 4.2, name, "state" if known else "input", width=width, height=1)
        if index:
            arrow(ax, (x - gap, 4.7), (x, 4.7))
    for name, source in zip(left, ("MatMul", "Reshape"), strict=True):
        box(ax, middles[source] - width / 2, 0.9, name, "input", width=width, height=1)
        arrow(ax, (middles[source], 4.15), (middles[source], 1.95), QUIET)
    arrow(ax, (middles["MatMul"] + width / 2, 1.4), (middles["Reshape"] - width / 2, 1.4))
    box(ax, 0.2, 0.05, "", "input", width=0.5, height=0.4)
    note(ax, 0.9, 0.25, "arrays, computed in each call", fontsize=9)
    box(ax, 7.6, 0.05, "", "state", width=0.5, height=0.4)
    note(ax, 8.3, 0.25, "static: numbers and symbols", fontsize=9)
    return figure


def schedule() -> Figure:
    """Draw the parts of a step over a recording."""

    def step(params: dict[str, jax.Array], frame: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
        features = lax.max(frame @ params["encoder"], 0.0)
        kernel = params["kernel"] * params["scale"]
        hidden = jnp.tanh(features @ kernel + carry @ params["recurrent"])
        return hidden @ params["decoder"], hidden

    square = jnp.ones((8, 8))
    params = {"encoder": square, "kernel": square, "recurrent": square, "decoder": square, "scale": jnp.ones(8)}
    arranged = one_loop(Step.trace(step, params, jnp.ones(8), jnp.ones(8)))
    before, loop, after = arranged.parts
    assert isinstance(before, BatchedEquations)
    assert isinstance(loop, Loop)
    assert isinstance(after, BatchedEquations)
    columns = [
        ("parameters only", "once, by pack", arranged.fixed, "state"),
        ("before the loop", "all frames at once", before.equations, "input"),
        ("the loop", "frame by frame", loop.equations, "nothing"),
        ("after the loop", "all frames at once", after.equations, "output"),
    ]
    words = {"mul": "multiply", "dot_general": "product", "max": "maximum", "broadcast_in_dim": "broadcast"}
    figure, ax = canvas(23, 7)
    width, gap = 4.7, 1.2
    for index, (title, when, equations, kind) in enumerate(columns):
        x = 0.3 + (width + gap) * index
        color = "nothing" if kind == "nothing" else kind
        ax.add_patch(
            FancyBboxPatch((x, 0.9), width, 4.2, "round,pad=0,rounding_size=0.2", facecolor=FILLS[color], edgecolor=INK)
        )
        note(ax, x + width / 2, 6.3, title, ha="center", weight="bold")
        note(ax, x + width / 2, 5.6, when, ha="center", color=QUIET)
        names = [words.get(equation.primitive.name, equation.primitive.name) for equation in equations]
        for row, name in enumerate(names):
            note(ax, x + width / 2, 4.5 - 0.85 * row, name, ha="center")
        if index:
            arrow(ax, (x - gap, 3.0), (x, 3.0))
        if loop.equations is equations:
            ax.plot([x + width * 0.8] * 2, [0.9, 0.35], color=INK, linewidth=1.1)
            ax.plot([x + width * 0.8, x + width * 0.2], [0.35, 0.35], color=INK, linewidth=1.1)
            arrow(ax, (x + width * 0.2, 0.35), (x + width * 0.2, 0.9))
            note(ax, x + width / 2, 0.0, "carry", ha="center", fontsize=9)
    return figure


def engines() -> Figure:
    """Draw the time of each engine relative to jaxrnn, from the results of the benchmarks."""
    sys.path.append(str(ROOT))  # the benchmarks are not installed
    from benchmarks import overview
    from benchmarks.results import read_all

    figure, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    overview.draw(ax, read_all(ROOT / "benchmarks" / "results").values())
    figure.patch.set_facecolor(PAPER)
    return figure


#: Seconds of a phase of the moving picture, the size of a frame, and the tops of its three rows.
PHASE, SIZE, ROWS = 2.4, 34, (34, 112, 190)
#: The phase that is seen where pictures do not move.
STILL = 2
#: Colours of text, lines and grounds are those of the other pictures.
STYLE = f"""text{{font:15px "DejaVu Sans",Verdana,sans-serif;fill:{INK};text-anchor:middle}}
.note{{text-anchor:end;font-size:12px;fill:{QUIET}}}.words{{font-size:13.5px}}
rect{{stroke:{INK}}}.nothing rect{{stroke:{QUIET};stroke-dasharray:3 2}}"""


def moving() -> str:
    """Return a picture of a stream as SVG that moves with CSS, and stands still for readers who want no motion."""
    x = jnp.array([3.0, 6, 9, 3, 6, 0, 9, 6])
    streamed = jaxrnn.stream(smooth, x, axes=0, pulse=2)
    (history,) = (entry.shape[0] for entry in streamed.state if entry.kind == "history")
    pulse, delay = streamed.pulse, streamed.delay
    outputs, state, steps = [], streamed.init(), len(x) // pulse
    for step in range(steps):
        output, state = streamed.step(None, state, x[step * pulse : (step + 1) * pulse])
        outputs.append(output)
    rest = streamed.flush(None, state)
    outputs.append(rest.outputs[: rest.counts])
    phases, parts, rules = steps + 1, [], [STYLE]
    width, seconds = (len(x) + history + pulse) * SIZE + 24, PHASE * (phases + 0.5)

    def percent(phase: float) -> str:
        return f"{100 * phase / (phases + 0.5):.3f}%"

    def during(first: float, last: float, content: str, rise: int = 0, start: float = 0) -> None:
        """Show content from one phase up to another; it falls into its place from ``rise`` above."""
        name, end = f"a{len(parts)}", "100%" if last >= phases else percent(last)
        begin, landed = percent(first + start), percent(first + start + 0.3)
        after = "" if end == "100%" else f"{end},100%{{opacity:0}}"
        hidden = "" if begin == "0.000%" else f"0%,{begin}{{opacity:0}}"
        moves = f"0%,{begin}{{transform:translateY(-{rise}px)}}{landed},100%{{transform:none}}" if rise else ""
        rules.append(f"#{name}{{opacity:{int(first <= STILL < last)}}}")
        rules.append(
            f"@media(prefers-reduced-motion:no-preference){{#{name}{{animation:{seconds:g}s step-end infinite {name}v"
            + (f",{seconds:g}s ease-in-out infinite {name}m" if rise else "")
            + f"}}@keyframes {name}v{{{hidden}{begin}{{opacity:1}}{after}}}"
            + (f"@keyframes {name}m{{{moves}}}" if rise else "")
            + "}"
        )
        parts.append(f'<g id="{name}">{content}</g>')

    def cell(frame: int, row: int, text: str, kind: str) -> str:
        left, top = 12 + (frame + history) * SIZE, ROWS[row]
        rectangle = f'<rect x="{left}" y="{top}" width="{SIZE - 4}" height="{SIZE - 4}" fill="{FILLS[kind]}"/>'
        return f'<g class="{kind}">{rectangle}<text x="{left + SIZE / 2 - 2}" y="{top + 20.5}">{text}</text></g>'

    def words(count: int, first: int) -> str:
        names = " and ".join(str(first + index) for index in range(count) if first + index >= 0)
        return f"frame{'s' * (' ' in names)} {names}"

    drop = ROWS[1] - ROWS[0]
    for frame, value in enumerate(x):
        phase = frame // pulse
        during(0, phase, cell(frame, 0, f"{value:g}", "input"))
        during(phase, phase + 1, cell(frame, 1, f"{value:g}", "input"), drop)
        during(phase + 1, phase + 1 + history // pulse, cell(frame, 1, f"{value:g}", "state"))
    for phase, output in enumerate(outputs):
        absent = [*range(-history, 0)] if not phase else [*range(len(x), len(x) + pulse)] if phase == steps else []
        for frame in absent:
            during(phase, phase + 1, cell(frame, 1, "", "nothing"))
        first = phase * pulse - delay
        for index, value in enumerate(output):
            exists = first + index >= 0
            shown = cell(first + index, 2, f"{value:g}" if exists else "", "output" if exists else "nothing")
            during(phase, phases if exists else phase + 1, shown, drop, 0.45)
        call = "flush: no frames in" if phase == steps else f"step {phase}: {words(pulse, phase * pulse)} in"
        line = f'<text class="words" x="{width / 2:g}" y="262">{call}, {words(len(output), first)} out</text>'
        during(phase, phase + 1 if phase < steps else phases, line)
    stops = ";".join(f"{percent(n)},{percent(n + 0.8)}" for n in range(phases)).split(";")
    slides = "".join(f"{stop}{{transform:translateX({n * pulse * SIZE}px)}}" for n, stop in enumerate(stops))
    rules.append(
        f"#step{{transform:translateX({STILL * pulse * SIZE}px)}}@media(prefers-reduced-motion:no-preference)"
        f"{{#step{{animation:{seconds:g}s ease-in-out infinite slide}}@keyframes slide{{{slides}100%{{transform:"
        f"translateX({steps * pulse * SIZE}px)}}}}}}"
    )
    box = f'x="6" y="{ROWS[1] - 8}" width="{(history + pulse) * SIZE + 8}" height="{SIZE + 12}" rx="6" fill="none"'
    titles = ("input", "state, pulse", "output")
    notes = (
        f'<text class="note" x="{width - 6}" y="{top - (14 if row == 1 else 8)}">{title}</text>'
        for row, (top, title) in enumerate(zip(ROWS, titles, strict=True))
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 276" width="{width}" height="276">'
    ground = f'<rect width="100%" height="100%" fill="{PAPER}" style="stroke:none"/>'
    body = [*notes, f'<rect id="step" {box}/>', *parts]
    return "\n".join([head, "<title>moving</title>", "<style>", *rules, "</style>", ground, *body, "</svg>", ""])


PICTURES: dict[str, Callable[[], Figure | str]] = {
    "moving": moving,
    "engines": engines,
    "folding": folding,
    "schedule": schedule,
    "overview": overview,
    "parts": parts,
    "flow": flow,
    "look_ahead": look_ahead,
    "branches": branches,
    "timeline": timeline,
    "training_modes": training_modes,
}


def draw(folder: Path, names: Iterable[str] = PICTURES) -> list[Path]:
    """Write pictures into a folder, and return the files."""
    # Without these, every run gives other identifiers and another date.
    settings = {"svg.hashsalt": "jaxrnn", "svg.fonttype": "path", "font.family": "DejaVu Sans", "path.simplify": False}
    paths = []
    with mpl.rc_context({**mpl.rcParamsDefault, **settings, "backend": "svg"}):
        for name in names:
            figure = PICTURES[name]()
            paths.append(folder / f"{name}.svg")
            if isinstance(figure, str):
                paths[-1].write_text(figure, encoding="utf-8")
                continue
            figure.savefig(paths[-1], format="svg", metadata={"Date": None, "Title": name})
            plt.close(figure)
    return paths


@click.command()
@click.option(
    "--out",
    default=Path(__file__).parent,
    show_default=True,
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Folder for the pictures.",
)
def main(out: Path) -> None:
    """Draw the pictures of the pages."""
    for path in draw(out):
        click.echo(f"wrote {path} ({path.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
