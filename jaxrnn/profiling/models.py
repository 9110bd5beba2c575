"""`profile_model`: a model's graph, step, scan or stream, profiled by its nodes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxrnn.guards import exact_types
from jaxrnn.model import Model
from jaxrnn.onnx.blocks import Block
from jaxrnn.profiling.measure import profile
from jaxrnn.profiling.peaks import Peaks
from jaxrnn.profiling.precision import STEPS, LowPrecision, differences_of
from jaxrnn.profiling.results import Profile
from jaxrnn.profiling.targets import FullPrecision, Target, of_stepper, target
from jaxrnn.profiling.traces import time_calls
from jaxrnn.runtime.bound import Bound
from jaxrnn.stepper import Stepper
from jaxrnn.streaming import Streamed


def profile_model(
    model: Model,
    what: str | None = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    length: int | None = None,
    stream: Streamed | None = None,
    seed: int = 0,
    dtype: Any = None,
    peaks: Peaks | bool = True,
) -> Profile:
    """Where the time of a model goes, by node or by region.

    The parameters of steps, scans and streams are compiled in, as `jaxrnn.Runner` does; `apply` takes them as
    arguments, as calling the model does.

    Args:
        model: the model.
        what: ``"apply"``, ``"step"``, ``"scan"`` or ``"stream"``; by default a step where the model's state is among
            its inputs and outputs, else the whole graph.
        inputs: arrays by name; the others are random. Those of a scan have their frames along a first axis, and a
            batch that the file does not have comes in front of the file's own axes.
        dims: sizes of open dimensions, other than the batch of steps.
        batch: streams of a step, a scan or a stream; None for one without a batch axis.
        length: frames of a scan, and of the whole graph where one dimension can be time.
        stream: what `Model.stream` gave, for ``"stream"``; by default in the smallest pulses over the one open
            dimension that can be time.
        seed: of the random inputs.
        dtype: of the weights of steps, scans and streams, as in `Model.pack`. `Profile.low_precision` then says what it
            gains and costs, over several steps with inputs of their own.
        peaks: as in `profile`.

    Raises:
        InputError: an argument does not fit, or does not belong to ``what``.
        StateError: the model forgets its state after every call, so that it has neither steps nor scans.
    """
    chosen = target(
        model, what, inputs or {}, dims or {}, batch=batch, length=length, stream=stream, seed=seed, dtype=dtype
    )
    return _profiled(chosen, dict(operators_of(model)), peaks, seed)


def profile_stepper(
    stepper: Stepper,
    params: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    batch: int | None = None,
    seed: int = 0,
    peaks: Peaks | bool = True,
) -> Profile:
    """Where the time of one step goes, of any `Stepper`, by region.

    Args:
        stepper: a model, a streamed function, a compiled file or one's own.
        params: its parameters, which are compiled in; its own by default.
        inputs: arrays by name; the others are random.
        dims: sizes of open dimensions.
        batch: streams; None for one without a batch axis.
        seed: of the random inputs.
        peaks: as in `profile`.

    Raises:
        InputError: an argument does not fit.
    """
    params = Bound(stepper, params).params
    return _profiled(of_stepper(stepper, params, inputs or {}, dims or {}, batch=batch, seed=seed), {}, peaks, seed)


def _profiled(chosen: Target, nodes: Mapping[str, str], peaks: Peaks | bool, seed: int) -> Profile:
    # Otherwise JAX narrows 64-bit arguments before the function sees them.
    with exact_types(), chosen.sample.blamed():
        profiled = profile(chosen.function, *chosen.arguments, label=chosen.label, nodes=nodes, peaks=peaks)
        if chosen.full is None:
            return profiled
        return dataclasses.replace(profiled, low_precision=_low_precision(chosen, chosen.full, seed))


def _low_precision(chosen: Target, full: FullPrecision, seed: int) -> LowPrecision:
    """What the weights of low precision of a target gain and cost."""
    functions = chosen.function, full.function
    low_step, full_step = (jax.jit(function).lower(*chosen.arguments).compile() for function in functions)
    jax.block_until_ready(full_step(*chosen.arguments))
    times = time_calls(lambda: full_step(*chosen.arguments))
    frames = map(full.draw, range(seed, seed + STEPS))
    nbytes, full_nbytes = (sum(array.nbytes for array in packed.folded) for packed in (full.low, full.packed))
    dtypes = {array.dtype.name for array in full.low.folded} - {array.dtype.name for array in full.packed.folded}
    differences = differences_of(low_step, full_step, chosen.arguments[0], frames)
    return LowPrecision(", ".join(dtypes), nbytes, full_nbytes, statistics.median(times), STEPS, differences)


def operators_of(model: Model) -> Iterator[tuple[str, str]]:
    """The name and the operator of every node, of those in subgraphs too."""

    def inside(block: Block) -> Iterator[tuple[str, str]]:
        for node in block.nodes:
            yield node.name, str(node.operator)
            for value in node.attributes.values():
                if isinstance(value, Block):
                    yield from inside(value)

    yield from inside(model.program.block)
