"""The work of ``jaxrnn stream --against``: bounded futures of a file against the offline file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxrnn._files.writing import in_place_of
from jaxrnn.cli.options import ModelFile, RandomInputs, recordings_in
from jaxrnn.cli.output import Block, Table, busy, counting, fields
from jaxrnn.cli.stream_options import ComparedPulses, described
from jaxrnn.errors import InputError, optional_package
from jaxrnn.model.streaming import open_dimensions
from jaxrnn.steps.specs import Arrays
from jaxrnn.verification import FutureLoss, compare_futures

#: The file itself, as the network to compare with.
OFFLINE = "offline"


def compared(
    file: ModelFile,
    given: RandomInputs,
    pulses: ComparedPulses,
    rate: float | None,
    step_seconds: float | None,
    against: str,
) -> dict[str, Any]:
    """Return the errors of all futures over the recordings.

    ``rate``, ``step_seconds`` and ``against`` are the values of the options.
    """
    pulses.need_symbol({"--against": against})
    if pulses.future is None:
        raise click.UsageError("--against needs --future FRAMES, one or several numbers, such as 0,5,10,all")
    if pulses.pulse is not None:
        raise click.UsageError("--pulse is for a stream that runs: delays are those of the smallest pulse")
    if step_seconds is not None:
        raise click.UsageError("--step-seconds is for steps: give --rate, and --hop if that is in samples")
    with busy(f"reading {file.path.name}"):
        model = pulses.load(file)
        other = None if against == OFFLINE else pulses.load(dataclasses.replace(file, path=Path(against)))
    files = {"": lambda: given} if given.folder is None else recordings_in(given.folder, model.inputs, given.resample)
    first = next(iter(files.values()))()
    if not first:
        raise click.UsageError("--against needs recordings: --inputs FOLDER, --inputs FILE or --input NAME=FILE")
    sound_rate, arrays = first.rate, first.of(model.inputs)
    hop = pulses.hop(rate)
    if rate is None:
        rate = sound_rate if pulses.sound else None
    per_second = None if rate is None else rate / (hop or 1)
    options: dict[str, Any] = {"symbol": pulses.time, "past": pulses.past, "block": pulses.block, **pulses.lengths}

    def read(indices: Iterator[int]) -> Iterator[tuple[str, Arrays]]:
        for (name, read), _ in zip(files.items(), indices, strict=True):
            each = read()
            if each.rate != sound_rate:
                listed = f"{name} has {each.rate} samples per second, and the first recording {sound_rate}"
                raise InputError(f"{listed}: --resample HZ resamples all")
            yield name, each.of(model.inputs)

    with counting("comparing", len(files)) as indices:
        losses = compare_futures(
            model,
            read(indices),
            pulses.future,
            against=other,
            rate=per_second,
            dims=_sizes(model, arrays, pulses.time),
            **options,
        )
    return {
        "model": str(file.path),
        "against": against,
        "symbol": pulses.time,
        "past": pulses.past,
        "block": pulses.block,
        "recordings": len(files),
        "rate": per_second,
        "sound": described(model),
        "losses": [dataclasses.asdict(each) for each in losses],
    }


def _sizes(model: Any, arrays: Mapping[str, Any], time: str | None) -> dict[str, int]:
    """Return the sizes of open dimensions other than time in the first recording."""
    opened = set(open_dimensions(model)) - {time}
    return {
        name: size
        for each in model.inputs
        if each.name in arrays and len(each.shape or ()) == arrays[each.name].ndim
        for name, size in zip(each.shape or (), arrays[each.name].shape, strict=True)
        if name in opened and str(name).isidentifier()
    }


def comparison_report(result: Mapping[str, Any]) -> Iterator[Block]:
    """Return the report for people."""
    yield from result["sound"]
    whole = "the offline network" if result["against"] == OFFLINE else result["against"]
    losses, columns = result["losses"], {"future": "future", **fields("output"), "delay": "delay"}
    if result["rate"] is not None:
        columns |= {"delay, ms": "delay_ms", "latency, ms": "latency_ms"}
    columns |= {"mean, dB": lambda each: decibels(each["mean"]), "worst, dB": lambda each: decibels(each["worst"])}
    if result["recordings"] > 1:
        columns |= {"worst in": "worst_recording", "recordings": "count"}
    right = ("future", "delay", "delay, ms", "latency, ms", "mean, dB", "worst, dB")
    yield Table(f"Error of {result['model']} below the outputs of {whole}", columns, losses, right=right)
    if silent := max(each["silent"] for each in losses):
        yield f"{silent} recordings of an output without energy are not compared"
    if result["plot"] is not None:
        yield f"plot: {result['plot']}"


def decibels(value: float | None) -> str:
    """Return a number of decibels for people; JSON has None for infinity."""
    return "equal" if value is None else f"{value:.1f}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of the delay against the error, with a line for each output; the limit has no delay."""
    with optional_package("matplotlib", "drawing losses", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    losses = [FutureLoss(**each) for each in result["losses"] if each["delay"] is not None]
    if not losses:
        raise InputError("there is nothing to plot: no future has a delay")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name in dict.fromkeys(each.output for each in losses):
        own = [each for each in losses if each.output == name]
        delays = np.array([each.delay if each.delay_ms is None else each.delay_ms for each in own], float)
        (line,) = axes.plot(delays, [each.mean for each in own], "o-", label=f"{name}, mean")
        axes.plot(delays, [each.worst for each in own], "o:", color=line.get_color(), label=f"{name}, worst")
    axes.set_xlabel("delay (frames)" if losses[0].delay_ms is None else "delay (ms)")
    axes.set_ylabel("error below the offline output (dB)")
    axes.legend()
    with in_place_of(path) as written:
        figure.savefig(written, format="png", dpi=120)
