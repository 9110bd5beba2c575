"""``jaxrnn export``: write a stream, a step, or a graph with other parameters as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import click

from jaxrnn.cli.commands import Choice, Given, Option, Positive, Seed, Taken, command
from jaxrnn.cli.options import (
    FOLDER,
    OUTPUT,
    InputFiles,
    ManyDims,
    ModelFile,
    ParamsOptions,
    new_file,
    refuse,
    single_sizes,
    split_pairs,
)
from jaxrnn.cli.stream_options import TimedPulses

#: The target of files that are no ONNX files, and the options of ONNX files only.
LITERT = "litert"
_OF_ONNX = ("opset", "io_dtype", "join_state", "shared_weights")
_TYPES = Choice(["bfloat16", "float16"])


def _streams(text: str) -> int | str:
    """Return a number of streams, or the name of an open number."""
    if text.isidentifier() or (text.isdecimal() and int(text) > 0):
        return int(text) if text.isdecimal() else text
    raise click.BadParameter(
        f"{text!r} is not a number of streams, such as 8, or a name for an open number, such as N."
    )


@command
def export(
    *,
    file: ModelFile,
    output: Annotated[Path, new_file("OUT.onnx|.tflite", *OUTPUT)],
    pulses: TimedPulses,
    flush: Annotated[Path, new_file("FLUSH.onnx")] | None = None,
    rate: Annotated[Positive, Option(metavar="HZ")] | None = None,
    as_step: bool = False,
    options: Annotated[
        Given,
        Taken(
            "jaxrnn.export:export_onnx",
            opset=Option(metavar="N", type=click.IntRange(1)),
            batch=Option(metavar="N|NAME", type=click.STRING, parse=_streams),
            dtype=Option(type=_TYPES),
            io_dtype=Option(type=_TYPES),
            quantize=Option(type=Choice(["dynamic", "static"])),
            target=Option(type=Choice(["tract", LITERT])),
            join_state=Option(),
            shared_weights=Option(),
            guard=Option(),
        ),
    ],
    metadata: Annotated[dict[str, str], Option(metavar="KEY=TEXT", parse=split_pairs)] | None = None,
    quantize_exclude: Annotated[tuple[str, ...], Option(metavar="NAME")] = (),
    calibrate: Annotated[Path, Option(metavar=FOLDER, type=click.Path(exists=True, file_okay=False, path_type=Path))]
    | None = None,
    names: Annotated[dict[str, str], Option(("--name",), "NAME=NEW", parse=split_pairs)] | None = None,
    params: ParamsOptions,
    verify: bool = False,
    given: InputFiles,
    dims: ManyDims,
    example: Annotated[Path, new_file(FOLDER)] | None = None,
    seed: Seed = 0,
) -> None:
    """Write an ONNX file: a stream, a step, or FILE with other parameters.

    With --symbol, FILE is an offline model, and OUT.onnx takes --pulse frames per step. Its state goes in and comes out
    by name; the initial state is in a .npz file beside OUT.onnx. --flush writes a graph that returns the last frames.
    Both graphs carry the names of the state, delays and rates as metadata.

    Without --symbol, OUT.onnx is the step of the model as a new, small graph, with its state by name.

    OUT.tflite is a file for LiteRT on phones and boards, with the step and the flush as two signatures. --dtype float16
    then stores the weights in 16 bits, and --quantize dynamic or static in 8 bits.

    --quantize static takes the ranges of inputs and outputs of products from the recordings of --calibrate FOLDER,
    through the steps of the stream, and prints the error over these recordings. Without --input or --inputs, --verify
    then uses the first of them.

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

    Examples of streams:
      jaxrnn export denoiser.onnx --symbol T -o streaming.onnx --flush flush.onnx --verify
      jaxrnn export keywords.onnx --symbol S --pulse 4 --opset 18 -o streaming.onnx
      jaxrnn export denoiser.onnx --symbol T --checkpoint runs/first -o streaming.onnx --verify
      jaxrnn export net.onnx --stft 512 --hop 256 --gives mask --rate 16000 -o s.onnx --flush f.onnx --example folder

      jaxrnn export denoiser.onnx --symbol T -o streaming.tflite --verify

    Examples of steps:
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 -o step.onnx --verify
      jaxrnn export vad.onnx --static sr=16000 --dim sequence=576 --params tuned.npz --as-step -o step.onnx

    Examples of graphs with other parameters:
      jaxrnn export model.onnx --checkpoint runs/first -o tuned.onnx --verify
      jaxrnn export vad.onnx --params tuned.npz -o tuned.onnx --verify --static sr=16000 --dim sequence=576

    Args:
        output: File to write, which may be FILE. The file appears once it is complete, and with --verify once it
            agrees.
        hop: Samples from one frame to the next. With --rate: samples per input frame.
        flush: Write a second graph beside OUT.onnx, which returns the last frames after the end of a recording.
        rate: With --symbol: input frames per second, or with --hop samples per second. The table and the metadata then
            give delay and look-ahead in milliseconds too.
        metadata: An entry of the metadata of the file of a stream or step; may be given several times. The metadata and
            doc strings of FILE are kept.
        quantize_exclude: With --quantize: a product, convolution or LSTM that stays float32, by the start of its name;
            may be given several times.
        calibrate: With --quantize static: a folder of recordings, which are sound files, .npz files of all inputs, or
            .npy files of the only input.
        names: Give an input or output of the file of a stream or step another name; may be given several times.
        as_step: With --params or --checkpoint: write the step in place of the graph of FILE.
        verify: First run the new file in ONNX Runtime on random or given inputs, and compare. Exit status 1 if it
            differs.
        dims: Size of an open dimension of the inputs, other than the batch and time. For a graph with other parameters:
            sizes for --verify, as in 'jaxrnn verify'.
        example: Also write a folder with the files and programs that run them, to start from: run.py; for ONNX also
            main.cpp and index.html; for LiteRT also main.c, Stream.kt and Stream.swift.
        seed: With --verify: seed of the inputs.
    """
    from jaxrnn.cli.export_writing import write_graph_again, write_step

    if example is not None and options.get("shared_weights"):
        raise click.UsageError(
            "--shared-weights is not for --example: the page of the example loads one file at a time"
        )
    if given and not verify:
        raise click.UsageError("--input and --inputs give the recordings to verify with: they need --verify")
    types = {name: options[name] for name in ("dtype", "io_dtype", "quantize") if name in options}
    options |= {name: value for name, value in (("metadata", metadata), ("names", names)) if value}
    if (calibrate is None) == (options.get("quantize") == "static"):
        raise click.UsageError("--quantize static and --calibrate FOLDER go together: ranges come from recordings")
    if output.suffix == ".tflite" and options.setdefault("target", LITERT) != LITERT:
        raise click.UsageError(
            f"{output.name} is a file for LiteRT, and --target {options['target']} is for ONNX files"
        )
    if options.get("target") == LITERT:
        options |= _for_litert(options, flush, output)
    if quantize_exclude and not options.get("quantize"):
        raise click.UsageError("--quantize-exclude goes with --quantize dynamic or static")
    if calibrate is not None and pulses.time is None and not as_step and not file.has_steps:
        raise click.UsageError("--quantize static is for a stream or a step: give --symbol NAME for a stream")
    if pulses.time is None and not as_step and (params or (types and not file.has_steps)):
        of_steps = {f"--{name.replace('_', '-')}": value for name, value in options.items() if name not in types}
        of_steps["--name"] = of_steps.pop("--names", None)
        alone = "--params and --checkpoint alone" if params else "for a model without steps, --dtype and --quantize"
        refuse(
            {"--flush": flush, "--rate": rate, **of_steps, "--example": example},
            f"is for a stream or a step, but {alone} write the graph of FILE: give --symbol NAME for a stream, or "
            "--as-step for a step",
        )
        write_graph_again(file, output, params, verify, given, dims, seed, types, quantize_exclude)
        return
    if as_step and pulses.time is not None:
        raise click.UsageError(
            "--as-step is the step of the model; with --symbol NAME, a step is a pulse of the stream"
        )
    hop = pulses.hop(rate)
    pulses.need_symbol({"--rate": rate})
    options["frame_rate"] = None if rate is None else rate / (hop or 1)
    sizes = single_sizes(dims, ": a stream or a step has no open dimensions")
    write_step(
        file,
        output,
        pulses,
        flush,
        params,
        sizes,
        given,
        seed if verify else None,
        example,
        calibrate,
        quantize_exclude,
        **options,
    )


def _for_litert(options: Given, flush: Path | None, output: Path) -> dict[str, Any]:
    """Check the options of a LiteRT file, and return the options with the types of the file."""
    given = {f"--{name.replace('_', '-')}": options.get(name) for name in _OF_ONNX}
    refuse(given, "is for ONNX files, not for LiteRT")
    refuse({"--flush": flush}, f"is for ONNX files: for LiteRT, {output.name} has the flush as a signature")
    if isinstance(options.get("batch"), str):
        raise click.UsageError(f"--batch {options['batch']} is for ONNX files: for LiteRT, give the number of streams")
    if options.get("dtype") not in (None, "float16"):
        raise click.UsageError(
            "a file for LiteRT stores weights as float32, as --dtype float16, or as --quantize dynamic or static"
        )
    return {**options, "dtype": None, "quantize": options.get("quantize") or options.get("dtype")}
