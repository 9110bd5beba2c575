"""OpenVINO on the CPU: one stream for latency, with buffers written and read in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np

# Telemetry would send a message from a forked process during timing; openvino works without it.
sys.modules.setdefault("openvino_telemetry", cast(Any, None))
import openvino as ov  # noqa: E402

from benchmarks.peers import Arrays, Network, Stepper  # noqa: E402
from benchmarks.timing import fastest  # noqa: E402


def open_network(network: Network, threads: int) -> Stepper:
    """Compile the network for the sizes of the frame, in float32 like the other engines."""
    core = ov.Core()
    model = core.read_model(str(network.path))
    feeds = network.feeds
    model.reshape({port: ov.PartialShape(list(feeds[port.get_any_name()].shape)) for port in model.inputs})
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        # The process is pinned already, or uses all cores.
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(model, "CPU", settings)
    makers: list[Callable[[], Stepper]] = [lambda: Copied(compiled, network)]
    if network.state:
        makers.append(lambda: Swapped(compiled, network))
    return fastest(makers, network.frame)


class Copied:
    """A request that copies the new state to the inputs of the next call."""

    def __init__(self, compiled: Any, network: Network):
        self._request, self._network = compiled.create_infer_request(), network
        feeds = network.feeds
        self._inputs: dict[str, np.ndarray] = {}
        for port in compiled.inputs:
            name = _name(port, feeds)
            tensor = ov.Tensor(np.array(feeds[name], order="C"), shared_memory=False)
            self._request.set_tensor(port, tensor)
            self._inputs[name] = tensor.data
        self._ports = {_name(port, network.wanted): port for port in compiled.outputs}
        self._request.infer()
        self._bind()
        self.reset()

    def _bind(self) -> None:
        results = {name: self._request.get_tensor(port).data for name, port in self._ports.items()}
        self._outputs = [(name, results[name]) for name in self._network.outputs]
        self._pairs = [(self._inputs[given], results[updated]) for given, updated in self._network.state]

    def reset(self) -> None:
        """Restore the first state."""
        for name, array in self._network.start.items():
            self._inputs[name][...] = array

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        for name, array in frame.items():
            self._inputs[name][...] = array
        self._request.infer()
        for given, updated in self._pairs:
            given[...] = updated
        return {name: array.copy() for name, array in self._outputs}


class Swapped(Copied):
    """A request with two buffers of the state, which swap after each call."""

    def _bind(self) -> None:
        start, compiled = self._network.start, self._request.get_compiled_model()
        ports = {_name(port, self._network.feeds): port for port in compiled.inputs}
        self._swaps = []
        for given, updated in self._network.state:
            two = [ov.Tensor(np.array(start[given], order="C"), shared_memory=False) for _ in range(2)]
            self._swaps.append((ports[given], self._ports[updated], two))
        results = {name: self._request.get_tensor(self._ports[name]).data for name in self._network.outputs}
        self._outputs = list(results.items())

    def reset(self) -> None:
        """Restore the first state."""
        for (given, _), (_, _, two) in zip(self._network.state, self._swaps, strict=True):
            two[0].data[...] = self._network.start[given]

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        for name, array in frame.items():
            self._inputs[name][...] = array
        for given, updated, two in self._swaps:
            self._request.set_tensor(given, two[0])
            self._request.set_tensor(updated, two[1])
            two.reverse()
        self._request.infer()
        return {name: array.copy() for name, array in self._outputs}


def _name(port: Any, among: Any) -> str:
    """Return the name that an input or output has in the file."""
    return next(name for name in port.get_names() if name in among)
