"""``jaxrnn stream --symbol``: from the options to a recording in pulses, what is said of it, and what is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrnn.cli.options import save_archive
from jaxrnn.cli.output import (
    busy,
    bytes_text,
    console,
    counting,
    number,
    plain,
    print_json,
    print_table,
    shape_text,
    time_rows,
)
from jaxrnn.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from jaxrnn.cli.pulses import Check, Pulses, Streaming
    from jaxrnn.model import Model
    from jaxrnn.transforms import Streamed
    from jaxrnn.verification.sampling import Sample

#: Pulses over random inputs, if nobody asks for a number of frames.
PULSES = 500


@dataclass(frozen=True)
class Wish:
    """What the command was asked for; ``frame_seconds`` is what a frame lasts, where it is known."""

    symbol: str
    pulse: int | None
    multiple: int
    shortest: int
    frames: int | None
    use_random: bool
    seed: int
    verify: bool
    frame_seconds: float | None
    output: Path | None


def stream_pulses(
    file: Path, model: Model, given: dict[str, np.ndarray], sizes: dict[str, int], wish: Wish, *, as_json: bool
) -> bool:
    """Stream, print and write; whether everything that was compared agrees."""
    import jax

    from jaxrnn.cli import pulses
    from jaxrnn.verification.sampling import restore_types

    axes = pulses.time_axes(model, wish.symbol)
    given = restore_types(model.inputs, given)
    missing = ", ".join(str(info) for info in model.inputs if info.name not in given)
    if missing and not wish.use_random:
        raise InputError(f"{model.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    # Where results are compared, both sides compute at full precision, as in 'jaxrnn verify'.
    precision = jax.default_matmul_precision("highest") if wish.verify else contextlib.nullcontext()
    with precision:
        with busy(f"tracing {file.name}"):
            streamed, sample, total = _streamed(model, axes, given, sizes, wish)
        with busy(f"compiling {file.name}"), sample.blamed():
            ready = pulses.make_ready(model, streamed, axes, sample.inputs)
        with counting("streaming", total // streamed.pulse) as indices:
            run = pulses.run_pulses(ready, sample.inputs, total, indices)
        with busy("verifying"), sample.blamed():
            checks = _check(ready, sample, total, run, wish) if wish.verify else None
    if wish.output is not None:
        save_archive(wish.output, run.outputs)
    result = _report(file, ready, sample, total, run, checks, wish)
    print_json(result) if as_json else _print(result, ready, wish)
    return checks is None or all(check.ok for check in checks)


def _streamed(
    model: Model, axes: dict[str, int | None], given: dict[str, np.ndarray], sizes: dict[str, int], wish: Wish
) -> tuple[Streamed, Sample, int]:
    """The model in pulses, recordings of every input, and the number of frames to take of them."""
    from jaxrnn.cli import pulses
    from jaxrnn.onnx.interface import bind_inputs
    from jaxrnn.onnx.values import exact_types
    from jaxrnn.verification.sampling import random_inputs

    found = pulses.count_frames(axes, given)
    if found is not None and wish.frames is not None and wish.frames > found:
        raise InputError(f"--frames {wish.frames}: the recordings have {found} frames")

    def sampled(frames: int) -> Sample:
        """Recordings; where one is given, it says how many frames all of them have."""
        dims = sizes if found is not None else {**sizes, wish.symbol: frames}
        sample = random_inputs(model, given, dims=dims, seed=wish.seed)
        with exact_types():
            bind_inputs(model.inputs, sample.inputs)
        return sample

    # The sizes of the other dimensions come with any recording; the default number of frames needs the pulse first.
    dims = {name: size for name, size in sampled(wish.multiple).dims.items() if name != wish.symbol}
    streamed = pulses.stream_model(model, wish.symbol, wish.pulse, dims, wish.multiple, wish.shortest)
    total = wish.frames or found or PULSES * streamed.pulse
    if found == 0:
        raise InputError("the recordings have no frames")
    if total % wish.multiple:
        raise InputError(f"{total} frames are no multiple of {wish.multiple}, as --multiple says of every recording")
    if total < wish.shortest:
        raise InputError(f"{total} frames are fewer than --shortest {wish.shortest}")
    return streamed, sampled(total), total


def _check(ready: Pulses, sample: Sample, total: int, run: Streaming, wish: Wish) -> list[Check]:
    """The whole recording, then awkward lengths of it."""
    from jaxrnn.cli.pulses import awkward_lengths, check_pulses

    whole = check_pulses(ready, sample.inputs, total, run.outputs)
    if whole.problem is not None:
        raise InputError(f"nothing to compare with: {whole.problem}")
    lengths = awkward_lengths(ready.streamed.pulse, wish.multiple, total, wish.shortest)
    return [whole, *(check_pulses(ready, sample.inputs, length) for length in lengths)]


def _report(
    file: Path, ready: Pulses, sample: Sample, total: int, run: Streaming, checks: list[Check] | None, wish: Wish
) -> dict[str, Any]:
    """The facts and figures by name, ready for JSON."""
    from jaxrnn.cli.stepping import has_no_number, times_of

    streamed, seconds = ready.streamed, run.seconds
    duration = None if wish.frame_seconds is None else wish.frame_seconds * streamed.pulse
    entries = [{**plain(entry), "bytes": entry.nbytes} for entry in streamed.state]
    outputs = [
        {
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "delay": streamed.delay[name],
            "rate": None if streamed.rate[name] is None else float(streamed.rate[name]),
            "frames_per_pulse": None if streamed.rate[name] is None else int(streamed.rate[name] * streamed.pulse),
        }
        for name, array in run.outputs.items()
    ]
    return {
        "model": str(file),
        "symbol": wish.symbol,
        "pulse": streamed.pulse,
        "smallest_pulse": streamed.smallest_pulse,
        "multiple": wish.multiple,
        "frames": total,
        "steps": len(seconds),
        "dims": sample.dims,
        "random": sample.random,
        "look_ahead": streamed.look_ahead,
        "receptive_field": streamed.receptive_field,
        "outputs": outputs,
        "state": entries,
        "state_bytes": sum(entry["bytes"] for entry in entries),
        "compile_seconds": ready.seconds,
        "microseconds": times_of(seconds),
        "flush_microseconds": 1e6 * run.flush_seconds,
        "step_seconds": duration,
        "times_real_time": None if duration is None or not len(seconds) else duration * len(seconds) / seconds.sum(),
        "not_finite": [name for name, array in run.outputs.items() if has_no_number(array)],
        "verified": None if checks is None else all(check.ok for check in checks),
        "checks": None if checks is None else [{"ok": check.ok, **plain(check)} for check in checks],
        "output": None if wish.output is None else str(wish.output),
    }


def _print(result: dict[str, Any], ready: Pulses, wish: Wish) -> None:
    out = console()
    if result["random"]:
        dims = "".join(f", {name}={size}" for name, size in result["dims"].items())
        out.print(f"random: {', '.join(result['random'])} (seed {wish.seed}{dims})")
    symbol, pulse, field = result["symbol"], result["pulse"], result["receptive_field"]
    out.print(f"pulse: {frames_text(pulse)} of {symbol}; the smallest that fits: {result['smallest_pulse']}")
    out.print(f"look-ahead: {frames_text(result['look_ahead'])}")
    out.print(f"receptive field: {'all of the past' if field is None else frames_text(field)}")
    rates = ready.streamed.rate
    print_table(
        out,
        "Outputs",
        ("output", "dtype", "shape", "frames a pulse", "rate", "delay"),
        [
            (
                item["name"],
                item["dtype"],
                shape_text(item["shape"]),
                item["frames_per_pulse"],
                rates[item["name"]],
                item["delay"],
            )
            if item["delay"] is not None
            else (item["name"], item["dtype"], shape_text(item["shape"]), "at the end", "", "")
            for item in result["outputs"]
        ],
        right=("frames a pulse", "rate", "delay"),
    )
    print_table(
        out,
        f"State: {len(result['state'])} entries, {bytes_text(result['state_bytes'])}",
        ("name", "kind", "dtype", "shape", "bytes"),
        [
            (item["name"], item["kind"], item["dtype"], shape_text(item["shape"]), f"{item['bytes']:,}")
            for item in result["state"]
        ],
        right=("bytes",),
    )
    _print_times(out, result, wish)
    if result["checks"] is not None:
        _print_checks(out, result)
    if result["not_finite"]:
        out.print(f"not finite: output {', '.join(result['not_finite'])}", style="yellow")
    if result["output"] is not None:
        out.print(f"written to {result['output']}")


def frames_text(count: int) -> str:
    """A number of input frames in words."""
    return f"{count:,} input frame{'' if count == 1 else 's'}"


def _print_times(out: Console, result: dict[str, Any], wish: Wish) -> None:
    rows = [("frames", f"{result['frames']:,}"), ("pulses", f"{result['steps']:,}")]
    rows.append(("compiling", f"{result['compile_seconds']:.2f} s"))
    rows += time_rows("a pulse", result["microseconds"])
    rows.append(("the flush", f"{result['flush_microseconds']:.1f} µs"))
    if wish.frame_seconds is not None:
        rows.append(("a pulse lasts", f"{number(1e3 * result['step_seconds'])} ms"))
        rows.append(("look-ahead", f"{number(1e3 * wish.frame_seconds * result['look_ahead'])} ms"))
        rows.append(("speed", f"{number(result['times_real_time'])} times real time"))
    print_table(out, f"Pulses of {result['model']}", ("figure", "value"), rows, right=("value",))


def _print_checks(out: Console, result: dict[str, Any]) -> None:
    rows = []
    for check in result["checks"]:
        if check["problem"] is not None:
            rows.append((check["frames"], "", "", "", "the model does not run on so few frames"))
        for item in check["outputs"]:
            said = "agrees" if item["ok"] else item["reason"]
            rows.append((check["frames"], item["name"], number(item["max_abs"]), number(item["max_rel"]), said))
    columns = ("frames", "output", "largest absolute", "largest relative", "result")
    print_table(out, "Pulses against the whole recording", columns, rows, right=(columns[0], *columns[2:4]))
    out.print()
    ok = result["verified"]
    out.print("agrees" if ok else "departs", style="bold green" if ok else "bold red")
