"""``jaxrnn profile``: show the time of a model, beside the limits of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import click

from jaxrnn.cli.commands import Choice, Count, Given, Option, Taken, command
from jaxrnn.cli.options import Inputs, ModelFile
from jaxrnn.cli.output import Block, Table, TextLine, busy, show
from jaxrnn.cli.stream_options import PulseOptions

if TYPE_CHECKING:
    from jaxrnn.profiling import Profile

#: The units of a line.
By = Literal["node", "region"]
#: Default number of lines.
TOP = 20


@command
def profile(
    *,
    file: ModelFile,
    options: Annotated[
        Given,
        Taken(
            "jaxrnn.profiling:profile_model",
            what=Option(type=Choice(["apply", "step", "scan", "stream"])),
            dtype=Option(type=Choice(["bfloat16", "float16"])),
            batch=Option(type=click.IntRange(1)),
            length=Option(metavar="FRAMES", type=click.IntRange(1)),
        ),
    ],
    by: By = "node",
    top: Count = TOP,
    pulses: PulseOptions,
    given: Inputs,
    peak: Annotated[bool, Option(("--peak/--no-peak",))] = True,
) -> None:
    """Show the time of a model, by ONNX node or by region of the compiled program.

    A region is a unit of XLA's program: a matrix product, a convolution, or several fused operations. JAX's profiler
    records some calls. The whole call is timed without the profiler, and the time between regions has a separate line,
    so that the table adds up to the call. If the profiler slows a program down, as with many short regions in a loop,
    the times of regions are scaled to fit the call, and a note says so.

    By node, the time of a region that serves several nodes is divided in proportion to the sizes of their results,
    because the names of nodes are lost inside of a fusion. This is an estimate; the column "shared" shows the estimated
    part of a line. "(none)" collects regions without a name.

    XLA's analysis counts the operations and bytes of a call, with one trip of each loop. For a program without loops,
    both are compared with peaks measured in the same process and on the same threads: a large matrix product, and
    passes over arrays inside and outside of the caches. The call is bound by the nearer limit, or by neither if less
    than a quarter of both is reached: start-up, transcendental functions, or scalar code.

    Inputs that are not given are random, with sizes as in 'jaxrnn run --random'. Parameters are compiled in, except
    with --what apply.

    Examples:
      jaxrnn profile dtln_1.onnx
      jaxrnn profile vad.onnx --static sr=16000 --dim sequence=576 --by region
      jaxrnn profile dtln_1.onnx --what scan --length 1000 --batch 64
      jaxrnn profile dtln_1.onnx --batch 64 --dtype bfloat16
      jaxrnn profile net.onnx --symbol S --pulse 4 --json | jq '.rows[:3]'

    Args:
        what: The whole graph, a step, a recording of steps in one call, or a pulse of a stream. [default: stream with
            --symbol; else step for a model with state among its inputs and outputs; else apply]
        dtype: Compute matrix products and convolutions with operands of this type, and show the gain in time and in
            bytes of weights, and the error of the outputs over several calls. [default: the types of the file]
        by: One line per ONNX node, or per region of the compiled program.
        top: Number of lines; one more line sums up the rest. --json has all lines.
        peak: Measure the peaks of the machine.
    """
    import jax

    from jaxrnn.profiling import profile_model
    from jaxrnn.runtime.compiled import is_compiled

    if pulses.time is not None and options.get("what", "stream") != "stream":
        raise click.UsageError(f"{pulses.option} is for streams, not for --what {options['what']}")
    if is_compiled(file.path):
        raise click.UsageError(f"{file.path} is compiled and has no nodes: give the ONNX file")
    # Asynchronous dispatch to a thread takes longer than a step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with busy(f"profiling {file.path.name}"):
        model = pulses.load(file)
        stream = None if pulses.time is None else pulses.stream(model, given.dims)
        arrays = given.of(model.inputs)
        profiled = profile_model(
            model, inputs=arrays, dims=given.dims, stream=stream, seed=given.seed, peaks=peak, **options
        )
    show(profiled.data(by), lambda _: _report(profiled, by, top))


def _report(profiled: Profile, by: By, top: int) -> Iterator[Block]:
    from jaxrnn.profiling.results import NUMBERS, columns

    for line in profiled.heading():
        yield TextLine(line, "yellow" if line.startswith("note:") else None)
    yield Table(f"Time of a call by {by}", columns(by), profiled.lines(by, top), right=NUMBERS)
