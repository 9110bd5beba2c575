"""Exported files in another engine, as functions that run recordings: their state carried by name, then their flush."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.arrays import read_arrays
from jaxrnn.errors import InputError
from jaxrnn.onnx.interface import spec_of
from jaxrnn.onnx.state.stated import read_facts
from jaxrnn.onnx.stepfile import FLUSH, STEP, StepFile
from jaxrnn.steps.specs import ArraySpec, taken
from jaxrnn.steps.stepper import whole_pulse
from jaxrnn.verification.peers import OpenPeer
from jaxrnn.verification.running import Ready
from jaxrnn.verification.sampling import restore_types

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ExportedFile:
    """A file that `jaxrnn.export_onnx` wrote, as it is read again.

    Attributes:
        path: where it is.
        graph: what it computes.
        facts: what it says of itself.
    """

    path: Path
    graph: ir.Graph
    facts: StepFile


def read_exported(path: Path, kind: str) -> ExportedFile:
    """A file of this kind.

    Raises:
        InputError: it is none.
        ModelError: what it says of itself is damaged.
    """
    proto, graph = onnx.load(path, load_external_data=False), ir.load(path).graph
    facts = read_facts(proto, graph)
    if facts is None or facts.kind != kind:
        raise InputError(f"{path} is no {kind} that jaxrnn.export_onnx wrote")
    return ExportedFile(path, graph, facts)


def read_files(path: Path, flush: Path | None) -> tuple[ExportedFile, ExportedFile | None]:
    """A step and its flush, by default the one that the step names, beside it."""
    step = read_exported(path, STEP)
    named = step.facts.files.get(FLUSH)
    beside = path.parent / named if flush is None and named is not None else flush
    return step, None if beside is None else read_exported(beside, FLUSH)


def ready_in(open_peer: OpenPeer, step: ExportedFile, flush: ExportedFile | None) -> tuple[Ready, str]:
    """Files as an engine runs them, and what the engine is called.

    Raises:
        PeerError: the engine does not take a file.
    """
    opened = _Opened(open_peer, step)
    rest = None if flush is None else _Opened(open_peer, flush).flush
    return Ready(step.facts.spec, _first(step), opened.step, rest), opened.engine


def _first(step: ExportedFile) -> dict[str, np.ndarray]:
    """The state before the first frame: of the file beside the step, where it is there."""
    facts = step.facts
    beside = facts.files.get("first_state")
    if beside is None or not step.path.with_name(beside).is_file():
        return dict(facts.first)
    arrays = read_arrays(step.path.with_name(beside))
    by_entry = {own: arrays[names.input] for own, names in facts.state.items()}
    return restore_types(facts.spec.state, by_entry)


class _Opened:
    """One file in an engine; arrays go by the names of the stepper."""

    def __init__(self, open_peer: OpenPeer, file: ExportedFile):
        self._facts, self._peer = file.facts, open_peer(file.path)
        self.engine = self._peer.name
        inputs = map(spec_of, file.graph.inputs)
        self._valid = {each.name: each.sizes for each in inputs if each.name == self._facts.valid}

    def step(self, state: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs of a step, and the state after it."""
        results = self._results(state, inputs, 0)
        outputs = {own: results[name] for own, name in self._facts.outputs.items()}
        return outputs, {own: results[str(names.output)] for own, names in self._facts.state.items()}

    def flush(self, state: Arrays, tail: Arrays, valid: int) -> dict[str, np.ndarray]:
        """The outputs of a flush, of the frames that exist."""
        spec, facts = self._facts.spec, self._facts
        padded = {each.name: _padded(each, tail[each.name]) for each in spec.inputs}
        results = self._results(state, whole_pulse(spec, padded, valid, convert=taken) or {}, valid)
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


def _padded(each: ArraySpec, tail: np.ndarray) -> np.ndarray:
    """The frames of a tail, padded to a pulse with what shows wherever it is read."""
    if each.time_axis is None:
        return tail
    widths = [(0, 0)] * tail.ndim
    widths[each.time_axis] = (0, each.sizes[each.time_axis] - tail.shape[each.time_axis])
    return np.pad(tail, widths, constant_values=np.nan if jnp.issubdtype(tail.dtype, jnp.floating) else 0)
