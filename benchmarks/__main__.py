"""``python -m benchmarks step|recording|streams|pulses|train [--quick] [--json]``."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping

import click
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timing, prepare, surroundings

Results = Mapping[str, Mapping[str, Timing | float]]


@click.group()
def main() -> None:
    """Time jaxrnn beside other engines, on this machine, in one process, pinned to one core.

    The outputs are seen to agree before anything is timed. Models are looked for in JAXRNN_MODELS.
    """


def options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every benchmark."""
    quick = click.option("--quick", is_flag=True, help="Fewer rounds: seconds, and wider spread.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
    return quick(as_json(command))


@main.command()
@options
def step(quick: bool, as_json: bool) -> None:
    """Single steps of streaming networks, NumPy in and NumPy out."""
    from benchmarks import step as benchmark

    _measure("step", "one step, microseconds", 1, benchmark.run, quick, as_json)


@main.command()
@options
def recording(quick: bool, as_json: bool) -> None:
    """The examples' networks over 10 s of frames: one scan beside a call a frame with carried state."""
    from benchmarks import recording as benchmark

    _measure("recording", f"{benchmark.SECONDS} s of frames, milliseconds", 1000, benchmark.run, quick, as_json)


@main.command()
@options
def streams(quick: bool, as_json: bool) -> None:
    """One frame of 64 live streams: in one pool, beside a step each."""
    from benchmarks import streams as benchmark

    _measure("streams", "one frame of every stream, microseconds", 1, benchmark.run, quick, as_json)


@main.command()
@options
def pulses(quick: bool, as_json: bool) -> None:
    """One pulse of streamed offline networks, beside tract's pulse where tract is installed."""
    from benchmarks import pulses as benchmark

    _measure("pulses", "one pulse, microseconds", 1, benchmark.run, quick, as_json, peer="tract")


@main.command()
@options
def train(quick: bool, as_json: bool) -> None:
    """Forward and backward pass of LSTM and GRU layers, beside PyTorch where it is installed."""
    from benchmarks import train as benchmark

    _measure("train", "forward and backward, milliseconds", 1000, benchmark.run, quick, as_json, peer="PyTorch")


def _measure(
    name: str,
    title: str,
    unit: int,
    run: Callable[[bool], Results],
    quick: bool,
    as_json: bool,
    *,
    peer: str | None = None,
) -> None:
    """Run a benchmark and print it; the unit is in microseconds.

    The first engine's time is divided by the peer's, which is the second one if nothing else is said.
    """
    prepared = prepare()
    results = run(quick)
    around = surroundings(prepared)
    engines = list(dict.fromkeys(key for row in results.values() for key, v in row.items() if isinstance(v, Timing)))
    other = peer or engines[1]
    ratios = {
        row: _median(timings[engines[0]]) / _median(timings[other])
        for row, timings in results.items()
        if other in timings
    }
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios)) if ratios else math.nan
    if as_json:
        plain = {
            row: {key: dataclasses.asdict(v) if isinstance(v, Timing) else v for key, v in timings.items()}
            for row, timings in results.items()
        }
        json.dump({"surroundings": around, name: plain, "ratios": ratios, "geometric_mean": mean}, sys.stdout, indent=2)
        return
    table = Table(title=f"{title}: median (quartiles)")
    for heading in (name, *engines, "ratio", "difference"):
        table.add_column(heading, justify="left" if heading == name else "right")
    for row, timings in results.items():
        shown = (_show(timings[engine], unit) if engine in timings else "-" for engine in engines)
        ratio = f"{ratios[row]:.2f}" if row in ratios else "-"
        table.add_row(row, *shown, ratio, f"{timings['difference']:.1e}")
    console = Console()
    console.print(table)
    if ratios:
        console.print(f"geometric mean of the ratios to {other}: {mean:.2f} (below 1, {engines[0]} is faster)")
    console.print(", ".join(f"{key} {value}" for key, value in around.items()), style="dim", highlight=False)


def _median(timing: Timing | float) -> float:
    return timing.median if isinstance(timing, Timing) else timing


def _show(timing: Timing | float, unit: int) -> str:
    if not isinstance(timing, Timing):
        return str(timing)
    return f"{timing.median / unit:.1f} ({timing.low / unit:.1f} to {timing.high / unit:.1f})"


if __name__ == "__main__":
    main()
