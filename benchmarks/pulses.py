"""One pulse of networks with a time axis, streamed: jaxrnn's step beside tract's pulse, NumPy in and NumPy out.

Each carries its state its own way. The outputs are compared over a whole signal, less the delay; where tract's first
frames are known to be wrong, behind them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

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


def recordings(model: jaxrnn.Model, frames: int) -> dict[str, np.ndarray]:
    """Random input of so many frames."""
    rng = np.random.default_rng(0)
    return {
        info.name: rng.normal(size=[frames if size == "S" else size for size in info.shape or ()]).astype(np.float32)
        for info in model.inputs
    }


def pulse_of(model: jaxrnn.Model, inputs: dict[str, np.ndarray], index: int, pulse: int) -> dict[str, np.ndarray]:
    """The frames of one pulse."""
    axes = {info.name: (info.shape or ()).index("S") for info in model.inputs}
    return {
        name: np.ascontiguousarray(np.take(array, range(index * pulse, (index + 1) * pulse), axes[name]))
        for name, array in inputs.items()
    }


def jaxrnn_steps(model: jaxrnn.Model, pulse: int, *, closed: bool) -> Callable[[dict[str, np.ndarray]], Any]:
    """A live stream: its parameters compiled in, or passed in every step."""
    streamed = model.stream(pulse=pulse)
    state = [streamed.init(1, model.params)]
    step = jax.jit(functools.partial(streamed.step, model.params) if closed else streamed.step)
    arguments = () if closed else (model.params,)

    def run(frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs, state[0] = step(*arguments, state[0], frames)
        return {name: np.asarray(value) for name, value in outputs.items()}

    return run


def tract_steps(name: str, model: jaxrnn.Model, pulse: int) -> Callable[[dict[str, np.ndarray]], Any] | None:
    """A live stream of tract's; None where it is not installed, or refuses the model."""
    try:
        tract = importlib.import_module("tract")
    except ImportError:
        return None
    try:
        network = tract.onnx().load(str(folder() / f"{name}.onnx")).into_model()
        network.transform(tract.Pulse(pulse, symbol="S"))
        state = network.into_runnable().spawn_state()
    except tract.TractError:
        return None
    inputs, outputs = [info.name for info in model.inputs], [info.name for info in model.outputs]

    def run(frames: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = state.run([frames[name] for name in inputs])
        return dict(zip(outputs, (result.to_numpy() for result in results), strict=True))

    return run


def signals(model: jaxrnn.Model, run: Callable[..., Any], pulse: int, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """All outputs over a signal, joined along time."""
    pieces = [run(pulse_of(model, inputs, index, pulse)) for index in range(PULSES)]
    axes = model.stream(pulse=pulse).axes
    return {name: np.concatenate([piece[name] for piece in pieces], axes[name]) for name in pieces[0]}


def difference(model: jaxrnn.Model, pulse: int, skip: int, engines: dict[str, Callable[..., Any]]) -> float:
    """The largest difference from jaxrnn's offline outputs, relative to the largest value."""
    inputs = recordings(model, PULSES * pulse)
    offline, facts = model(inputs), model.stream(pulse=pulse)
    worst = 0.0
    for engine, run in engines.items():
        found = signals(model, run, pulse, inputs)
        for name, values in found.items():
            late = skip if engine == "tract" else 0
            have = np.take(values, range(facts.delay[name] + late, values.shape[facts.axes[name]]), facts.axes[name])
            want = np.take(
                np.asarray(offline[name]), range(late, late + have.shape[facts.axes[name]]), facts.axes[name]
            )
            worst = max(worst, float(np.max(np.abs(have - want)) / max(1.0, float(np.max(np.abs(want))))))
    return worst


def run(quick: bool) -> dict[str, dict[str, Timing | float]]:
    """Timings of one pulse of every model by engine, with the largest difference between their outputs."""
    results: dict[str, dict[str, Timing | float]] = {}
    for name, (pulse, skip) in MODELS.items():
        model = jaxrnn.load(folder() / f"{name}.onnx")
        engines: dict[str, Callable[..., Any]] = {
            "jaxrnn": jaxrnn_steps(model, pulse, closed=True),
            "jaxrnn, parameters passed": jaxrnn_steps(model, pulse, closed=False),
        }
        peer = tract_steps(name, model, pulse)
        if peer is not None:
            engines["tract"] = peer
        apart = difference(model, pulse, skip, engines)
        if apart > AGREEMENT:
            raise RuntimeError(f"{name}: the engines differ by {apart}; nothing is timed that is not the same")
        frames = pulse_of(model, recordings(model, pulse), 0, pulse)
        calls: dict[str, Call] = {engine: functools.partial(step, frames) for engine, step in engines.items()}
        timings = interleaved(calls, rounds=5 if quick else 41, calls_a_round=20 if quick else 200)
        results[name] = {**timings, "difference": apart}
    return results
