"""LiteRT on the CPU with XNNPACK, for networks with a ``.tflite`` file beside the ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter as litert

from benchmarks.peers import Arrays, Network, RefusedError, Stepper


def open_network(network: Network, threads: int) -> Stepper:
    """Open the network in one interpreter, with XNNPACK, which is on by default."""
    path = network.path.with_suffix(".tflite")
    if not path.is_file():
        raise RefusedError(f"there is no {path.name}")
    return open_file(path, network, threads)


def open_file(path: Path, network: Network, threads: int) -> Stepper:
    """Open a file of the network."""
    interpreter = litert.Interpreter(model_content=path.read_bytes(), num_threads=threads)
    interpreter.allocate_tensors()
    return Stepping(interpreter, network)


class Stepping:
    """An interpreter with the state that the caller carries."""

    def __init__(self, interpreter: Any, network: Network):
        self._interpreter, self._network = interpreter, network
        inputs = _matched(interpreter.get_input_details(), network.feeds)
        first = {name: network.start[given] for given, name in network.state}
        ends = _matched(interpreter.get_output_details(), first)
        rest = [entry for entry in interpreter.get_output_details() if entry["index"] not in ends.values()]
        if len(rest) != len(network.outputs):
            raise RefusedError(f"the file has {len(rest)} outputs that are no state, not {len(network.outputs)}")
        self._frame = [(name, inputs[name]) for name in network.frame]
        self._outputs = list(zip(network.outputs, (entry["index"] for entry in rest), strict=True))
        self._pairs = [(inputs[given], ends[updated]) for given, updated in network.state]
        self._starts = {inputs[given]: np.asarray(array) for given, array in network.start.items()}
        for name, array in network.fixed.items():
            interpreter.set_tensor(inputs[name], array)
        self.reset()

    def reset(self) -> None:
        """Restore the first state."""
        self._state = dict(self._starts)

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        interpreter = self._interpreter
        for name, index in self._frame:
            interpreter.set_tensor(index, frame[name])
        for index, value in self._state.items():
            interpreter.set_tensor(index, value)
        interpreter.invoke()
        self._state = {given: interpreter.get_tensor(updated) for given, updated in self._pairs}
        return {name: interpreter.get_tensor(index) for name, index in self._outputs}


def _matched(details: Sequence[Mapping[str, Any]], arrays: Arrays) -> dict[str, int]:
    """Return the tensor number for each name; tensors are matched by shape, because names differ between the files."""
    found: dict[str, int] = {}
    for name, array in arrays.items():
        fitting = [entry["index"] for entry in details if tuple(entry["shape"]) == array.shape]
        if len(fitting) != 1:
            raise RefusedError(f"{len(fitting)} tensors have the shape {array.shape} of {name!r}")
        found[name] = fitting[0]
    return found
