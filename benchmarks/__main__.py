"""``python -m benchmarks step [--quick] [--json]``."""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import click
from rich.console import Console
from rich.table import Table

from benchmarks import step as step_benchmark
from benchmarks.timing import Timing, pin_to_one_core, surroundings


@click.group()
def main() -> None:
    """Time jaxrnn beside other engines, on this machine, in one process, pinned to one core.

    The outputs are seen to agree before anything is timed. Models are looked for in JAXRNN_MODELS.
    """


@main.command()
@click.option("--quick", is_flag=True, help="Fewer rounds: seconds, and wider spread.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def step(quick: bool, as_json: bool) -> None:
    """Single steps of streaming networks, NumPy in and NumPy out."""
    core = pin_to_one_core()
    results = step_benchmark.run(quick)
    around = surroundings(core)
    ratios = {name: _median(row["jaxrnn"]) / _median(row["ONNX Runtime"]) for name, row in results.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    if as_json:
        plain = {
            name: {key: dataclasses.asdict(v) if isinstance(v, Timing) else v for key, v in row.items()}
            for name, row in results.items()
        }
        json.dump(
            {"surroundings": around, "step": plain, "ratios": ratios, "geometric_mean": mean}, sys.stdout, indent=2
        )
        return
    table = Table(title="one step, microseconds: median (quartiles)")
    for heading in ("model", "jaxrnn", "ONNX Runtime", "ratio", "difference"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, row in results.items():
        shown = (_show(row[engine]) for engine in ("jaxrnn", "ONNX Runtime"))
        table.add_row(name, *shown, f"{ratios[name]:.2f}", f"{row['difference']:.1e}")
    console = Console()
    console.print(table)
    console.print(f"geometric mean of the ratios: {mean:.2f} (below 1, jaxrnn is faster)")
    console.print(", ".join(f"{key} {value}" for key, value in around.items()), style="dim", highlight=False)


def _median(timing: Timing | float) -> float:
    return timing.median if isinstance(timing, Timing) else timing


def _show(timing: Timing | float) -> str:
    return f"{timing.median:.1f} ({timing.low:.1f} to {timing.high:.1f})" if isinstance(timing, Timing) else str(timing)


if __name__ == "__main__":
    main()
