"""``jaxrnn export``: write a stream, a step, or a graph with other parameters as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jaxrnn._jax.context import COMPUTE_TYPES
from jaxrnn.cli.options import (
    Inputs,
    ModelFile,
    NumberRange,
    ParamsOptions,
    dim_option,
    input_files,
    json_option,
    model_file,
    output_option,
    params_options,
    path_option,
    refuse,
    seed_option,
    single_sizes,
)
from jaxrnn.cli.stream_options import PulseOptions, check_pulse_options, pulse_options
from jaxrnn.onnx.stepfile import TARGETS


@click.command()
@model_file
@output_option(
    "OUT.onnx",
    "File to write, which may be FILE. The file appears once it is complete, and with --verify once it agrees.",
    required=True,
)
@pulse_options("With --rate: samples per input frame.")
@path_option(
    ["--flush"],
    "FLUSH.onnx",
    "Write a second graph beside OUT.onnx, which returns the last frames after the end of a recording.",
)
@click.option(
    "--rate",
    type=NumberRange(0, min_open=True),
    metavar="HZ",
    help="With --symbol: input frames per second, or with --hop samples per second. The table and the metadata then "
    "give delay and look-ahead in milliseconds too.",
)
@click.option(
    "--as-step", is_flag=True, help="With --params or --checkpoint: write the step in place of the graph of FILE."
)
@click.option("--opset", metavar="N", type=click.IntRange(min=1), help="Version of ONNX's operators. [default: 17]")
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(min=1),
    help="Streams per call, along a new first axis or the batch of the model. [default: one, without such an axis]",
)
@click.option(
    "--dtype",
    type=click.Choice(COMPUTE_TYPES),
    help="Type of weights, state and arithmetic; bfloat16 needs --opset 22. Inputs and outputs stay float32.",
)
@click.option("--io-dtype", type=click.Choice(COMPUTE_TYPES), help="With --dtype: type of inputs and outputs, too.")
@click.option(
    "--quantize",
    type=click.Choice(["dynamic"]),
    help="Store weights as 8-bit integers, by ONNX Runtime's quantizer. Each call quantises the inputs of products.",
)
@click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Write recurrent layers of a stream or step in the form that this engine runs. [default: for all engines]",
)
@click.option(
    "--join-state",
    is_flag=True,
    help="Write the state of a stream or step as one vector for each element type. The metadata list its entries.",
)
@params_options
@click.option(
    "--verify",
    is_flag=True,
    help="First run the new file in ONNX Runtime on random or given inputs, and compare. Exit status 1 if it differs.",
)
@input_files
@dim_option(
    "Size of an open dimension of the inputs, other than the batch and time. For a graph with other parameters: sizes "
    "for --verify, as in 'jaxrnn verify'.",
    several=True,
)
@path_option(
    ["--example"],
    "FOLDER",
    "Also write a folder with the files and programs that run them: run.py, main.cpp and index.html, to start from.",
)
@seed_option("With --verify: seed of the inputs.")
@json_option
def export(
    file: ModelFile,
    output: Path,
    pulses: PulseOptions,
    flush: Path | None,
    rate: float | None,
    as_step: bool,
    opset: int | None,
    batch: int | None,
    dtype: str | None,
    io_dtype: str | None,
    quantize: str | None,
    target: str | None,
    join_state: bool,
    params: ParamsOptions,
    verify: bool,
    given: Inputs,
    dims: dict[str, tuple[int, ...]],
    example: Path | None,
    seed: int,
) -> None:
    """Write an ONNX file: a stream, a step, or FILE with other parameters.

    With --symbol, FILE is an offline model, and OUT.onnx takes --pulse frames per step. Its state goes in and comes out
    by name; the initial state is in a .npz file beside OUT.onnx. --flush writes a graph that returns the last frames.
    Both graphs carry the names of the state, delays and rates as metadata.

    Without --symbol, OUT.onnx is the step of the model as a new, small graph, with its state by name.

    --params and --checkpoint give the parameters of a training. Alone, they write the graph of FILE with these
    parameters; all else stays identical, byte for byte. With --symbol or --as-step, the stream or the step has these
    parameters.

    --dtype and --quantize write the same in smaller types: a stream, a step or, for a model without steps, the whole
    graph. --verify then compares with the model in its own types: within the tolerance of the type, or for --quantize
    within 25 % of the output, and the error is printed.

    --verify runs the new file in ONNX Runtime before the file appears. A stream runs over recordings of several
    lengths, from the initial state, pulse by pulse, and is flushed; its outputs are compared with the same steps in
    jaxrnn, and with the model on the whole recording. A step is compared with the step of the model, and a graph as in
    'jaxrnn verify'. If anything differs, or an output has no finite element to compare, nothing is written, and the
    exit status is 1. --input and --inputs give recordings for --verify, in the layout of 'jaxrnn stream'.

    \b
    Examples of streams:
      jaxrnn export denoiser.onnx --symbol T -o streaming.onnx --flush flush.onnx --verify
      jaxrnn export keywords.onnx --symbol S --pulse 4 --opset 18 -o streaming.onnx
      jaxrnn export denoiser.onnx --symbol T --checkpoint runs/first -o streaming.onnx --verify
      jaxrnn export net.onnx --stft 512 --hop 256 --gives mask --rate 16000 -o s.onnx --flush f.onnx --example folder

    \b
    Examples of steps:
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 -o step.onnx --verify
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 --params tuned.npz --as-step -o step.onnx

    \b
    Examples of graphs with other parameters:
      jaxrnn export model.onnx --checkpoint runs/first -o tuned.onnx --verify
      jaxrnn export vad.onnx --params tuned.npz -o tuned.onnx --verify --static sr=16000 --dim sequence=576
    """  # noqa: D301
    from jaxrnn.cli.export_writing import write_graph_again, write_step

    if given and not verify:
        raise click.UsageError("--input and --inputs give the recordings to verify with: they need --verify")
    types = {"dtype": dtype, "io_dtype": io_dtype, "quantize": quantize}
    if pulses.symbol is None and not as_step and (params or (any(types.values()) and not file.has_steps)):
        of_steps = {"--flush": flush, "--opset": opset, "--batch": batch, "--rate": rate, "--target": target}
        alone = "--params and --checkpoint alone" if params else "for a model without steps, --dtype and --quantize"
        refuse(
            {**of_steps, "--join-state": join_state, "--example": example},
            f"is for a stream or a step, but {alone} write the graph of FILE: give --symbol NAME for a stream, or "
            "--as-step for a step",
        )
        write_graph_again(file, output, params, verify, given, dims, seed, types)
        return
    if as_step and pulses.symbol is not None:
        raise click.UsageError(
            "--as-step is the step of the model; with --symbol NAME, a step is a pulse of the stream"
        )
    options: dict[str, Any] = {"opset": opset, "batch": batch, "frame_rate": _frame_rate(pulses, rate)}
    options |= types | {"target": target, "join_state": join_state}
    sizes = single_sizes(dims, ": a stream or a step has no open dimensions")
    write_step(file, output, pulses, flush, params, sizes, given, seed if verify else None, example, **options)


def _frame_rate(pulses: PulseOptions, rate: float | None) -> float | None:
    """Return input frames per second."""
    hop = None if pulses.sound else pulses.sound.hop
    if hop is not None and rate is None:
        raise click.UsageError("--hop goes with --rate: a frame lasts hop / rate seconds")
    check_pulse_options(pulses.symbol, {"--rate": rate})
    return None if rate is None else rate / (hop or 1)
