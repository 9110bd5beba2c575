"""``jaxrnn profile``: where the time of a model goes, beside what the machine can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from jaxrnn.cli.inputs import Inputs, input_options
from jaxrnn.cli.options import ModelFile, json_option, model_file
from jaxrnn.cli.output import Block, Table, TextLine, busy, show
from jaxrnn.cli.pulses import PulseOptions, pulse_options

if TYPE_CHECKING:
    from jaxrnn.profiling import Profile
    from jaxrnn.profiling.results import By

#: Lines of the table, if nobody asks for another number.
TOP = 20


@click.command()
@model_file
@click.option(
    "--what",
    type=click.Choice(["apply", "step", "scan", "stream"]),
    help="The whole graph, a step, a recording of steps in one call, or a pulse of the model as a stream. [default: "
    "stream with --symbol; else a step, where the state is among the model's inputs and outputs; else the whole graph]",
)
@click.option(
    "--by",
    type=click.Choice(["node", "region"]),
    default="node",
    show_default=True,
    help="A line for each ONNX node, or for each region of the compiled program.",
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=TOP,
    show_default=True,
    help="Lines to show; the others are added up in one. --json has all of them.",
)
@click.option("--batch", type=click.IntRange(min=1), help="Streams in one call. [default: one, without a batch axis]")
@click.option(
    "--length",
    type=click.IntRange(min=1),
    metavar="FRAMES",
    help="Frames of --what scan [default: 100], and of the whole graph where one open dimension can be time.",
)
@pulse_options
@input_options()
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16"]),
    help="Compute matrix products and convolutions with operands of this type, and show what that gains, in time and "
    "bytes of weights, and what it costs the outputs over several calls. [default: the file's own types]",
)
@click.option("--peak/--no-peak", default=True, show_default=True, help="Measure what the machine can do.")
@json_option
def profile(
    file: ModelFile, pulses: PulseOptions, given: Inputs, what: str | None, by: By, top: int, peak: bool, **options: Any
) -> None:
    """Show where the time of a model goes, by ONNX node or by region of the compiled program.

    A region is what XLA runs as one: a matrix product, a convolution, or several fused operations. JAX's profiler
    records some calls and times their regions; what the recording itself takes is subtracted. The whole call is timed
    without the profiler, and the time between regions has a line of its own, so that the table adds up to the call.
    Where the profiler slows a program down, as it does many short regions in a loop, the times of the regions are
    scaled to fit the call, and a note says so.

    By node, the time of a region that works for several nodes is divided among them by the operations that each
    needs. That is an estimate; "shared" says how much of a line is one. The names of nodes come from the compiled
    program. "(none)" is for regions that have no name, and whose inputs and readers suggest none.

    FLOP (floating-point operations, without transcendental functions) and bytes (operands read, results written) are
    computed from the shapes in each region, with all trips of loops. XLA's own analysis of the whole program, which
    counts a loop once, stands above the table. Both are compared with peaks that are measured in the same process, on
    the same threads: a large matrix product, and passes over arrays that fit the caches and that do not. "bound by" is
    the nearer of the two limits, or neither if less than a quarter of both is reached: start-up, transcendental
    functions, or scalar code.

    Inputs that are not given are random, with sizes as in 'jaxrnn run --random'. Parameters are compiled in, except
    with --what apply.

    \b
    Examples:
      jaxrnn profile dtln_1.onnx
      jaxrnn profile vad.onnx --static sr=16000 --dim sequence=576 --by region
      jaxrnn profile dtln_1.onnx --what scan --length 1000 --batch 64
      jaxrnn profile dtln_1.onnx --batch 64 --dtype bfloat16
      jaxrnn profile net.onnx --symbol S --pulse 4 --json | jq '.rows[:3]'
    """  # noqa: D301
    import jax

    from jaxrnn.profiling import profile_model
    from jaxrnn.runtime.compiled import is_compiled
    from jaxrnn.verification.sampling import restore_types

    if pulses.symbol is not None and what not in (None, "stream"):
        raise click.UsageError(f"--symbol is about streams, not about --what {what}")
    if is_compiled(file.path):
        raise click.UsageError(f"{file.path} is compiled and knows no nodes: give the ONNX file that it was made from")
    # A step is shorter than handing it to another thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with busy(f"profiling {file.path.name}"):
        model = file.load()
        stream = None if pulses.symbol is None else pulses.stream(model, given.dims)
        arrays = restore_types(model.inputs, given.arrays)
        profiled = profile_model(
            model, what, inputs=arrays, dims=given.dims, stream=stream, seed=given.seed, peaks=peak, **options
        )
    show(profiled.data(by), lambda _: _report(profiled, by, top))


def _report(profiled: Profile, by: By, top: int) -> Iterator[Block]:
    from jaxrnn.profiling.results import NUMBERS, columns

    for line in profiled.heading():
        yield TextLine(line, "yellow" if line.startswith("note:") else None)
    cells = columns(by, peaks=profiled.peaks is not None)
    yield Table(f"Time of a call by {by}", cells, profiled.lines(by, top), right=NUMBERS)
