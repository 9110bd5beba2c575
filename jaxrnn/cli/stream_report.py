"""What ``jaxrnn stream`` says of a recording in steps or pulses, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import bytes_of, plain
from jaxrnn.cli.output import COMPARED, Block, Table, TextLine, fields, random_line, text_of, time_rows, verdict
from jaxrnn.cli.verify import difference
from jaxrnn.steps.stepspec import milliseconds
from jaxrnn.verification.running import Check, Ready, Run
from jaxrnn.verification.sampling import Sample

#: What is said of the times of all steps, besides the longest.
PERCENTILES = (50, 95, 99)


def facts_of(
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
    """The facts and figures by name."""
    spec, seconds = ready.spec, run.seconds
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
            "delay_ms": None
            if frame_seconds is None or each.delay is None or each.rate is None
            else milliseconds(each.delay, 1 / frame_seconds, each.rate),
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
        "microseconds": _times_of(seconds),
        "flush_microseconds": None if run.flush_seconds is None else 1e6 * run.flush_seconds,
        "frame_seconds": frame_seconds,
        "step_seconds": duration,
        "times_real_time": None if duration is None or not len(seconds) else duration * len(seconds) / seconds.sum(),
        "not_finite": [name for name, array in looked_at.items() if _has_no_number(array)],
        "verified": None if checks is None else all(check.ok for check in checks),
        "checks": None if checks is None else [{"ok": check.ok, **plain(check)} for check in checks],
        "output": None if output is None else str(output),
    }


def report(result: Mapping[str, Any], seed: int, *, streams: bool) -> Iterator[Block]:
    """The same for people.

    Args:
        result: of `facts_of`.
        seed: of the random recordings.
        streams: whether a step is a pulse of a stream.
    """
    yield from random_line(result, seed)
    if streams:
        field = result["receptive_field"]
        of_symbol = "" if result["symbol"] is None else f" of {result['symbol']}"
        yield f"pulse: {_frames(result['pulse'])}{of_symbol}; the smallest that fits: {result['smallest_pulse']}"
        yield f"look-ahead: {_frames(result['look_ahead'])}"
        yield f"receptive field: {'all of the past' if field is None else _frames(field)}"
        columns = {
            "output": "name",
            **fields("dtype", "shape"),
            "frames a pulse": _per_pulse,
            **fields("rate", "delay"),
        }
        if result["frame_seconds"] is not None:
            columns["delay, ms"] = "delay_ms"
        yield Table("Outputs", columns, result["outputs"], right=("frames a pulse", "rate", "delay"))
    title = f"State: {len(result['state'])} entries, {bytes_of(result['state_bytes'])}"
    yield Table(title, fields("name", "kind", "dtype", "shape", "bytes"), result["state"])
    yield _times(result, "a pulse" if streams else "a step", streams=streams)
    if result["checks"] is not None:
        yield from _checks(result)
    if result["not_finite"]:
        yield TextLine(f"not finite: {', '.join(result['not_finite'])}", "yellow")
    if result["output"] is not None:
        yield f"written to {result['output']}"


def _times_of(seconds: np.ndarray) -> dict[str, float] | None:
    """Percentiles of the times of steps and the longest, in microseconds; None where there was no step."""
    if not len(seconds):
        return None
    figures = {f"p{level}": float(np.percentile(1e6 * seconds, level)) for level in PERCENTILES}
    return {**figures, "max": float(1e6 * seconds.max())}


def _has_no_number(array: np.ndarray) -> bool:
    """Whether an element is NaN or infinite."""
    return bool(jnp.issubdtype(array.dtype, jnp.inexact)) and not np.isfinite(array.astype(np.complex128)).all()


def _frames(count: int) -> str:
    """A number of input frames in words."""
    return f"{count:,} input frame{'' if count == 1 else 's'}"


def _per_pulse(output: Mapping[str, Any]) -> Any:
    return "at the end" if output["delay"] is None else output["frames_per_pulse"]


def _times(result: Mapping[str, Any], step: str, *, streams: bool) -> Table:
    rows = [("frames", f"{result['frames']:,}"), (f"{step[2:]}s", f"{result['steps']:,}")]
    rows.append(("packing and compiling", f"{result['compile_seconds']:.2f} s"))
    rows += time_rows(step, result["microseconds"])
    if streams:
        rows.append(("the flush", f"{result['flush_microseconds']:.1f} µs"))
    if result["step_seconds"] is not None:
        rows.append((f"{step} lasts", f"{text_of(1e3 * result['step_seconds'])} ms"))
        if streams:
            rows.append(("look-ahead", f"{text_of(1e3 * result['frame_seconds'] * result['look_ahead'])} ms"))
        rows.append(("speed", f"{text_of(result['times_real_time'])} times real time"))
    return Table(f"{step[2:].capitalize()}s of {result['model']}", ("figure", "value"), rows, right=("value",))


def _checks(result: Mapping[str, Any]) -> Iterator[Block]:
    missing = {"name": "", "max_abs": None, "max_rel": None, "ok": False, "worst": None, "first_frame": None}
    rows = []
    for check in result["checks"]:
        if check["problem"] is not None:
            rows.append({**missing, "frames": check["frames"], "reason": "the model does not run on so few frames"})
        rows += ({**item, "frames": check["frames"]} for item in check["outputs"])
    columns = {"frames": "frames", "output": "name", **COMPARED, "result": difference}
    yield Table("Pulses against the whole recording", columns, rows)
    yield ""
    yield verdict(result["verified"])
