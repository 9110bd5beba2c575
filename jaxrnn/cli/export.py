"""``jaxrnn export``: a stream, a step or a graph with other parameters as an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from jaxrnn.cli.export_params import ParamsOptions, params_options
from jaxrnn.cli.inputs import dim_option, seed_option
from jaxrnn.cli.options import ModelFile, NumberRange, json_option, model_file, output_option, parsed, writable
from jaxrnn.cli.pulses import PulseOptions, pulse_options


@click.command()
@model_file
@output_option(
    "OUT.onnx",
    "The file to write; it may be FILE itself. It appears when it is complete, and with --verify when it agrees.",
    required=True,
)
@pulse_options
@click.option(
    "--flush",
    metavar="FLUSH.onnx",
    type=click.Path(path_type=Path),
    callback=parsed(writable),
    help="Write a second graph beside OUT.onnx: it gives what is left when a recording has ended.",
)
@click.option(
    "--rate",
    type=NumberRange(0, min_open=True),
    metavar="HZ",
    help="With --symbol: input frames a second, or with --hop samples a second. The table and the metadata of the file "
    "then say delay and look-ahead in milliseconds, too.",
)
@click.option("--hop", type=NumberRange(0, min_open=True), metavar="SAMPLES", help="With --rate: samples a frame.")
@click.option("--as-step", is_flag=True, help="With --params or --checkpoint: the step, and not the graph of FILE.")
@click.option("--opset", metavar="N", type=click.IntRange(min=1), help="Version of ONNX's operators. [default: 17]")
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(min=1),
    help="Streams a call, along a new first axis or the model's own batch. [default: one, without such an axis]",
)
@params_options
@click.option(
    "--verify",
    is_flag=True,
    help="Run the new file in ONNX Runtime on random inputs first, and compare. Exit status 1 where it differs.",
)
@dim_option(
    "Size of an open dimension of the inputs, other than the batch and time. Of a graph with other parameters: sizes "
    "to verify with, as for 'jaxrnn verify'.",
    several=True,
)
@seed_option("With --verify: seed of the inputs.")
@json_option
def export(
    file: ModelFile,
    output: Path,
    pulses: PulseOptions,
    flush: Path | None,
    rate: float | None,
    hop: float | None,
    as_step: bool,
    opset: int | None,
    batch: int | None,
    params: ParamsOptions,
    verify: bool,
    dims: dict[str, tuple[int, ...]],
    seed: int,
) -> None:
    """Write an ONNX file: a stream, a step, or FILE again with other parameters.

    With --symbol, FILE is a model over whole recordings, and OUT.onnx takes --pulse frames of it a step: what it has to
    remember goes in and comes out by name, and the first state lies in a .npz file beside it. --flush writes the graph
    that gives the last frames. Both carry what a program has to know (names of the state, delay, rate) as metadata.

    Without --symbol, OUT.onnx is the model's own step, written anew: small, its state by name.

    --params and --checkpoint give the parameters of a training. Alone they write the graph of FILE again with them:
    everything else stays as it is, byte for byte. With --symbol or --as-step, the stream or the step has them.

    --verify runs what was written in ONNX Runtime before it appears. A stream goes over recordings of several lengths,
    from its first state, pulse by pulse, with its state carried by name, and is flushed; its outputs are compared with
    those of the same steps in jaxrnn, and with those of the model on the whole recording. A step is compared with the
    model's, and a graph as 'jaxrnn verify' does. Exit status 1 where anything differs, and then nothing is written.

    \b
    Examples of streams:
      jaxrnn export denoiser.onnx --symbol T -o streaming.onnx --flush flush.onnx --verify
      jaxrnn export keywords.onnx --symbol S --pulse 4 --opset 18 -o streaming.onnx
      jaxrnn export denoiser.onnx --symbol T --checkpoint runs/first -o streaming.onnx --verify

    \b
    Examples of steps:
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 -o step.onnx --verify
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 --params tuned.npz --as-step -o step.onnx

    \b
    Examples of graphs with other parameters:
      jaxrnn export model.onnx --checkpoint runs/first -o tuned.onnx --verify
      jaxrnn export vad.onnx --params tuned.npz -o tuned.onnx --verify --static sr=16000 --dim sequence=576
    """  # noqa: D301
    if params and pulses.symbol is None and not as_step:
        from jaxrnn.cli.export_graph import write_graph_again

        _refuse_of_steps({"--flush": flush, "--opset": opset, "--batch": batch, "--rate": rate})
        write_graph_again(file, output, params, verify, dims, seed)
        return
    from jaxrnn.cli.export_step import write_step

    if as_step and pulses.symbol is not None:
        raise click.UsageError("--as-step is the model's own step; with --symbol NAME, a step is a pulse of its stream")
    options = {"opset": opset, "batch": batch, "frame_rate": _frame_rate(pulses.symbol, rate, hop)}
    write_step(file, output, pulses, flush, params, _single(dims), seed if verify else None, **options)


def _frame_rate(symbol: str | None, rate: float | None, hop: float | None) -> float | None:
    """Input frames a second."""
    if hop is not None and rate is None:
        raise click.UsageError("--hop goes with --rate: a frame lasts hop / rate seconds")
    if rate is not None and symbol is None:
        raise click.UsageError("--rate is about a stream: give --symbol NAME, the dimension that is time")
    return None if rate is None else rate / (hop or 1)


def _refuse_of_steps(options: Mapping[str, Any]) -> None:
    """Refuse options about a graph of its own, by name, where FILE is written again."""
    option = next((option for option, value in options.items() if value is not None), None)
    if option is not None:
        raise click.UsageError(
            f"{option} is about a stream or a step; --params and --checkpoint alone write the graph of FILE again: "
            "give --symbol NAME for a stream, --as-step for a step"
        )


def _single(dims: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    for name, sizes in dims.items():
        if len(sizes) != 1:
            raise click.BadParameter(f"{name} needs one size: a stream or a step has no open dimensions")
    return {name: size for name, (size,) in dims.items()}
