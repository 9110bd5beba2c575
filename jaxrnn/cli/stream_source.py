"""What ``jaxrnn stream`` runs, and on what: the stepper of a file, and recordings of its inputs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import click

from jaxrnn._files.messages import bytes_of
from jaxrnn._jax.context import exact_types
from jaxrnn.cli.inputs import Inputs
from jaxrnn.cli.options import ModelFile
from jaxrnn.cli.pulses import PulseOptions
from jaxrnn.errors import InputError, StateError
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.onnx.limits import Limits
from jaxrnn.runtime.compiled import is_compiled, load_compiled
from jaxrnn.steps.recordings import recording_specs
from jaxrnn.steps.specs import bind, check_names
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.sampling import (
    Sample,
    index_limits,
    random_arrays,
    random_inputs,
    restore_types,
    symbols_of,
)


@dataclass(frozen=True)
class Source:
    """What is in the file.

    Attributes:
        model: of an ONNX file; None for a compiled one.
        stepper: what runs, where the file says it; None for a model that is to be streamed.
        params: of what runs.
    """

    model: Model | None
    stepper: Stepper | None
    params: Any


def recordings_for(
    source: Source, given: Inputs, pulses: PulseOptions, limit: int | None, frames: int | None, steps: int
) -> tuple[Stepper, Sample, int]:
    """What runs, recordings of every input, and the number of frames to take of them.

    Args:
        source: what is in the file.
        given: recordings, or sizes of random ones.
        pulses: how to stream a model over whole recordings.
        limit: ``--steps``.
        frames: ``--frames``.
        steps: how many, if nothing else says it.
    """
    stepper, sizes = source.stepper, given.dims
    if stepper is None:
        assert source.model is not None
        stepper, sizes = _streamed(source.model, given, pulses)
    spec, symbol = stepper.spec, pulses.symbol or "frames"
    whole = recording_specs(spec, symbol)
    arrays = restore_types(spec.inputs, given.arrays)
    for name in arrays:
        if any(entry.name == name for entry in spec.state):
            raise InputError(f"{name!r} is state, which is carried from step to step: it takes no recording")
    check_names(spec.inputs, arrays)
    recorded, asked = spec.count_frames(arrays), limit or frames
    if recorded == 0:
        raise InputError("the recordings have no frames")
    declared = spec.inputs if source.model is None or source.stepper is not None else source.model.inputs
    missing = ", ".join(str(each) for each in declared if each.name not in arrays)
    if missing and not given.random:
        raise InputError(f"{spec.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if recorded is not None and asked is not None and asked > recorded:
        option = "--steps" if limit else "--frames"
        raise InputError(f"{option} {asked}: the recordings have {recorded} frames")
    default = steps * spec.pulse
    if pulses.longest is not None:
        default = min(default, pulses.longest // spec.multiple * spec.multiple)
    total = asked or recorded or default
    if total % spec.multiple:
        raise InputError(f"{total} frames are no multiple of {spec.multiple}, as --multiple says of every recording")
    if total < pulses.shortest:
        raise InputError(f"{total} frames are fewer than --shortest {pulses.shortest}")
    if pulses.longest is not None and total > pulses.longest:
        raise InputError(f"{total} frames are more than --longest {pulses.longest}")
    with exact_types():
        bind([each for each in whole if each.name in arrays], arrays)
    if not arrays and spec.batch_symbol in symbols_of(spec.inputs):
        sizes = {str(spec.batch_symbol): 1, **sizes}
    limits = {} if source.model is None else index_limits(source.model)
    # The sizes of a streamed model have been fixed; recordings that are given say how many frames all of them have.
    known = {**(sizes if source.stepper is not None else {}), **({} if recorded is not None else {symbol: total})}
    sample = random_arrays(whole, arrays, dims=known, seed=given.seed, limits=limits)
    kept = {name: size for name, size in {**sizes, **sample.dims}.items() if spec.streams or name != symbol}
    _check_size(spec)
    return stepper, dataclasses.replace(sample, dims=kept), total


def _check_size(spec: StepSpec) -> None:
    """Refuse a pulse that no memory holds."""
    for each in spec.inputs:
        if spec.streams and each.nbytes > Limits.value_bytes:
            raise InputError(
                f"a pulse of {spec.pulse:,} frames takes {bytes_of(each.nbytes)} for {each.name}, and no more than "
                f"{bytes_of(Limits.value_bytes)} are allowed; give a smaller --pulse"
            )


def _streamed(model: Model, given: Inputs, pulses: PulseOptions) -> tuple[Stepper, dict[str, int]]:
    """The model in pulses, and the sizes of its other open dimensions, as recordings or --dim give them."""
    symbol = pulses.symbol or ""
    if symbol not in symbols_of(model.inputs):
        names = ", ".join(symbols_of(model.inputs)) or "none"
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}; --symbol takes one of: {names}")
    if symbol in given.dims:
        raise InputError(f"--dim {symbol}: give the number of frames with --frames")
    arrays = restore_types(model.inputs, given.arrays)
    # What does not fit is refused when all is known; the sizes come with what does.
    known = [info for info in model.inputs if info.name in arrays and len(info.shape or ()) == arrays[info.name].ndim]
    dims = given.dims if symbol in symbols_of(known) else {**given.dims, symbol: pulses.multiple}
    opened = [name for name in symbols_of(model.inputs) if name not in dims and name not in symbols_of(known)]
    dims = {**dims, **dict.fromkeys(opened, 1)}  # one stream, as of Model.stream, whatever its batch is called
    first = random_inputs(model, {info.name: arrays[info.name] for info in known}, dims=dims, seed=given.seed)
    sizes = {name: size for name, size in first.dims.items() if name != symbol}
    return pulses.stream(model, sizes), sizes


def open_source(file: ModelFile, symbol: str | None, native: bool = False) -> Source:
    """The model or the compiled file, refused with what to do where it has neither steps nor a symbol.

    Args:
        file: of either kind.
        symbol: ``--symbol``.
        native: ``--native``.

    Raises:
        StateError: the model has no steps of its own; says how to stream it.
    """
    if is_compiled(file.path):
        if file.static or file.state is not None:
            raise click.UsageError(
                f"{file.path} is compiled: --static and --state have been decided by 'jaxrnn compile'"
            )
        if symbol is not None:
            raise click.UsageError(f"{file.path} is compiled: --symbol needs the ONNX file")
        return Source(None, load_compiled(file.path, native=native), None)
    if native:
        raise click.UsageError(f"{file.path} is not compiled: --native runs machine code that 'jaxrnn compile' kept")
    model = file.load()
    if symbol is not None:
        return Source(model, None, model.params)
    try:
        _ = model.spec
    except StateError as error:
        raise StateError(f"{error}. {_about_pulses(model)}") from error
    return Source(model, model, model.params)


def _about_pulses(model: Model) -> str:
    """How to stream a model that has no steps of its own."""
    symbols = time_symbols(model)
    if not symbols:
        return "For pulses (--symbol NAME), export it with a symbolic dimension for time"
    others = f" (or {', '.join(symbols[1:])}, whichever is time)" if symbols[1:] else ""
    return f"Here, in pulses of the recording: --symbol {symbols[0]}{others}, with --pulse FRAMES for a size of pulse"
