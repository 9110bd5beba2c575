"""`profile_model`: a model's graph, step, scan or stream, profiled by its nodes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from jaxrnn._files.arguments import NAME, SIZE, argument, called, either
from jaxrnn._jax.context import exact_types
from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import InputError, check_count
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.onnx.blocks import Block
from jaxrnn.profiling.measure import profile
from jaxrnn.profiling.peaks import Peaks
from jaxrnn.profiling.precision import STEPS, LowPrecision, differences_of
from jaxrnn.profiling.results import Profile
from jaxrnn.profiling.targets import FullPrecision, Target, of_graph, of_stepper
from jaxrnn.profiling.traces import time_calls
from jaxrnn.runtime.bound import Bound
from jaxrnn.steps.stepper import Stepper
from jaxrnn.streaming import Streamed

KINDS = ("apply", "step", "scan", "stream")
#: Frames of a recording in one call, if nobody asks for another number.
LENGTH = 100


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
        dtype: the compute dtype of a step, a scan or a stream, as in `Model.pack`. `Profile.low_precision` then says
            what it gains and costs, over several steps with inputs of their own.
        peaks: as in `profile`.

    Raises:
        InputError: an argument does not fit, or does not belong to ``what``.
        StateError: the model forgets its state after every call, so that it has neither steps nor scans.
    """
    if what is None:
        kinds = {variable.kind for variable in model.state}
        what = "stream" if stream is not None else "step" if kinds == {"external"} else "apply"
    if what not in KINDS:
        raise InputError(f"a model's {what!r} cannot be profiled; what can: {', '.join(KINDS)}")
    if stream is not None and what != "stream":
        raise InputError(
            f"a streamed function was given, but {what!r} is asked for; {argument('what', 'stream')} profiles it"
        )
    for name, count in {"batch": batch, "length": length}.items():
        if count is not None:
            check_count(name, count)
    if length is not None and what in ("step", "stream"):
        raise InputError(f"{called('length')} is about the whole graph and scans, not about a {what}")
    dtype, inputs, dims = compute_type(dtype), inputs or {}, dims or {}
    if what == "apply":
        if batch is not None:
            sizes = argument("dims", {NAME: SIZE})
            raise InputError(f"{called('batch')} is about steps, scans and streams; {sizes} sizes open dimensions here")
        if dtype is not None:
            raise InputError(f"{called('dtype')} is about steps, scans and streams here, not about the whole graph")
        target = of_graph(model, inputs, dims, length=length, seed=seed)
    else:
        stepper, sizes = (stream or _stream(model, dims), dims) if what == "stream" else (model, None)
        target = of_stepper(
            stepper,
            model.params,
            inputs,
            {} if what == "stream" else dims,
            batch=batch,
            seed=seed,
            frames=(length or LENGTH) if what == "scan" else None,
            dtype=dtype,
            model=model,
            sizes=sizes,
        )
    return _profiled(target, dict(operators_of(model)), peaks, seed)


def _stream(model: Model, dims: Mapping[str, int]) -> Streamed:
    symbols = time_symbols(model)
    if len(symbols) != 1:
        listed = ", ".join(symbols) or "none"
        raise InputError(
            f"{model.label}: say which dimension is time, with "
            f"{either('model.stream', '--symbol NAME')}; those that can be: {listed}"
        )
    return model.stream(symbols[0], dims=dims)


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
    with exact_types(), chosen.sample.naming_assumptions():
        profiled = profile(chosen.function, *chosen.arguments, label=chosen.label, nodes=nodes, peaks=peaks)
        if chosen.full is None:
            return profiled
        return dataclasses.replace(profiled, low_precision=_low_precision(chosen, chosen.full, seed))


def _low_precision(chosen: Target, full: FullPrecision, seed: int) -> LowPrecision:
    """What the compute dtype of a target gains and costs."""
    functions = chosen.function, full.function
    states, inputs = (chosen.arguments[0], full.state), chosen.arguments[1]
    low_step, full_step = (
        jax.jit(function).lower(state, inputs).compile() for function, state in zip(functions, states, strict=True)
    )
    jax.block_until_ready(full_step(full.state, inputs))
    times = time_calls(lambda: full_step(full.state, inputs))
    frames = map(full.draw, range(seed, seed + STEPS))
    nbytes, full_nbytes = (sum(array.nbytes for array in packed.folded) for packed in (full.low, full.packed))
    differences = differences_of(low_step, full_step, states, frames)
    return LowPrecision(full.dtype, nbytes, full_nbytes, statistics.median(times), STEPS, differences)


def operators_of(model: Model) -> Iterator[tuple[str, str]]:
    """The name and the operator of every node, of those in subgraphs too."""

    def inside(block: Block) -> Iterator[tuple[str, str]]:
        for node in block.nodes:
            yield node.name, str(node.operator)
            for value in node.attributes.values():
                if isinstance(value, Block):
                    yield from inside(value)

    yield from inside(model.program.block)
