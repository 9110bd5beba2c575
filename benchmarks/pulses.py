"""One pulse of networks with a time axis, streamed: jaxrnn's step beside tract's pulse, NumPy in and NumPy out.

Each carries its state its own way. The outputs are compared over a whole signal, less the delay; where tract's first
frames are known to be wrong, behind them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import jaxrnn
from benchmarks import own
from benchmarks.networks import path_of
from benchmarks.peers import Arrays, brief, engine_module, is_installed
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row

TITLE = "one pulse of a streamed offline network, NumPy in and out"
UNIT = "us"

#: By model: the smallest pulse, and how many frames behind the delay tract's output may be off: its wrong first frames
#: stay in the recurrent layers for a while.
MODELS = {"filter_net": (1, 40), "keyword_net": (2, 0), "wave_net": (64, 0), "dual_path_net": (1, 0)}

PULSES = 60


@dataclass(frozen=True)
class Engine:
    """A live stream in one engine.

    Attributes:
        run: outputs by name of one pulse of inputs by name, as NumPy arrays.
        delay: frames of each output before its frame 0.
        late: frames behind the delay that are not compared.
    """

    run: Callable[[Arrays], dict[str, Any]]
    delay: Mapping[str, int]
    late: int = 0


def cases(plan: Plan) -> Cases:
    """A network each."""
    return {name: functools.partial(_rows, plan, name) for name in MODELS}


def recordings(model: jaxrnn.Model, frames: int) -> dict[str, np.ndarray]:
    """Random input of so many frames."""
    rng = np.random.default_rng(0)
    return {
        info.name: rng.normal(size=[frames if size == "S" else int(size) for size in info.shape or ()]).astype(
            np.float32
        )
        for info in model.inputs
    }


def pulse_of(model: jaxrnn.Model, inputs: Arrays, index: int, pulse: int) -> dict[str, np.ndarray]:
    """The frames of one pulse."""
    axes = {info.name: (info.shape or ()).index("S") for info in model.inputs}
    return {
        name: np.ascontiguousarray(np.take(array, range(index * pulse, (index + 1) * pulse), axes[name]))
        for name, array in inputs.items()
    }


def compared(model: jaxrnn.Model, pulse: int, engine: Engine) -> dict[str, np.ndarray]:
    """The outputs of an engine over a signal, at their places among the offline ones, which fill what is not compared.

    So every engine's outputs are to be those of the offline model, frame by frame.
    """
    inputs = recordings(model, PULSES * pulse)
    offline, axes = model(inputs), model.stream(pulse=pulse).axes
    pieces = [engine.run(pulse_of(model, inputs, index, pulse)) for index in range(PULSES)]
    outputs = {}
    for name, axis in axes.items():
        values = np.concatenate([piece[name] for piece in pieces], axis)
        found = np.take(values, range(engine.delay[name] + engine.late, values.shape[axis]), axis)
        whole = np.moveaxis(np.array(offline[name]), axis, 0)
        whole[engine.late : engine.late + found.shape[axis]] = np.moveaxis(found, axis, 0)
        outputs[name] = whole
    return outputs


def _rows(plan: Plan, name: str) -> Iterator[Row]:
    pulse, late = MODELS[name]
    model = jaxrnn.load(path_of(name))
    streamed = model.stream(pulse=pulse)
    runner = jaxrnn.Runner(streamed, model.params)
    jitted = own.Jitted(streamed, model.params, streamed.init(params=model.params))
    engines = {own.RUNNER: Engine(runner, streamed.delay), own.JITTED: Engine(jitted, streamed.delay)}
    refused: dict[str, str] = {}
    if is_installed("tract"):
        tract = engine_module("tract")
        names = [info.name for info in model.inputs], [info.name for info in model.outputs]
        try:
            stream = tract.Pulse(path_of(name), pulse, *names)
            engines["tract"] = Engine(stream, stream.delay, late)
        except tract.RefusedError as error:
            refused["tract"] = brief(error)
    outputs = {engine: compared(model, pulse, made) for engine, made in engines.items()}
    frames = pulse_of(model, recordings(model, pulse), 0, pulse)
    calls: dict[str, Callable[[], Any]] = {
        engine: functools.partial(made.run, frames) for engine, made in engines.items()
    }
    bare = own.executable_of(runner, frames)
    if bare is not None:
        calls[own.EXECUTABLE] = functools.partial(bare, frames)
    row = timed(name, "streamed", calls, plan.effort(41), outputs=outputs, refused=refused)
    row.facts["frames a pulse"] = pulse
    yield row
