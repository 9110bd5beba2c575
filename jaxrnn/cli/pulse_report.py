"""What ``jaxrnn stream --symbol`` says of a recording in pulses, for programs and for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn.cli.output import console, number, plain, print_table, shape_text, time_rows
from jaxrnn.messages import bytes_of

if TYPE_CHECKING:
    from rich.console import Console

    from jaxrnn.cli.pulse_checks import Check
    from jaxrnn.cli.pulses import Pulses, Streaming
    from jaxrnn.cli.stream_pulses import Request
    from jaxrnn.verification.sampling import Sample


def report_of(
    file: Path,
    ready: Pulses,
    sample: Sample,
    total: int,
    streaming: Streaming,
    checks: list[Check] | None,
    asked: Request,
) -> dict[str, Any]:
    """The facts and figures by name, ready for JSON."""
    from jaxrnn.cli.stepping import has_no_number, times_of

    streamed, seconds = ready.streamed, streaming.seconds
    duration = None if asked.frame_seconds is None else asked.frame_seconds * streamed.pulse
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
        for name, array in streaming.outputs.items()
    ]
    return {
        "model": str(file),
        "symbol": asked.symbol,
        "pulse": streamed.pulse,
        "smallest_pulse": streamed.smallest_pulse,
        "multiple": asked.multiple,
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
        "flush_microseconds": 1e6 * streaming.flush_seconds,
        "step_seconds": duration,
        "times_real_time": None if duration is None or not len(seconds) else duration * len(seconds) / seconds.sum(),
        "not_finite": [name for name, array in streaming.outputs.items() if has_no_number(array)],
        "verified": None if checks is None else all(check.ok for check in checks),
        "checks": None if checks is None else [{"ok": check.ok, **plain(check)} for check in checks],
        "output": None if asked.output is None else str(asked.output),
    }


def print_report(result: dict[str, Any], ready: Pulses, asked: Request) -> None:
    """Print what `report_of` gathered."""
    out = console()
    if result["random"]:
        dims = "".join(f", {name}={size}" for name, size in result["dims"].items())
        out.print(f"random: {', '.join(result['random'])} (seed {asked.seed}{dims})")
    symbol, pulse, field = result["symbol"], result["pulse"], result["receptive_field"]
    out.print(f"pulse: {_frames(pulse)} of {symbol}; the smallest that fits: {result['smallest_pulse']}")
    out.print(f"look-ahead: {_frames(result['look_ahead'])}")
    out.print(f"receptive field: {'all of the past' if field is None else _frames(field)}")
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
        f"State: {len(result['state'])} entries, {bytes_of(result['state_bytes'])}",
        ("name", "kind", "dtype", "shape", "bytes"),
        [
            (item["name"], item["kind"], item["dtype"], shape_text(item["shape"]), f"{item['bytes']:,}")
            for item in result["state"]
        ],
        right=("bytes",),
    )
    _print_times(out, result, asked)
    if result["checks"] is not None:
        _print_checks(out, result)
    if result["not_finite"]:
        out.print(f"not finite: output {', '.join(result['not_finite'])}", style="yellow")
    if result["output"] is not None:
        out.print(f"written to {result['output']}")


def _frames(count: int) -> str:
    """A number of input frames in words."""
    return f"{count:,} input frame{'' if count == 1 else 's'}"


def _print_times(out: Console, result: dict[str, Any], asked: Request) -> None:
    rows = [("frames", f"{result['frames']:,}"), ("pulses", f"{result['steps']:,}")]
    rows.append(("compiling", f"{result['compile_seconds']:.2f} s"))
    rows += time_rows("a pulse", result["microseconds"])
    rows.append(("the flush", f"{result['flush_microseconds']:.1f} µs"))
    if asked.frame_seconds is not None:
        rows.append(("a pulse lasts", f"{number(1e3 * result['step_seconds'])} ms"))
        rows.append(("look-ahead", f"{number(1e3 * asked.frame_seconds * result['look_ahead'])} ms"))
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
