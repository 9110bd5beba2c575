"""``jaxrnn stream``: run a model over recordings in steps or pulses, and measure the time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from jaxrnn.cli.commands import Count, Option, Positive, command
from jaxrnn.cli.errors import MISMATCH
from jaxrnn.cli.options import OUTPUT, ModelFile, RandomInputs, new_file, refuse
from jaxrnn.cli.output import busy, counting, show
from jaxrnn.cli.stream_options import ComparedPulses, PulseOptions, described

if TYPE_CHECKING:
    from jaxrnn.model import Model
    from jaxrnn.steps.stepper import Stepper

#: Default number of steps or pulses over random inputs.
STEPS = 500


@command
def stream(
    *,
    file: ModelFile,
    given: RandomInputs,
    steps: Count | None = None,
    given_pulses: ComparedPulses,
    frames: Count | None = None,
    verify: bool = False,
    against: Annotated[str, Option(metavar="offline|FILE.onnx")] | None = None,
    plot: Annotated[Path, new_file("PLOT.png")] | None = None,
    native: bool = False,
    rate: Annotated[Positive, Option(metavar="HZ")] | None = None,
    step_seconds: Annotated[Positive, Option(metavar="SECONDS")] | None = None,
    output: Annotated[Path, new_file("OUT.npz", *OUTPUT)] | None = None,
) -> None:
    """Run a model over recordings in steps or pulses with its state, and time each step.

    The time of a step is measured from NumPy arrays to NumPy arrays, in one process, after compilation. It is the time
    of one stream: an open batch has size 1, unless --input or --dim gives another size.

    FILE is an ONNX file, or a file written by 'jaxrnn compile' in steps or in pulses.

    Without --symbol, a call of an ONNX model is a step, with the state among its inputs and outputs. Inputs are
    recordings with frames stacked along a new first axis: [frames, *shape of the input].

    With --symbol, FILE is an ONNX file of an offline model with an open dimension for time, such as S in [1, 40, S].
    The model becomes a streaming model that takes --pulse frames per step; look-ahead becomes delay. Inputs are whole
    recordings in the shape that the file declares; inputs without the dimension are constant in time. Outputs come
    without the delay, up to the last frame, and equal the outputs of the model on the whole recording: --verify checks
    this. A model that cannot be streamed, such as a bidirectional recurrence, is refused, with the node and a remedy:
    --future bounds what it sees of later frames, which changes the model. --against measures by how much, over
    recordings: the error in decibels below the outputs of the offline model, for each --future and output. No stream
    runs then.

    Examples of steps:
      jaxrnn stream dtln_1.onnx --input input_2=magnitudes.npy --rate 16000 --hop 128 --output masks.npz
      jaxrnn stream vad.onnx --static sr=16000 --random --dim sequence=576 --rate 16000 --hop 512
      jaxrnn stream model.jaxrnn --random --steps 2000 --json

    Examples of pulses:
      jaxrnn stream keywords.onnx --symbol S --random --verify
      jaxrnn stream keywords.onnx --symbol S --pulse 4 --input feats=features.npy --rate 16000 --hop 160 -o logits.npz
      jaxrnn stream waves.onnx --symbol S --pulse 256 --random --frames 48000 --rate 48000 --hop 1 --json

    Examples of bounded futures:
      jaxrnn stream net.onnx --symbol time --future 20 --past 200 --random --verify
      jaxrnn stream net.onnx --symbol time --future 20 --past 200 --inputs noisy/ --against offline
      jaxrnn stream net.onnx --symbol time --future 0,5,10,20,40,all --inputs noisy/ --against offline --plot loss.png
      jaxrnn stream tuned.onnx --symbol time --future 20 --inputs noisy/ --against net.onnx --json

    Args:
        hop: Samples from one frame to the next. Without --symbol: new samples per step.
        steps: Number of steps. [default: the whole recording; 500 if all inputs are random]
        frames: With --symbol: number of frames. [default: the whole recording; 500 pulses if all inputs are random]
        verify: With --symbol: compare the outputs with the outputs of the model on the whole recording, and on short
            parts with lengths that do not fit the pulse. Exit status 1 if they differ by more than 'jaxrnn verify'
            allows, and if no element of an output is finite.
        against: With --future: measure the error below the outputs of the offline model of FILE on whole recordings,
            or of another file with the same inputs and outputs, such as the teacher of a tuned one. --inputs then
            also takes a folder of recordings: sound files, .npz files, or .npy files of a single input.
        plot: With --against: draw the delay, in ms with --rate, against the error as a PNG.
        native: Run the machine code in FILE, from 'jaxrnn compile --native', without compiling. The code runs
            unchecked: use only files that you trust as programs.
        rate: With --hop: samples per second. With --symbol alone: frames per second.
        step_seconds: Duration of a step, in place of --rate and --hop.
        output: Write the outputs: for steps stacked along the first axis, with the last state as state/NAME; for pulses
            in the shape of the whole recording.
    """
    import jax

    from jaxrnn.cli.arrays import save_outputs
    from jaxrnn.cli.stream_against import compared, comparison_report, draw
    from jaxrnn.cli.stream_run import facts_of, open_source, recordings_for, report
    from jaxrnn.steps.numpy_step import run
    from jaxrnn.verification.running import check_lengths, numpy_step

    if against is not None:
        others = {"--steps": steps, "--frames": frames, "--verify": verify, "--native": native, "--output": output}
        refuse({**others, "--random": given.random}, "is for a stream that runs: leave out --against")
        comparison = compared(file, given, given_pulses, rate, step_seconds, against)
        if plot is not None:
            draw(comparison, plot)
        show({**comparison, "plot": None if plot is None else str(plot)}, comparison_report)
        return
    refuse({"--plot": plot}, "goes with --against offline")
    pulses = given_pulses.single
    sound_rate = given.rate if rate is None else rate
    rate = sound_rate if pulses.sound else rate
    hop = pulses.hop(rate)
    if rate is not None and step_seconds is not None:
        raise click.UsageError("give --rate and --hop, or --step-seconds, but not both")
    duration = step_seconds if rate is None else (hop or 1) / rate
    pulses.need_symbol({"--frames": frames, "--verify": verify})
    if pulses.time is None:
        if rate is not None and hop is None:
            raise click.UsageError("--rate and --hop go together: a step lasts hop / rate seconds")
    else:
        instead = f"is for steps; with {pulses.option}, give --frames, and --rate with --hop"
        refuse({"--steps": steps, "--step-seconds": step_seconds}, instead)
    # Asynchronous dispatch to a thread takes longer than a step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    source, name = open_source(file, pulses, native), file.path.name
    # A comparison computes both sides at full precision, as 'jaxrnn verify' does.
    precision = jax.default_matmul_precision("highest") if verify else contextlib.nullcontext()
    with precision:
        with busy(f"tracing {name}"):
            results = None
            if verify and source.model is not None:
                results = functools.partial(_offline, pulses, source.model, source.params)
            stepper, sample, total = recordings_for(source, given, pulses, steps, frames, STEPS, results)
        with busy(f"compiling {name}"), sample.naming_assumptions():
            began = time.perf_counter()
            step = numpy_step(stepper, source.params, sample.inputs, sample.dims)
            compile_seconds = time.perf_counter() - began
        with counting("streaming", total // stepper.spec.pulse) as indices:
            ran = run(step, sample.inputs, total, indices)
        if source.model is not None:  # in the order of the file
            names = [info.name for info in source.model.outputs if info.name in ran.outputs]
            ran = dataclasses.replace(ran, outputs={name: ran.outputs[name] for name in names})
        checks = None
        if verify and source.model is not None:
            with busy(f"verifying {name}"), sample.naming_assumptions():
                offline = pulses.offline(stepper, source.model, source.params)
                checks = check_lengths(offline, step, sample.inputs, total, ran.outputs)
    streams = stepper.spec.streams
    if output is not None:
        state = {} if streams else {f"state/{name}": array for name, array in ran.state.items()}
        save_outputs(output, {**ran.outputs, **state}, sound_rate)
    result = facts_of(file.path, pulses.time, step.spec, compile_seconds, sample, total, ran, checks, duration, output)
    result["sound"] = described(source.model)
    show(result, lambda facts: report(facts, given.seed, streams=streams))
    if result["verified"] is False:
        click.get_current_context().exit(MISMATCH)


def _offline(pulses: PulseOptions, model: Model, params: Any, stepper: Stepper, inputs: Mapping[str, Any]) -> Any:
    """Return the outputs of the model on whole recordings; none if the recordings are too short."""
    from jaxrnn.verification.running import offline_outputs

    return offline_outputs(pulses.offline(stepper, model, params), stepper.spec, inputs, None)[0]
