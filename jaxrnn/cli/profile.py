"""``jaxrnn profile``: show the time of a model by ONNX node, or by region of the compiled program."""

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
) -> None:
    """Show the time of a model, by ONNX node or by region of the compiled program.

    A region is a unit of XLA's program: a matrix product, a convolution, or several fused operations. The table divides
    a call with JAX's profiler, and has a separate line for the time between regions. The time of a call without the
    profiler stands above the table.

    By node, the time of a region that serves several nodes is divided in proportion to the sizes of their results,
    because the names of nodes are lost inside of a fusion. This is an estimate; the column "shared" shows the estimated
    part of a line. "(none)" collects work outside of the nodes, and regions without a name.

    XLA's analysis counts the operations and bytes of a call, with one trip of each loop. For time lines, memory and the
    limits of an accelerator, record a trace with jax.profiler.trace and open the trace in XProf (pip install xprof).

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
        profiled = profile_model(model, inputs=arrays, dims=given.dims, stream=stream, seed=given.seed, **options)
    show(profiled.data(by), lambda _: _report(profiled, by, top))


def _report(profiled: Profile, by: By, top: int) -> Iterator[Block]:
    from jaxrnn.profiling.regions import NUMBERS

    for line in profiled.heading():
        yield TextLine(line, "yellow" if line.startswith("note:") else None)
    headings, *rows = profiled.cells(by, top)
    yield Table(f"Time of a call by {by}", headings, rows, right=NUMBERS)
