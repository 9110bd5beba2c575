"""One pulse of networks with a time axis, streamed: jaxrnn's step beside tract's pulse, NumPy in and NumPy out.

Each carries its state its own way. The outputs are compared over a whole signal, less the delay; where tract's first
frames are known to be wrong, behind them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np

import jaxrnn
from benchmarks.step import folder
from benchmarks.timing import Call, Timing, interleaved

#: By model: the smallest pulse, and how many frames behind the delay tract's output may be off: its wrong first frames
#: stay in the recurrent layers for a while.
MODELS = {"filter_net": (1, 40), "keyword_net": (2, 0), "wave_net": (64, 0), "dual_path_net": (1, 0)}

#: What two engines may differ by, relative to the largest value.
AGREEMENT = 1e-4
PULSES = 60


Arrays = Mapping[str, np.ndarray]


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


@dataclass(frozen=True)
class Engine:
    """A live stream in one engine.

    Attributes:
        run: outputs by name of one pulse of inputs by name, as NumPy arrays.
        delay: frames of each output before its frame 0.
        late: frames behind the delay that are not compared.
    """

    run: Callable[[Arrays], dict[str, np.ndarray]]
    delay: Mapping[str, int]
    late: int = 0


def jaxrnn_engine(model: jaxrnn.Model, pulse: int) -> Engine:
    """A live stream."""
    streamed = model.stream(pulse=pulse)
    return Engine(jaxrnn.Runner(streamed, model.params), streamed.delay)


def jitted_engine(model: jaxrnn.Model, pulse: int) -> Engine:
    """The bare step under ``jax.jit``, its parameters passed in every call."""
    streamed = model.stream(pulse=pulse)
    state, step = [streamed.init(1, model.params)], jax.jit(streamed.step)

    def run(frames: Arrays) -> dict[str, np.ndarray]:
        outputs, state[0] = step(model.params, state[0], frames)
        return {name: np.asarray(value) for name, value in outputs.items()}

    return Engine(run, streamed.delay)


def tract_engine(name: str, model: jaxrnn.Model, pulse: int, late: int) -> Engine | None:
    """A live stream of tract's; None where it is not installed, or refuses the model."""
    try:
        tract = importlib.import_module("tract")
    except ImportError:
        return None
    try:
        network = tract.onnx().load(str(folder() / f"{name}.onnx")).into_model()
        network.transform(tract.Pulse(pulse, symbol="S"))
        delays = network.property("pulse.delay").to_numpy().tolist()
        state = network.into_runnable().spawn_state()
    except tract.TractError:
        return None
    inputs, outputs = [info.name for info in model.inputs], [info.name for info in model.outputs]

    def run(frames: Arrays) -> dict[str, np.ndarray]:
        results = state.run([frames[name] for name in inputs])
        return dict(zip(outputs, (result.to_numpy() for result in results), strict=True))

    return Engine(run, dict(zip(outputs, delays, strict=True)), late)


def difference(model: jaxrnn.Model, pulse: int, engines: Mapping[str, Engine]) -> float:
    """The largest difference from jaxrnn's offline outputs, relative to the largest value of each."""
    inputs = recordings(model, PULSES * pulse)
    offline, axes = model(inputs), model.stream(pulse=pulse).axes
    worst = 0.0
    for engine in engines.values():
        pieces = [engine.run(pulse_of(model, inputs, index, pulse)) for index in range(PULSES)]
        for name, axis in axes.items():
            values = np.concatenate([piece[name] for piece in pieces], axis)
            found = np.take(values, range(engine.delay[name] + engine.late, values.shape[axis]), axis)
            whole = np.asarray(offline[name])
            expected = np.take(whole, range(engine.late, engine.late + found.shape[axis]), axis)
            worst = max(worst, float(np.max(np.abs(found - expected)) / max(1.0, float(np.max(np.abs(whole))))))
    return worst


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings of one pulse of every model by engine, with the largest difference between their outputs."""
    results: dict[str, dict[str, Timing | float]] = {}
    for name, (pulse, late) in MODELS.items():
        model = jaxrnn.load(folder() / f"{name}.onnx")
        engines = {
            "jaxrnn": jaxrnn_engine(model, pulse),
            "jaxrnn, step under jit": jitted_engine(model, pulse),
            "tract": tract_engine(name, model, pulse, late),
        }
        present = {key: engine for key, engine in engines.items() if engine is not None}
        apart = difference(model, pulse, present)
        if apart > AGREEMENT:
            raise RuntimeError(f"{name}: the engines differ by {apart}; nothing is timed that is not the same")
        frames = pulse_of(model, recordings(model, pulse), 0, pulse)
        calls: dict[str, Call] = {key: functools.partial(engine.run, frames) for key, engine in present.items()}
        timings = interleaved(calls, rounds=5 if quick else 41, calls_a_round=20 if quick else 200)
        results[name] = {**timings, "difference": apart}
    return results
