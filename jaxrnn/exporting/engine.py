"""An exported file in another engine, as functions that run recordings: its state carried by name, then its flush."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from jaxrnn.exporting.exported import Exported, ExportedGraph
from jaxrnn.specs import taken
from jaxrnn.stepper import whole_pulse
from jaxrnn.verification.peers import OpenPeer
from jaxrnn.verification.running import Ready

Arrays = Mapping[str, np.ndarray]


def ready_in(open_peer: OpenPeer, exported: Exported) -> tuple[Ready, str]:
    """The files of a step as an engine runs them, and what the engine is called.

    Args:
        open_peer: the engine.
        exported: the files.

    Raises:
        PeerError: the engine does not take a file.
    """
    step = _Graph(open_peer, exported.step)
    flush = None if exported.flush is None else _Graph(open_peer, exported.flush).flush
    return Ready(exported.step.facts.spec, dict(exported.step.facts.first), step.step, flush), step.engine


class _Graph:
    """One file in an engine; arrays go by the names of the stepper."""

    def __init__(self, open_peer: OpenPeer, graph: ExportedGraph):
        self._facts, self._peer = graph.facts, open_peer(graph.path)
        self.engine = self._peer.name
        inputs = onnx.load(graph.path, load_external_data=False).graph.input
        self._valid = {
            each.name: [size.dim_value for size in each.type.tensor_type.shape.dim]
            for each in inputs
            if each.name == self._facts.valid
        }

    def step(self, state: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs of a step, and the state after it."""
        results = self._results(state, inputs, 0)
        outputs = {own: results[name] for own, name in self._facts.outputs.items()}
        return outputs, {own: results[str(names.output)] for own, names in self._facts.state.items()}

    def flush(self, state: Arrays, tail: Arrays, valid: int) -> dict[str, np.ndarray]:
        """The outputs of a flush, of the frames that exist."""
        spec, facts = self._facts.spec, self._facts
        results = self._results(state, whole_pulse(spec, tail, valid, convert=taken) or {}, valid)
        axes = {each.name: each.time_axis for each in spec.outputs}
        outputs = {own: results[name] for own, name in facts.outputs.items()}
        for own, name in facts.counts.items():
            outputs[own] = outputs[own][(slice(None),) * (axes[own] or 0) + (slice(int(results[name].max())),)]
        return outputs

    def _results(self, state: Arrays, inputs: Arrays, valid: int) -> dict[str, np.ndarray]:
        """Every output of the file, by its own name."""
        facts = self._facts
        feeds = {names.input: np.asarray(state[own]) for own, names in facts.state.items()}
        feeds |= {name: np.asarray(inputs[own]) for own, name in facts.inputs.items()}
        return self._peer.run(feeds | {name: np.full(shape, valid, np.int32) for name, shape in self._valid.items()})
