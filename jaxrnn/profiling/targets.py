"""What of a model can be profiled: the whole graph, a step, a recording in one call, or a pulse of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn._files.arguments import called
from jaxrnn._files.messages import pairs_of
from jaxrnn._jax.context import exact_types
from jaxrnn.errors import InputError
from jaxrnn.jaxprs.packing import Packed
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.streaming import Streamed
from jaxrnn.streaming.transform import with_dtype
from jaxrnn.verification.sampling import Sample, index_limits, random_arrays, random_inputs


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
