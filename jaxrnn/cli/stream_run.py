"""The work of ``jaxrnn stream``: the stepper of a file, recordings of its inputs, and the report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import jax.numpy as jnp
import numpy as np

from jaxrnn._files.messages import bytes_of, near
from jaxrnn._jax.context import exact_types
from jaxrnn.cli.options import ModelFile, RandomInputs
from jaxrnn.cli.output import COMPARED, Block, Table, TextLine, fields, past_line, random_line, text_of, verdict
from jaxrnn.cli.stream_options import PulseOptions, check_steps
from jaxrnn.comparison import Verdict
from jaxrnn.errors import InputError
from jaxrnn.model import Model
from jaxrnn.model.streaming import first_states
from jaxrnn.onnx.limits import Limits
from jaxrnn.runtime.compiled import is_compiled, load_compiled
from jaxrnn.steps.numpy_step import Run
from jaxrnn.steps.recordings import recording_specs
from jaxrnn.steps.specs import bind, check_names
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec, milliseconds
from jaxrnn.verification.sampling import Sample, inside_domain, integer_ranges, random_arrays, random_inputs, symbols_of


@dataclass(frozen=True)
class LoadedFile:
    """A file: the model (None if compiled), the stepper (None if the model is to be streamed), and the parameters."""

    model: Model | None
    stepper: Stepper | None
    params: Any


def recordings_for(
    source: LoadedFile,
    given: RandomInputs,
    pulses: PulseOptions,
    limit: int | None,
    frames: int | None,
    steps: int,
    results: Callable[[Stepper, Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> tuple[Stepper, Sample, int]:
    """Return the stepper, recordings of all inputs, and the number of frames to run.

    ``limit`` and ``frames`` are the values of ``--steps`` and ``--frames``; ``steps`` is the number of steps otherwise.
    Random recordings are inside the domain of ``results``, the function to verify, if there is one.
    """
    stepper, sizes = source.stepper, given.dims
    if stepper is None:
        assert source.model is not None
        stepper, sizes = _streamed(source.model, given, pulses)
    spec, symbol = stepper.spec, pulses.time or "frames"
    whole = recording_specs(spec, symbol)
    arrays = given.of(whole)
    for name in arrays:
        if any(entry.name == name for entry in spec.state):
            raise InputError(f"{name!r} is state, which is carried from step to step: it takes no recording")
    check_names(spec.inputs, arrays)
    if source.stepper is None and source.model is not None and not given.random and not pulses.sound:
        constant = [each for each in whole if each.time_axis is None]
        arrays |= {name: each for name, each in first_states(source.model, constant).items() if name not in arrays}
    recorded, asked = spec.count_frames(arrays), limit or frames
    if recorded == 0:
        raise InputError("the recordings have no frames")
    declared = spec.inputs if source.model is None or source.stepper is not None else source.model.inputs
    missing = ", ".join(str(each) for each in declared if each.name not in arrays)
    if missing and not given.random:
        raise InputError(f"{spec.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if recorded is not None and asked is not None and asked > recorded:
        option = "--steps" if limit else "--frames"
        raise InputError(f"{option} {asked}: the recordings have {recorded} frames")
    default = steps * spec.pulse
    if spec.longest is not None:
        default = min(default, spec.longest)
    total = asked or recorded or default
    if total % spec.multiple:
        raise InputError(f"{total} frames are not a multiple of {spec.multiple}, the --multiple of each recording")
    if total < spec.shortest:
        raise InputError(f"a recording of {total:,} frames is too short: {spec.label} needs {spec.shortest:,} or more")
    if spec.longest is not None and total > spec.longest:
        raise InputError(f"a recording of {total:,} frames is too long: {spec.label} takes {spec.longest:,} or fewer")
    with exact_types():
        bind([each for each in whole if each.name in arrays], arrays)
    # Unless a recording sets the batch, the steps of one stream are timed.
    given_specs = [each for each in spec.inputs if each.name in arrays]
    if spec.batch_symbol in symbols_of(spec.inputs) and spec.batch_symbol not in symbols_of(given_specs):
        sizes = {str(spec.batch_symbol): 1, **sizes}
    ranges = {} if source.model is None else integer_ranges(source.model, {**sizes, symbol: total})
    # A streamed model has fixed sizes; given recordings fix the number of frames.
    known = {**(sizes if source.stepper is not None else {}), **({} if recorded is not None else {symbol: total})}
    draw = functools.partial(random_arrays, whole, arrays, dims=known, seed=given.seed, ranges=ranges)
    sample = draw() if results is None else inside_domain(draw, lambda sample: results(stepper, sample.inputs))
    kept = {name: size for name, size in {**sizes, **sample.dims}.items() if spec.streams or name != symbol}
    for each in spec.inputs:
        if spec.streams and each.nbytes > Limits.value_bytes:
            raise InputError(
                f"a pulse of {spec.pulse:,} frames takes {bytes_of(each.nbytes)} for {each.name}, and no more than "
                f"{bytes_of(Limits.value_bytes)} are allowed; give a smaller --pulse"
            )
    return stepper, dataclasses.replace(sample, dims=kept), total


def _streamed(model: Model, given: RandomInputs, pulses: PulseOptions) -> tuple[Stepper, dict[str, int]]:
    """Return the stream of a model, and the sizes of other open dimensions from recordings or ``--dim``."""
    symbol = pulses.time or ""
    if symbol not in symbols_of(model.inputs):
        names = symbols_of(model.inputs)
        listed, hint = ", ".join(names) or "none", near(symbol, names)
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}{hint}; --symbol takes one of: {listed}")
    if symbol in given.dims:
        raise InputError(f"--dim {symbol}: give the number of frames with --frames")
    arrays = given.of(model.inputs)
    # Arrays of the right rank give sizes; others are refused later, when all sizes are known.
    known = [info for info in model.inputs if info.name in arrays and len(info.shape or ()) == arrays[info.name].ndim]
    dims = given.dims if symbol in symbols_of(known) else {**given.dims, symbol: pulses.multiple or 1}
    opened = [name for name in symbols_of(model.inputs) if name not in dims and name not in symbols_of(known)]
    dims = {**dims, **dict.fromkeys(opened, 1)}  # one stream, as in Model.stream, whatever the name of the batch
    first = random_inputs(model, {info.name: arrays[info.name] for info in known}, dims=dims, seed=given.seed)
    sizes = {name: size for name, size in first.dims.items() if name != symbol}
    return pulses.stream(model, sizes), sizes


def open_source(file: ModelFile, pulses: PulseOptions, native: bool = False) -> LoadedFile:
    """Open an ONNX file or a compiled file."""
    symbol = pulses.time
    if is_compiled(file.path):
        if file.static or file.state is not None:
            raise click.UsageError(f"{file.path} is compiled: 'jaxrnn compile' has fixed --static and --state")
        if symbol is not None:
            raise click.UsageError(f"{file.path} is compiled: {pulses.option} needs the ONNX file")
        return LoadedFile(None, load_compiled(file.path, native=native), None)
    if native:
        raise click.UsageError(f"{file.path} is not compiled: --native runs machine code that 'jaxrnn compile' kept")
    model = pulses.load(file)
    if symbol is not None:
        return LoadedFile(model, None, model.params)
    check_steps(model)
    return LoadedFile(model, model, model.params)


#: Percentiles of step times in the report.
PERCENTILES = (50, 95, 99)


def facts_of(
    file: Path,
    symbol: str | None,
    spec: StepSpec,
    compile_seconds: float,
    sample: Sample,
    total: int,
    run: Run,
    checks: Verdict | None,
    frame_seconds: float | None,
    output: Path | None,
) -> dict[str, Any]:
    """Return the facts and figures of a run."""
    seconds = run.seconds
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
    late = [each["delay_ms"] for each in outputs if each["delay_ms"] is not None]
    latency = None if duration is None or not late else round(1e3 * duration + max(late), 6)
    # The state of a stream may begin with infinities, such as the maximum of no frames.
    looked_at = run.outputs if spec.streams else {**run.outputs, **run.state}
    inexact = {name: array for name, array in looked_at.items() if jnp.issubdtype(array.dtype, jnp.inexact)}
    microseconds = None
    if len(seconds):
        microseconds = {f"p{level}": float(np.percentile(1e6 * seconds, level)) for level in PERCENTILES}
        microseconds["max"] = float(1e6 * seconds.max())
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
        "drawn": sample.drawn,
        "look_ahead": spec.look_ahead,
        "receptive_field": spec.receptive_field,
        "past": spec.past,
        "outputs": outputs,
        "state": entries,
        "state_bytes": sum(entry["bytes"] for entry in entries),
        "compile_seconds": compile_seconds,
        "microseconds": microseconds,
        "flush_microseconds": None if run.flush_seconds is None else 1e6 * run.flush_seconds,
        "frame_seconds": frame_seconds,
        "step_seconds": duration,
        "latency_ms": latency,
        "times_real_time": None if duration is None or not len(seconds) else duration * len(seconds) / seconds.sum(),
        "not_finite": [name for name, x in inexact.items() if not np.isfinite(x.astype(np.complex128)).all()],
        "verified": None if checks is None else checks.ok,
        "compared": None if checks is None else checks.compared,
        "checks": None if checks is None else checks.to_json()["cases"],
        "output": None if output is None else str(output),
    }


def report(result: Mapping[str, Any], seed: int, *, streams: bool) -> Iterator[Block]:
    """Return the report for people. ``streams`` is True if a step is a pulse of a stream."""
    yield from random_line(result, seed)
    yield from result["sound"]
    if streams:
        field = result["receptive_field"]
        of_symbol = "" if result["symbol"] is None else f" of {result['symbol']}"
        yield f"pulse: {_frames(result['pulse'])}{of_symbol}; the smallest that fits: {result['smallest_pulse']}"
        yield f"look-ahead: {_frames(result['look_ahead'])}"
        yield f"receptive field: {'all of the past' if field is None else _frames(field)}"
        yield from past_line(result["past"])
        columns = {
            "output": "name",
            **fields("dtype", "shape"),
            "frames a pulse": lambda each: "at the end" if each["delay"] is None else each["frames_per_pulse"],
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


def _frames(count: int) -> str:
    return f"{count:,} input frame{'' if count == 1 else 's'}"


def _times(result: Mapping[str, Any], step: str, *, streams: bool) -> Table:
    rows = [("frames", f"{result['frames']:,}"), (f"{step[2:]}s", f"{result['steps']:,}")]
    rows.append(("packing and compiling", f"{result['compile_seconds']:.2f} s"))
    words = {"p50": "median", "p95": "95th percentile", "p99": "99th percentile", "max": "longest"}
    rows += [(f"{step}, {words[key]}", f"{time:.1f} µs") for key, time in (result["microseconds"] or {}).items()]
    if streams:
        rows.append(("the flush", f"{result['flush_microseconds']:.1f} µs"))
    if result["step_seconds"] is not None:
        rows.append((f"{step} lasts", f"{text_of(1e3 * result['step_seconds'])} ms"))
        if streams:
            rows.append(("look-ahead", f"{text_of(1e3 * result['frame_seconds'] * result['look_ahead'])} ms"))
            if result["latency_ms"] is not None:
                rows.append(("latency, of the pulse and the delay", f"{text_of(result['latency_ms'])} ms"))
        rows.append(("speed", f"{text_of(result['times_real_time'])} times real time"))
    return Table(f"{step[2:].capitalize()}s of {result['model']}", ("figure", "value"), rows, right=("value",))


def _checks(result: Mapping[str, Any]) -> Iterator[Block]:
    missing = {"name": "", "compared": 0, "ok": False, "differs": False}
    missing |= dict.fromkeys(("max_abs", "max_rel", "worst", "first_frame"))
    rows = []
    for check in result["checks"]:
        if check["problem"] is not None:
            rows.append({**missing, "frames": check["frames"], "reason": "the model does not run on so few frames"})
        rows += ({**item, "frames": check["frames"]} for item in check["outputs"])
    columns = {"frames": "frames", "output": "name", **COMPARED}
    changed = "" if result["past"] is None else f", by the model with a past of {result['past']}"
    yield Table(f"Pulses against the whole recording{changed}", columns, rows)
    yield ""
    yield verdict(result["verified"], result["checks"])
