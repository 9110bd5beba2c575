"""tract on the CPU: steps that pass its own values from call to call, and pulses of streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tract

from benchmarks.peers import Arrays, Network, RefusedError, Stepper


def open_network(network: Network, threads: int) -> Stepper:
    """Optimise the network for the sizes of the frame; tract computes in one thread."""
    model = tract.onnx().load(str(network.path)).into_model()
    names = [model.input_name(index) for index in range(model.input_count())]
    feeds, sizes = network.feeds, {}
    for index, name in enumerate(names):
        *dims, _ = str(model.input_fact(index)).split(",")
        sizes |= {dim: size for dim, size in zip(dims, feeds[name].shape, strict=True) if dim.isidentifier()}
    if sizes:
        model.transform(tract.SetSymbols(sizes))
    return Stepping(model.into_runnable(), names, network)


class Stepping:
    """A network in tract with the values that the caller carries."""

    def __init__(self, runnable: Any, inputs: Sequence[str], network: Network):
        self._runnable, self._inputs, self._network = runnable, inputs, network
        places = {name: index for index, name in enumerate(network.declared)}
        self._outputs = [(name, places[name]) for name in network.outputs]
        self._updated = [(given, places[updated]) for given, updated in network.state]
        self.reset()

    def reset(self) -> None:
        """Restore the first state."""
        held = {**self._network.fixed, **self._network.start}
        make = cast(Any, tract.Tensor).from_numpy
        self._carried = {name: make(np.asarray(array)) for name, array in held.items()}

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        values = [self._carried[name] if name in self._carried else frame[name] for name in self._inputs]
        # Not on a state of tract: a recurrence inside a frame would continue from the last frame.
        results = self._runnable.run(values)
        for given, index in self._updated:
            self._carried[given] = results[index]
        return {name: results[index].to_numpy() for name, index in self._outputs}


class Pulse:
    """A live stream of an offline network, as tract streams it.

    Attributes:
        delay: frames of each output before its frame 0.

    Args:
        path: the ONNX file.
        pulse: frames of one call.
        inputs: names in the order of the file.
        outputs: names in the order of the file.

    Raises:
        RefusedError: tract cannot stream the network.
    """

    def __init__(self, path: Path, pulse: int, inputs: Sequence[str], outputs: Sequence[str]):
        try:
            model = tract.onnx().load(str(path)).into_model()
            model.transform(tract.Pulse(pulse, symbol="S"))
            delays = model.property("pulse.delay").to_numpy().tolist()
            self._runnable = model.into_runnable()
        except tract.TractError as error:
            raise RefusedError(str(error)) from error
        self._inputs, self._outputs = inputs, outputs
        self.delay: Mapping[str, int] = dict(zip(outputs, delays, strict=True))
        self.reset()

    def reset(self) -> None:
        """Begin a new stream."""
        self._state = self._runnable.spawn_state()

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """One pulse."""
        results = self._state.run([frame[name] for name in self._inputs])
        return {name: value.to_numpy() for name, value in zip(self._outputs, results, strict=True)}
