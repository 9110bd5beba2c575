"""What ``jaxrnn stream`` says of a recording in steps or pulses, for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrnn.cli.output import console, number, plain, print_table, shape_text, time_rows
from jaxrnn.messages import bytes_of

if TYPE_CHECKING:
    from rich.console import Console

    from jaxrnn.cli.stepping import Ready, Run
    from jaxrnn.cli.stream_checks import Check
    from jaxrnn.verification.sampling import Sample


def report_of(
    file: Path,
    symbol: str | None,
    ready: Ready,
    sample: Sample,
    total: int,
    run: Run,
    checks: Sequence[Check] | None,
    frame_seconds: float | None,
    output: Path | None,
) -> dict[str, Any]:
    """The facts and figures by name, ready for JSON."""
    from jaxrnn.cli.stepping import has_no_number, times_of

    spec, seconds = ready.stream.spec, run.seconds
    duration = None if frame_seconds is None else frame_seconds * spec.pulse
    entries = [
        {"name": each.name, "kind": each.kind, "dtype": each.dtype, "shape": each.shape, "bytes": each.nbytes}
        for each in spec.state
    ]
    by_name = {each.name: each for each in spec.outputs}
    outputs = [
        {
            "name": name,
            "dtype": array.dtype,
            "shape": array.shape,
            "delay": each.delay,
            "rate": None if each.rate is None else str(each.rate),
            "frames_per_pulse": None if each.rate is None else int(each.rate * spec.pulse),
        }
        for name, array in run.outputs.items()
        for each in [by_name[name]]
    ]
    # A stream may begin with what is no number, such as the maximum of no frames.
    looked_at = run.outputs if spec.streams else {**run.outputs, **run.state}
    return {
        "model": str(file),
        "symbol": symbol,
        "pulse": spec.pulse,
        "smallest_pulse": spec.smallest_pulse,
        "multiple": spec.multiple,
        "frames": total,
        "steps": len(seconds),
        "dims": sample.dims,
        "random": sample.random,
        "look_ahead": spec.look_ahead,
        "receptive_field": spec.receptive_field,
        "outputs": outputs,
        "state": entries,
        "state_bytes": sum(entry["bytes"] for entry in entries),
        "compile_seconds": ready.seconds,
        "microseconds": times_of(seconds),
        "flush_microseconds": None if run.flush_seconds is None else 1e6 * run.flush_seconds,
        "frame_seconds": frame_seconds,
        "step_seconds": duration,
        "times_real_time": None if duration is None or not len(seconds) else duration * len(seconds) / seconds.sum(),
        "not_finite": [name for name, array in looked_at.items() if has_no_number(array)],
        "verified": None if checks is None else all(check.ok for check in checks),
        "checks": None if checks is None else [{"ok": check.ok, **plain(check)} for check in checks],
        "output": None if output is None else str(output),
    }


def print_report(result: dict[str, Any], seed: int, *, streams: bool) -> None:
    """Print what `report_of` gathered.

    Args:
        result: as there.
        seed: of the random recordings.
        streams: whether a step is a pulse of a stream.
    """
    out = console()
    if result["random"]:
        dims = "".join(f", {name}={size}" for name, size in result["dims"].items())
        out.print(f"random: {', '.join(result['random'])} (seed {seed}{dims})")
    if streams:
        field = result["receptive_field"]
        of_symbol = "" if result["symbol"] is None else f" of {result['symbol']}"
        out.print(f"pulse: {_frames(result['pulse'])}{of_symbol}; the smallest that fits: {result['smallest_pulse']}")
        out.print(f"look-ahead: {_frames(result['look_ahead'])}")
        out.print(f"receptive field: {'all of the past' if field is None else _frames(field)}")
        _print_outputs(out, result)
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
    _print_times(out, result, streams=streams)
    if result["checks"] is not None:
        _print_checks(out, result)
    if result["not_finite"]:
        out.print(f"not finite: {', '.join(result['not_finite'])}", style="yellow")
    if result["output"] is not None:
        out.print(f"written to {result['output']}")


def _frames(count: int) -> str:
    """A number of input frames in words."""
    return f"{count:,} input frame{'' if count == 1 else 's'}"


def _print_outputs(out: Console, result: dict[str, Any]) -> None:
    rows = [
        (
            item["name"],
            item["dtype"],
            shape_text(item["shape"]),
            "at the end" if item["delay"] is None else item["frames_per_pulse"],
            item["rate"],
            item["delay"],
        )
        for item in result["outputs"]
    ]
    columns = ("output", "dtype", "shape", "frames a pulse", "rate", "delay")
    print_table(out, "Outputs", columns, rows, right=columns[3:])


def _print_times(out: Console, result: dict[str, Any], *, streams: bool) -> None:
    step = "a pulse" if streams else "a step"
    rows = [("frames", f"{result['frames']:,}"), (f"{step[2:]}s", f"{result['steps']:,}")]
    rows.append(("packing and compiling", f"{result['compile_seconds']:.2f} s"))
    rows += time_rows(step, result["microseconds"])
    if streams:
        rows.append(("the flush", f"{result['flush_microseconds']:.1f} µs"))
    if result["step_seconds"] is not None:
        rows.append((f"{step} lasts", f"{number(1e3 * result['step_seconds'])} ms"))
        if streams:
            rows.append(("look-ahead", f"{number(1e3 * result['frame_seconds'] * result['look_ahead'])} ms"))
        rows.append(("speed", f"{number(result['times_real_time'])} times real time"))
    print_table(out, f"{step[2:].capitalize()}s of {result['model']}", ("figure", "value"), rows, right=("value",))


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
