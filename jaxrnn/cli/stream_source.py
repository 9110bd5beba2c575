"""What ``jaxrnn stream`` runs, and on what: the stepper of a file, and recordings of its inputs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxrnn.cli.stepping import check_size, stream_model
from jaxrnn.cli.stream_options import STEPS, parse_state, parse_static
from jaxrnn.errors import InputError, StateError
from jaxrnn.guards import exact_types
from jaxrnn.model import Model
from jaxrnn.model.inspection import time_symbols
from jaxrnn.model.loading import load
from jaxrnn.recordings import recording_specs
from jaxrnn.runtime.compiled import is_compiled, load_compiled
from jaxrnn.specs import bind, check_names
from jaxrnn.stepper import Stepper
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


@dataclass(frozen=True)
class Asked:
    """What the command was asked for: recordings, sizes, and how much of them; as the options of those names."""

    given: dict[str, np.ndarray]
    sizes: dict[str, int]
    use_random: bool
    seed: int
    symbol: str | None
    limit: int | None
    frames: int | None
    multiple: int
    shortest: int


def recordings_for(source: Source, pulse: int | None, asked: Asked) -> tuple[Stepper, Sample, int]:
    """What runs, recordings of every input, and the number of frames to take of them."""
    stepper, sizes = source.stepper, asked.sizes
    if stepper is None:
        assert source.model is not None
        stepper, sizes = _streamed(source.model, pulse, asked)
    spec, symbol = stepper.spec, asked.symbol or "frames"
    whole = recording_specs(spec, symbol)
    given = restore_types(spec.inputs, asked.given)
    for name in given:
        if any(entry.name == name for entry in spec.state):
            raise InputError(f"{name!r} is state, which is carried from step to step: it takes no recording")
    check_names(spec.inputs, given)
    recorded, limit = spec.count_frames(given), asked.limit or asked.frames
    if recorded == 0:
        raise InputError("the recordings have no frames")
    declared = spec.inputs if source.model is None or source.stepper is not None else source.model.inputs
    missing = ", ".join(str(each) for each in declared if each.name not in given)
    if missing and not asked.use_random:
        raise InputError(f"{spec.label}: no recording of input(s) {missing}; give --input NAME=X.npy or --random")
    if recorded is not None and limit is not None and limit > recorded:
        option = "--steps" if asked.limit else "--frames"
        raise InputError(f"{option} {limit}: the recordings have {recorded} frames")
    total = limit or recorded or STEPS * spec.pulse
    if total % spec.multiple:
        raise InputError(f"{total} frames are no multiple of {spec.multiple}, as --multiple says of every recording")
    if total < asked.shortest:
        raise InputError(f"{total} frames are fewer than --shortest {asked.shortest}")
    with exact_types():
        bind([each for each in whole if each.name in given], given)
    if not given and spec.batch_symbol in symbols_of(spec.inputs):
        sizes = {str(spec.batch_symbol): 1, **sizes}
    limits = {} if source.model is None else index_limits(source.model)
    # The sizes of a streamed model have been fixed; recordings that are given say how many frames all of them have.
    known = {**(sizes if source.stepper is not None else {}), **({} if recorded is not None else {symbol: total})}
    sample = random_arrays(whole, given, dims=known, seed=asked.seed, limits=limits)
    kept = {name: size for name, size in {**sizes, **sample.dims}.items() if spec.streams or name != symbol}
    check_size(spec)
    return stepper, dataclasses.replace(sample, dims=kept), total


def _streamed(model: Model, pulse: int | None, asked: Asked) -> tuple[Stepper, dict[str, int]]:
    """The model in pulses, and the sizes of its other open dimensions, as recordings or --dim give them."""
    symbol = asked.symbol or ""
    if symbol not in symbols_of(model.inputs):
        names = ", ".join(symbols_of(model.inputs)) or "none"
        raise InputError(f"{model.label}: no input has a dimension {symbol!r}; --symbol takes one of: {names}")
    if symbol in asked.sizes:
        raise InputError(f"--dim {symbol}: give the number of frames with --frames")
    given = restore_types(model.inputs, asked.given)
    # What does not fit is refused when all is known; the sizes come with what does.
    known = [info for info in model.inputs if info.name in given and len(info.shape or ()) == given[info.name].ndim]
    dims = asked.sizes if symbol in symbols_of(known) else {**asked.sizes, symbol: asked.multiple}
    first = random_inputs(model, {info.name: given[info.name] for info in known}, dims=dims, seed=asked.seed)
    sizes = {name: size for name, size in first.dims.items() if name != symbol}
    return stream_model(model, symbol, pulse, sizes, asked.multiple, asked.shortest), sizes


def open_source(file: Path, static: tuple[str, ...], pairs: tuple[str, ...], symbol: str | None) -> Source:
    """The model or the compiled file, refused with what to do where it has neither steps nor a symbol.

    Raises:
        StateError: the model has no steps of its own; says how to stream it.
    """
    if is_compiled(file):
        if static or pairs:
            raise click.UsageError(f"{file} is compiled: --static and --state have been decided by 'jaxrnn compile'")
        if symbol is not None:
            raise click.UsageError(f"{file} is compiled: --symbol needs the ONNX file")
        return Source(None, load_compiled(file), None)
    model = load(file, static=parse_static(static), state=parse_state(pairs))
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
