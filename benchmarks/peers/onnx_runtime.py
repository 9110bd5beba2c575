"""ONNX Runtime on the CPU with all graph optimisations: plain calls or bound buffers, whichever is faster."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from benchmarks.peers import Arrays, Network, Stepper
from benchmarks.timing import fastest


def optimised(path: Path) -> onnx.ModelProto:
    """Return the model after basic optimisations: constants are folded and unused nodes removed."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        options.log_severity_level = 4
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def open_network(network: Network, threads: int) -> Stepper:
    """Open the network in one session."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(network.path), options, providers=["CPUExecutionProvider"])
    return fastest([lambda: Plain(session, network), lambda: Bound(session, network)], network.frame)


class Plain:
    """A session that gets arrays in every call."""

    def __init__(self, session: ort.InferenceSession, network: Network):
        self._session, self._network, self._wanted = session, network, network.wanted
        self._given = [given for given, _ in network.state]
        self.reset()

    def reset(self) -> None:
        """Restore the first state."""
        self._carried = {**self._network.fixed, **self._network.start}

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        results: list[Any] = list(self._session.run(self._wanted, {**frame, **self._carried}))
        count = len(self._network.outputs)
        for name, value in zip(self._given, results[count:], strict=True):
            self._carried[name] = value
        return dict(zip(self._network.outputs, results[:count], strict=True))


class Bound:
    """A session with inputs and outputs bound to buffers; two buffers of the state swap after each call."""

    def __init__(self, session: ort.InferenceSession, network: Network):
        self._session, self._network = session, network
        first: dict[str, Any] = dict(zip(network.wanted, session.run(network.wanted, network.feeds), strict=True))

        def values(arrays: Arrays) -> dict[str, ort.OrtValue]:
            return {
                name: ort.OrtValue.ortvalue_from_numpy(np.array(array, order="C")) for name, array in arrays.items()
            }

        inputs, outputs = values(network.frame), values({name: first[name] for name in network.outputs})
        fixed, states = values(network.fixed), [values(network.start), values(network.start)]
        self._bindings = []
        for now, later in (states, states[::-1]):
            binding = session.io_binding()
            for name, value in (inputs | fixed | now).items():
                binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                binding.bind_ortvalue_output(name, value)
            for given, updated in network.state:
                binding.bind_ortvalue_output(updated, later[given])
            self._bindings.append(binding)
        # The arrays share the memory of the values.
        self._inputs = {name: value.numpy() for name, value in inputs.items()}
        self._outputs = {name: value.numpy() for name, value in outputs.items()}
        self._starts = [(value.numpy(), network.start[name]) for state in states for name, value in state.items()]
        self._kept = inputs, outputs, fixed, states

    def reset(self) -> None:
        """Restore the first state."""
        for array, start in self._starts:
            array[...] = start

    def __call__(self, frame: Arrays) -> dict[str, np.ndarray]:
        """Return the outputs of one call."""
        for name, array in frame.items():
            self._inputs[name][...] = array
        self._session.run_with_iobinding(self._bindings[0])
        self._bindings.reverse()
        return {name: array.copy() for name, array in self._outputs.items()}
