"""One pulse of streamed offline networks: a step of jaxrnn beside a pulse of tract, NumPy in and NumPy out.

Outputs are compared over a whole signal after the delay, without the first frames that tract computes wrongly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import jaxrnn
from benchmarks import own
from benchmarks.networks import OFFLINE, Offline, offline_file
from benchmarks.peers import Arrays, engine_module, is_installed, one_line
from benchmarks.plan import Cases, Plan, timed
from benchmarks.results import Row

TITLE = "one pulse of a streamed offline network, NumPy in and out"
UNIT = "us"

PULSES = 60


@dataclass(frozen=True)
class Engine:
    """A live stream in one engine.

    Attributes:
        run: a function from the inputs of one pulse to the outputs, as NumPy arrays by name.
        delay: frames of each output before its frame 0.
        late: frames after the delay that are not compared.
    """

    run: Callable[[Arrays], dict[str, Any]]
    delay: Mapping[str, int]
    late: int = 0


def cases(plan: Plan) -> Cases:
    """Return a case for each network."""
    return {network.name: functools.partial(_rows, plan, network) for network in OFFLINE}


def recordings(model: jaxrnn.Model, frames: int) -> dict[str, np.ndarray]:
    """Return a random input."""
    rng = np.random.default_rng(0)
    return {
        info.name: rng.normal(size=[frames if size == "S" else int(size) for size in info.shape or ()]).astype(
            np.float32
        )
        for info in model.inputs
    }


def pulse_of(model: jaxrnn.Model, inputs: Arrays, index: int, pulse: int) -> dict[str, np.ndarray]:
    """Return the frames of one pulse."""
    axes = {info.name: (info.shape or ()).index("S") for info in model.inputs}
    return {
        name: np.ascontiguousarray(np.take(array, range(index * pulse, (index + 1) * pulse), axes[name]))
        for name, array in inputs.items()
    }


def compared(model: jaxrnn.Model, axes: Mapping[str, int], pulse: int, engines: Mapping[str, Engine]) -> dict[str, Any]:
    """Return the outputs of engines over a signal at their places; offline outputs fill the other places.

    The outputs of each engine must equal the offline outputs frame by frame.
    """
    inputs = recordings(model, PULSES * pulse)
    offline = model(inputs)
    return {name: _placed(model, axes, pulse, engine, inputs, offline) for name, engine in engines.items()}


def _placed(
    model: jaxrnn.Model, axes: Mapping[str, int], pulse: int, engine: Engine, inputs: Arrays, offline: Arrays
) -> dict[str, np.ndarray]:
    pieces = [engine.run(pulse_of(model, inputs, index, pulse)) for index in range(PULSES)]
    outputs = {}
    for name, axis in axes.items():
        values = np.concatenate([piece[name] for piece in pieces], axis)
        found = np.take(values, range(engine.delay[name] + engine.late, values.shape[axis]), axis)
        whole = np.moveaxis(np.array(offline[name]), axis, 0)
        whole[engine.late : engine.late + found.shape[axis]] = np.moveaxis(found, axis, 0)
        outputs[name] = whole
    return outputs


def _rows(plan: Plan, network: Offline) -> Iterator[Row]:
    with offline_file(network) as path:
        model = jaxrnn.load(path)
        stream, refused = tract_pulse(path, model, network.pulse)
    pulse, streamed = network.pulse, model.stream(pulse=network.pulse)
    runner = jaxrnn.Runner(streamed, model.params)
    jitted = own.Jitted(streamed, model.params, streamed.init(params=model.params))
    engines = {own.RUNNER: Engine(runner, streamed.delay), own.JITTED: Engine(jitted, streamed.delay)}
    if stream is not None:
        engines["tract"] = Engine(stream, stream.delay, network.late)
    outputs = compared(model, streamed.axes, pulse, engines)
    frames = pulse_of(model, recordings(model, pulse), 0, pulse)
    calls: dict[str, Callable[[], Any]] = {
        engine: functools.partial(made.run, frames) for engine, made in engines.items()
    }
    bare = own.executable_of(runner, frames)
    if bare is not None:
        calls[own.EXECUTABLE] = functools.partial(bare, frames)
    row = timed(network.name, "streamed", calls, plan.effort(41), outputs=outputs, refused=refused)
    row.facts["frames a pulse"] = pulse
    yield row


def tract_pulse(path: Path, model: jaxrnn.Model, pulse: int) -> tuple[Any, dict[str, str]]:
    """Open a live stream in tract; return None and the reason if tract is missing or refuses the network."""
    if not is_installed("tract"):
        return None, {}
    tract = engine_module("tract")
    try:
        return tract.Pulse(path, pulse, *([info.name for info in infos] for infos in (model.inputs, model.outputs))), {}
    except tract.RefusedError as error:
        return None, {"tract": one_line(error)}
