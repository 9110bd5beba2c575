"""`profile_model`: a model's graph, step, scan or stream, profiled by its nodes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxrnn._files.arguments import NAME, SIZE, argument, called, either
from jaxrnn._files.messages import pairs_of
from jaxrnn._jax.context import exact_types
from jaxrnn._jax.precision import compute_type
from jaxrnn.errors import InputError, check_count
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.onnx.blocks import Block
from jaxrnn.profiling.measure import profile
from jaxrnn.profiling.results import STEPS, LowPrecision, Profile, differences_of
from jaxrnn.profiling.timing import Peaks, time_calls
from jaxrnn.runtime.bound import Bound
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import with_dtype
from jaxrnn.verification.sampling import Sample, index_limits, random_arrays, random_inputs

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


@dataclass(frozen=True)
class FullPrecision:
    """What a function of low precision is compared with.

    Attributes:
        dtype: the compute dtype of that function.
        function: the same in full precision.
        packed: its parameters.
        state: its first state; that of a stream holds frames in the types that they are needed in.
        low: those of the function that is profiled.
        draw: other inputs of the same shapes, for a number.
    """

    dtype: str
    function: Callable[..., Any]
    packed: Packed
    state: Any
    low: Packed
    draw: Callable[[int], Any]


@dataclass(frozen=True)
class Target:
    """A function of arrays, and random arrays for it.

    Attributes:
        label: what it is.
        function: to be profiled.
        arguments: for it; of a step, a scan or a pulse the state and the inputs.
        sample: the inputs, and how their sizes were chosen.
        full: where the function has a compute dtype, what it is compared with.
    """

    label: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    sample: Sample
    full: FullPrecision | None = None


def of_graph(
    model: Model, given: Mapping[str, Any], dims: Mapping[str, int], *, length: int | None, seed: int
) -> Target:
    """The whole graph.

    Args:
        model: its parameters are arguments of the function.
        given: inputs by name; the others are random.
        dims: sizes of open dimensions.
        length: the size of the one open dimension that can be time.
        seed: of the random inputs.
    """
    if length is not None:
        symbols = time_symbols(model)
        if len(symbols) != 1:
            listed = ", ".join(symbols) or "none"
            raise InputError(
                f"{called('length')}: the dimensions that can be time are {listed}; {called('dims')} gives their sizes"
            )
        if dims.get(symbols[0], length) != length:
            raise InputError(
                f"{called('length')} is {length}, but {called('dims')} gives {symbols[0]}={dims[symbols[0]]}"
            )
        dims = {**dims, symbols[0]: length}
    sample = random_inputs(model, given, dims=dims, seed=seed)
    label = _label(model.label, "apply", pairs_of(sample.dims))
    return Target(label, model.apply, (model.params, sample.inputs), sample)


def of_stepper(
    stepper: Stepper,
    params: Any,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    batch: int | None,
    seed: int,
    frames: int | None = None,
    dtype: np.dtype | None = None,
    model: Model | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Target:
    """A step of any stepper, or many steps in one call.

    Args:
        stepper: what to run.
        params: its parameters.
        given: inputs by name; the others are random.
        dims: sizes of open dimensions besides the batch.
        batch: streams; None for one without a batch axis.
        seed: of the random inputs.
        frames: of a scan, stacked along a first axis of every input; None for one step.
        dtype: the compute dtype, for a model or the stream of one.
        model: what the stepper was made of: its tables say how large random indices may be.
        sizes: what the label says of sizes besides.
    """
    spec = stepper.spec
    symbol = spec.batch_symbol
    if symbol is not None and symbol in dims and batch not in (None, dims[symbol]):
        raise InputError(
            f"{called('dims')} gives {symbol}={dims[symbol]}, which is the batch, and {called('batch')} is {batch}; "
            f"give {called('batch')} alone"
        )
    infos = [each.batched(() if batch is None or symbol is not None else (batch,)) for each in spec.inputs]
    streams, named = batch, {}
    if symbol is not None:
        streams = dims.get(symbol, 1 if batch is None else batch)
        named = {symbol: streams} if any(symbol in each.symbols for each in infos) else {}
    limits = {} if model is None else index_limits(model)

    def draw(seed: int) -> Sample:
        return random_arrays(infos, given, dims={**dims, **named}, seed=seed, limits=limits, frames=frames)

    def with_params(stepper: Any, params: Any) -> Callable[..., Any]:
        if frames is None:
            return lambda state, inputs: stepper.step(params, state, inputs)
        return lambda state, inputs: stepper.scan(params, state, inputs)

    sample = draw(seed)
    lead = 0 if symbol is not None or batch is None else 1
    constants = {name: sample.inputs[name][0] if lead else sample.inputs[name] for name in spec.constants}

    def first_state(stepper: Stepper) -> Any:
        with exact_types():
            return stepper.init(streams, params=params, constants=constants or None)

    details = [
        pairs_of({**sample.dims, **(sizes or {})}),
        "" if batch is None else f"batch {batch}",
        "" if dtype is None else f"products in {dtype.name}",
    ]
    label = _label(spec.label if model is None else model.label, _what(spec, frames), *details)
    if dtype is None:
        return Target(label, with_params(stepper, params), (first_state(stepper), sample.inputs), sample)
    if isinstance(stepper, Streamed):
        other = with_dtype(stepper, dtype)
        packed, low = stepper.pack(params), other.pack(params)
    else:
        assert isinstance(stepper, Model)
        other, known = stepper, {name: size for name, size in sample.dims.items() if name != symbol}
        packed, low = stepper.pack(params, dims=known), stepper.pack(params, dims=known, dtype=dtype)
    full = FullPrecision(
        dtype.name,
        with_params(stepper, packed),
        packed,
        first_state(stepper),
        low,
        lambda seed: draw(seed).inputs,
    )
    return Target(label, with_params(other, low), (first_state(other), sample.inputs), sample, full)


def _what(spec: StepSpec, frames: int | None) -> str:
    if frames is not None:
        return f"scan of {frames} frames"
    return f"pulse of {spec.pulse}" if spec.streams else "step"


def _label(name: str, what: str, *details: str) -> str:
    text = ", ".join(filter(None, details))
    return f"{name}: {what}" + (f" ({text})" if text else "")
