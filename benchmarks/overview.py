"""Times of engines relative to jaxrnn, by use: the picture and the figures at the head of the results page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.export import GROUP, OFFLINE_GRAPH
from benchmarks.results import Result, Row, geometric_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Use:
    """A way to use an engine.

    Attributes:
        title: the label in the picture.
        benchmark: the benchmark that times this use.
        groups: the groups of rows that count.
    """

    title: str
    benchmark: str
    groups: tuple[str, ...]

    def rows(self, results: Iterable[Result]) -> dict[str, list[Row]]:
        """Return the rows of this use by machine, from runs on one core."""
        return {
            result.machine: [row for row in result.rows if row.group in self.groups]
            for result in results
            if result.benchmark == self.benchmark and result.cores == "one"
        }


USES = {
    "start": Use("first output of\na new process", "start", ("start",)),
    "step": Use("one frame of\na live stream", "step", ("speech",)),
    "pulse": Use("one pulse of a\nstreamed network", "pulses", ("streamed",)),
    "export": Use("", "export", (GROUP,)),
    "recording": Use("ten seconds\nof audio at once", "recording", ("scan",)),
    "corpus": Use("a corpus\nof files", "corpus", ("corpus",)),
    "train_lstm": Use("gradients of\nan LSTM layer", "train", ("LSTM training",)),
    "train_gru": Use("gradients of\na GRU layer", "train", ("GRU training",)),
}
PEERS = {
    "onnx_runtime": "ONNX Runtime",
    "tract": "tract",
    "litert": "LiteRT",
    "openvino": "OpenVINO",
    "pytorch": "PyTorch",
    "offline": OFFLINE_GRAPH,
}


def ratios(use: Use, results: Iterable[Result]) -> dict[str, dict[str, float]]:
    """Return the mean ratio of jaxrnn's time to the time of each contender, by contender and machine."""
    found: dict[str, dict[str, float]] = {}
    for machine, rows in use.rows(results).items():
        for contender in PEERS.values():
            shared = [row.ratios[contender] for row in rows if contender in row.ratios]
            if shared:
                found.setdefault(contender, {})[machine] = geometric_mean(shared)
    return found


def figures(results: Iterable[Result]) -> dict[str, str]:
    """Return ``USE_PEER`` and the ratio as text: the range over machines, or "not measured"."""
    results = list(results)
    texts = {}
    for name, use in USES.items():
        found = ratios(use, results)
        for key, peer in PEERS.items():
            texts[f"{name}_{key}"] = _range(found.get(peer, {}))
    return texts


def _range(by_machine: Mapping[str, float]) -> str:
    texts = sorted({f"{value:.2g}" for value in by_machine.values()}, key=float)
    return " to ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else "(not measured)"


def draw(ax: Axes, results: Iterable[Result]) -> None:
    """Draw a row per use: engines to the left of 1 are faster than jaxrnn, engines to the right are slower."""
    results = list(results)
    shown = [use for use in USES.values() if use.title]
    machines = sorted({result.machine for result in results})
    colors = {"ONNX Runtime": "#1b6ca8", "tract": "#b3541e", "LiteRT": "#4c8b2b", "OpenVINO": "#7a4fa3"}
    colors["PyTorch"] = "#c02942"
    for row, use in enumerate(reversed(shown)):
        for peer, by_machine in ratios(use, results).items():
            height = row + 0.12 * (list(colors).index(peer) - 2)  # so that engines do not hide each other
            for machine, ratio in by_machine.items():
                ax.plot(1 / ratio, height, "os^D"[machines.index(machine) % 4], color=colors[peer], markersize=7)
    for peer, color in colors.items():
        ax.plot([], [], "o", color=color, label=peer)
    for machine, marker in zip(machines, "os^D", strict=False):
        ax.plot([], [], marker, color="none", markeredgecolor="#1f2933", label=machine)
    ax.axvline(1, color="#1f2933", linewidth=1.2)
    ax.set_xscale("log")
    ticks = {0.1: "1/10", 0.2: "1/5", 0.5: "1/2", 1: "as jaxrnn", 2: "2 times", 5: "5 times", 10: "10 times"}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.minorticks_off()
    ax.set_ylim(-0.5, len(shown) - 0.5)
    ax.set_yticks(range(len(shown)), [use.title for use in reversed(shown)])
    ax.set_xlabel("time of the engine; jaxrnn is faster than engines on the right")
    ax.grid(axis="x", color="#d5dbe1", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
