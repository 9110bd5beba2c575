"""What of a model can be profiled: the whole graph, a step, a recording in one call, or a pulse of a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrnn.errors import InputError
from jaxrnn.guards import exact_types
from jaxrnn.jaxprs.packing import Packed, low_precision_type
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.onnx.interface import TensorInfo
from jaxrnn.runtime.ports import input_ports
from jaxrnn.streaming import Streamed
from jaxrnn.verification.sampling import Sample, index_limits, random_arrays, random_inputs

KINDS = ("apply", "step", "scan", "stream")
#: Frames of a recording in one call, if nobody asks for another number.
LENGTH = 100


@dataclass(frozen=True)
class Target:
    """A function of arrays, and random arrays for it.

    Attributes:
        label: what it is.
        function: to be profiled.
        arguments: for it; of a step, a scan or a pulse the state and the inputs.
        sample: the inputs, and how their sizes were chosen.
        again: other inputs of the same shapes, for a number.
        wide: the same function with weights of their own type, where they are narrower; else None.
        packed: the parameters with narrower weights and with their own.
    """

    label: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    sample: Sample
    again: Callable[[int], Any] | None = None
    wide: Callable[..., Any] | None = None
    packed: tuple[Packed, Packed] | None = None


def target(
    model: Model,
    what: str | None,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    batch: int,
    length: int | None,
    stream: Streamed | None,
    seed: int,
    dtype: Any,
) -> Target:
    """What `profile_model` runs."""
    if what is None:
        kinds = {variable.kind for variable in model.state}
        what = "stream" if stream is not None else "step" if kinds == {"external"} else "apply"
    if what not in KINDS:
        raise InputError(f"a model's {what!r} cannot be profiled; what can: {', '.join(KINDS)}")
    if stream is not None and what != "stream":
        raise InputError(f"a streamed function was given, but {what!r} is asked for; what='stream' profiles it")
    if batch < 1 or (length is not None and length < 1):
        raise InputError(f"batch and length must be above 0, not {batch} and {length}")
    if length is not None and what in ("step", "stream"):
        raise InputError(f"length is about the whole graph and scans, not about a {what}")
    narrow = low_precision_type(dtype)
    if what == "apply":
        if narrow is not None:
            raise InputError("dtype is about the weights of steps, scans and streams, not about the whole graph")
        return _of_apply(model, given, dims, batch, length, seed)
    if what == "stream":
        return _of_stream(model, stream or _stream(model, dims), given, dims, batch, seed, narrow)
    return _of_steps(model, given, dims, batch, (length or LENGTH) if what == "scan" else None, seed, narrow)


def _of_apply(
    model: Model, given: Mapping[str, Any], dims: Mapping[str, int], batch: int, length: int | None, seed: int
) -> Target:
    if batch != 1:
        raise InputError("batch is about steps, scans and streams; here, dims gives the size of an open dimension")
    if length is not None:
        symbols = time_symbols(model)
        if len(symbols) != 1:
            raise InputError(f"length: the dimensions that can be time are {_list(symbols)}; dims gives their sizes")
        if dims.get(symbols[0], length) != length:
            raise InputError(f"length is {length}, but dims gives {symbols[0]}={dims[symbols[0]]}")
        dims = {**dims, symbols[0]: length}
    sample = random_inputs(model, given, dims=dims, seed=seed)
    return Target(_label(model, "apply", sample), model.apply, (model.params, sample.inputs), sample)


def _of_steps(
    model: Model,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    batch: int,
    length: int | None,
    seed: int,
    narrow: np.dtype | None,
) -> Target:
    state, symbol = model.init_state(batch), model.batch_symbol
    if symbol is not None and dims.get(symbol, batch) != batch:
        raise InputError(f"dims gives {symbol}={dims[symbol]}, which is the batch, and batch is {batch}; give batch")
    infos = _in_front(model.step_inputs, batch) if symbol is None else model.step_inputs
    sizes = {name: size for name, size in dims.items() if name != symbol}
    named = {**sizes, symbol: batch} if symbol is not None and _has(infos, symbol) else sizes

    def draw(seed: int) -> Sample:
        return random_arrays(infos, given, dims=named, seed=seed, limits=index_limits(model), frames=length)

    def with_params(params: Any) -> Callable[..., Any]:
        if length is None:
            return lambda state, inputs: model.step(params, state, inputs)
        return lambda state, inputs: model.scan(params, state, inputs)

    sample = draw(seed)
    said = "step" if length is None else f"scan of {length} frames"
    label = _label(model, said, sample, _more(batch, narrow))
    if narrow is None:
        return Target(label, with_params(model.params), (state, sample.inputs), sample)
    known = {name: size for name, size in sample.dims.items() if name != symbol}
    packed = (
        model.pack(model.params, dims=known, dtype=narrow),
        model.pack(model.params, dims=known),
    )
    functions = [with_params(params) for params in packed]
    return Target(
        label, functions[0], (state, sample.inputs), sample, lambda seed: draw(seed).inputs, functions[1], packed
    )


def _of_stream(
    model: Model,
    streamed: Streamed,
    given: Mapping[str, Any],
    dims: Mapping[str, int],
    batch: int,
    seed: int,
    narrow: np.dtype | None,
) -> Target:
    ports = input_ports(streamed)
    infos = _in_front([TensorInfo(port.name, port.dtype, port.shape) for port in ports], batch)

    def draw(seed: int) -> Sample:
        return random_arrays(infos, given, seed=seed, limits=index_limits(model))

    def with_params(params: Any) -> Callable[..., Any]:
        return lambda state, inputs: streamed.step(params, state, inputs)

    sample, params = draw(seed), model.params
    with exact_types():
        held = {
            port.name: sample.inputs[port.name] if batch == 1 else sample.inputs[port.name][0]
            for port in ports
            if port.axis is None
        }
        state = streamed.init(batch, params, {port.name: held.get(port.name) for port in ports} if held else None)
    sizes = tuple(f"{name}={size}" for name, size in dims.items())
    label = _label(model, f"pulse of {streamed.pulse}", sample, (*sizes, *_more(batch, narrow)))
    if narrow is None:
        return Target(label, with_params(params), (state, sample.inputs), sample)
    packed = (streamed.pack(params, narrow), streamed.pack(params))
    functions = [with_params(params) for params in packed]
    return Target(
        label, functions[0], (state, sample.inputs), sample, lambda seed: draw(seed).inputs, functions[1], packed
    )


def _more(batch: int, narrow: np.dtype | None) -> list[str]:
    """What a label says besides sizes."""
    return [*([f"batch {batch}"] if batch != 1 else []), *([f"weights in {narrow.name}"] if narrow is not None else [])]


def _stream(model: Model, dims: Mapping[str, int]) -> Streamed:
    symbols = time_symbols(model)
    if len(symbols) != 1:
        raise InputError(
            f"{model.label}: the dimensions that can be time are {_list(symbols)}; say which one, with model.stream"
        )
    return model.stream(symbols[0], None, dims=dims)


def _in_front(infos: Sequence[TensorInfo], batch: int) -> Sequence[TensorInfo]:
    """Declarations with a batch in front, where there is more than one stream."""
    if batch == 1:
        return infos
    return [info if info.shape is None else dataclasses.replace(info, shape=(batch, *info.shape)) for info in infos]


def _has(infos: Sequence[TensorInfo], symbol: str) -> bool:
    return any(symbol in (info.shape or ()) for info in infos)


def _label(model: Model, what: str, sample: Sample, more: Sequence[str] = ()) -> str:
    details = [*(f"{name}={size}" for name, size in sample.dims.items()), *more]
    return f"{model.label}: {what}" + (f" ({', '.join(details)})" if details else "")


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
