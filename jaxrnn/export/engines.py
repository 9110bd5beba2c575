"""Exported files in their engines: descriptions of files, steps over recordings, and live streams."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from jaxrnn._files.arrays import read_arrays
from jaxrnn._files.messages import check_word
from jaxrnn._files.stores import local_path
from jaxrnn.errors import InputError, StateError
from jaxrnn.onnx.graph import spec_of
from jaxrnn.onnx.state.find import read_facts
from jaxrnn.onnx.stepfile import FLUSH, METADATA, STEP, StepFile
from jaxrnn.runtime.runner import Live
from jaxrnn.steps.finite import ON_NONFINITE, OnNonFinite, Watch
from jaxrnn.steps.specs import Arrays, bind, taken
from jaxrnn.steps.stepper import whole_pulse
from jaxrnn.verification.litert import (
    QUANTIZED,
    ROUGH,
    SUFFIX,
    LiteRt,
    Signature,
    precision,
    read_signature,
    read_steps,
)
from jaxrnn.verification.peers import Peer, candidates
from jaxrnn.verification.sampling import restore_types

File = str | os.PathLike[str]


@dataclass(frozen=True)
class ExportedFile:
    """A step or flush that jaxrnn exported, for ONNX engines or LiteRT.

    ``opened`` is what an engine opens. ``floats`` are the types that the file computes in. ``is_rough`` is True if
    jaxrnn quantised its products. ``steps`` are the sizes of quantisation steps by output. ``valid`` is the shape of
    the number of existing frames, if the file has this input.
    """

    path: Path
    facts: StepFile
    opened: Path | Signature
    floats: Sequence[np.dtype]
    is_rough: bool
    steps: Mapping[str, float]
    valid: Mapping[str, tuple[Any, ...]]

    def of_streams(self, count: int) -> ExportedFile:
        """Return the file for a number of streams, if the number is open."""
        return dataclasses.replace(self, facts=self.facts.of_streams(count))


def read_exported(path: Path, kind: str) -> ExportedFile:
    """Read a file of this kind, and refuse other files."""
    if path.suffix == SUFFIX:
        signature = Signature(path, kind)
        facts = read_signature(signature)
        shape = () if facts.batch is None else (facts.batch,)
        valid = {facts.valid: shape} if facts.valid else {}
        return ExportedFile(path, facts, signature, *precision(path), read_steps(signature), valid)
    proto, graph = onnx.load(path, load_external_data=False), ir.load(path).graph
    facts = read_facts(proto, graph)
    if facts is None or facts.kind != kind:
        raise InputError(f"{path} is not a {kind} written by jaxrnn.export_onnx")
    valid = {each.name: each.shape or () for each in map(spec_of, graph.inputs) if each.name == facts.valid}
    floats, is_rough = precision_of(graph)
    is_rough |= any(each.key == f"{METADATA}.{QUANTIZED}" and each.value in ROUGH for each in proto.metadata_props)
    return ExportedFile(path, facts, path, floats, is_rough, quantisation_steps(graph, facts), valid)


def read_pair(path: File, flush: File | None = None) -> tuple[ExportedFile, ExportedFile | None]:
    """Read a step and its flush: the given file, or the file that the step names, in the same folder."""
    step = read_exported(local_path(path), STEP)
    named = step.facts.files.get(FLUSH)
    beside = Path(flush) if flush is not None else None if named is None else step.path.parent / named
    return step, None if beside is None else read_exported(beside, FLUSH)


def engines_of(file: ExportedFile, engine: str) -> list[Callable[[Any], Peer]]:
    """Return the engines to try in order."""
    return [LiteRt] if isinstance(file.opened, Signature) else [*candidates(engine, optimized=True)]


def precision_of(graph: ir.Graph) -> tuple[list[np.dtype], bool]:
    """Return the float types that a graph computes in, and whether each call quantises its inputs."""
    nodes = [*graph.all_nodes()]
    types = {value.dtype for node in nodes for value in node.outputs}
    floats = [each.numpy() for each in types if each is not None and each.is_floating_point()]
    return floats, any(node.op_type.startswith("DynamicQuantize") for node in nodes)


def _first(step: ExportedFile) -> dict[str, np.ndarray]:
    """Return the state before the first frame, preferably from the file beside the step."""
    facts = step.facts
    beside = facts.files.get("first_state")
    if beside is None or not step.path.with_name(beside).is_file():
        return dict(facts.first)
    arrays = read_arrays(step.path.with_name(beside))
    sizes = {each.name: each.sizes for each in facts.spec.state}
    by_entry = {own: np.broadcast_to(arrays[names.input], sizes[own]) for own, names in facts.state.items()}
    return restore_types(facts.spec.state, by_entry)


class _Opened:
    """A file in an engine, with arrays under the names of the stepper."""

    def __init__(self, open_peer: Callable[[Any], Peer], file: ExportedFile):
        self.facts, self.peer = file.facts, open_peer(file.opened)
        #: The times of the last calls of the engine.
        self.seconds: deque[float] = deque(maxlen=1000)
        streams: Any = file.facts.batch
        self._valid = {
            name: [streams if isinstance(size, str) else size for size in shape] for name, shape in file.valid.items()
        }

    def run(self, state: Arrays, inputs: Arrays, valid: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the outputs under the names of the stepper, and all results under the names of the file."""
        feeds = {names.input: np.asarray(state[own]) for own, names in self.facts.state.items()}
        feeds |= {name: np.asarray(inputs[own]) for own, name in self.facts.inputs.items()}
        feeds |= {name: np.full(shape, valid, np.int32) for name, shape in self._valid.items()}
        begin = time.perf_counter()
        results = self.peer.run(feeds)
        self.seconds.append(time.perf_counter() - begin)
        return {own: results[name] for own, name in self.facts.outputs.items()}, results


class InEngine:
    """The files of a step and of the flush in an engine, as `jaxrnn.steps.numpy_step.Steps`."""

    def __init__(self, open_peer: Callable[[Any], Peer], step: ExportedFile, flush: ExportedFile | None):
        self.spec, self._first, self._step = step.facts.spec, _first(step), _Opened(open_peer, step)
        self._flush = None if flush is None else _Opened(open_peer, flush)
        self.engine, self.seconds, self.flushes = self._step.peer.name, self._step.seconds, flush is not None
        self.guard = step.facts.guard

    def begin(self) -> dict[str, np.ndarray]:
        """Return the state before the first frame."""
        return self._first

    def entries(self, state: Arrays) -> Arrays:
        """Return the entries of a state, keyed by name."""
        return self.spec.entries(state)

    def parts(self, state: Arrays) -> dict[str, np.ndarray]:
        """Return the entries of the stepper's state, also if the file joins entries."""
        facts = self._step.facts
        return {part: found for name, array in state.items() for part, found in facts.entries(name, array).items()}

    def __call__(self, state: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Run a step; return the outputs and the new state."""
        outputs, results = self._step.run(state, inputs, 0)
        return outputs, {own: results[str(names.output)] for own, names in self._step.facts.state.items()}

    def rest(self, state: Arrays, tail: Arrays | None, valid: int | None) -> dict[str, np.ndarray]:
        """Return the outputs of the flush, up to the frames that exist."""
        assert self._flush is not None
        facts = self._flush.facts
        # NaN in the padding reveals any use of frames that do not exist; a guard would take it for zeros.
        padded, existing = whole_pulse(facts.spec, tail, valid, convert=taken, fill=1e4 if facts.guard else np.nan)
        outputs, results = self._flush.run(state, padded or {}, existing)
        axes = {each.name: each.time_axis for each in facts.spec.outputs}
        for own, name in facts.counts.items():
            outputs[own] = outputs[own][(slice(None),) * (axes[own] or 0) + (slice(int(results[name].max())),)]
        return outputs


def quantisation_steps(graph: ir.Graph, facts: StepFile) -> dict[str, float]:
    """Return the size of a quantisation step for each output of a quantised file.

    Engines may round a value between two integers up or down, because the last bit of a sum depends on the order.
    """
    nodes = {value: node for node in graph for value in node.outputs}
    if not any(node.op_type.startswith(("QLinear", "QuantizeLinear")) for node in nodes.values()):
        return {}
    steps: dict[ir.Value, float] = {}
    for value, node in nodes.items():  # in order
        scale = node.inputs[1].const_value if node.op_type == "DequantizeLinear" and node.inputs[1] else None
        known = [steps[each] for each in node.inputs if each in steps]
        if scale is not None and not (node.inputs[0] and node.inputs[0].is_initializer()):
            steps[value] = float(np.max(scale.numpy()))
        elif known:
            steps[value] = max(known)
    names = {name: own for own, name in facts.outputs.items()}
    names |= {str(each.output): f"state {own}" for own, each in facts.state.items()}
    ends = {names.get(str(end.name)): end for end in graph.outputs}
    return {name: steps.get(end, 1.0) for name, end in ends.items() if name is not None}


class FileRunner:
    """A live stream of exported files in ONNX Runtime or LiteRT, with the calls of `jaxrnn.Runner`.

    A runner owns the state and is not a pure function. Threads can share a runner: calls run in sequence.

    Example::

        jaxrnn.export_onnx(offline.stream(pulse=4), offline.params, "streaming.onnx", flush="flush.onnx")
        run = jaxrnn.export.FileRunner("streaming.onnx")
        for pulse in microphone:
            outputs = run({"input": pulse})
        rest = run.flush()

    Args:
        path: the file of the step, ``.onnx`` or ``.tflite``.
        flush: the ONNX file of the flush; by default the file that the step names, in the same folder.
        on_nonfinite: as in `jaxrnn.Runner`. Inputs are checked too, because engines can turn NaN into numbers,
            but not if the file has a guard.

    Attributes:
        spec: the facts about the stream, with the arrays of the file.
        engine: the name and version of the engine.

    Raises:
        InputError: jaxrnn did not export the file.
        PeerError: no engine runs the file.
        MissingPackageError: the engine is not installed.
    """

    def __init__(self, path: File, *, flush: File | None = None, on_nonfinite: OnNonFinite = "keep"):
        check_word("on_nonfinite", on_nonfinite, ON_NONFINITE)
        self._on_nonfinite: OnNonFinite = on_nonfinite
        step, rest = read_pair(path, flush)
        # A file for any number of streams runs one.
        self._files = InEngine(engines_of(step, "ort")[0], step.of_streams(1), rest and rest.of_streams(1))
        self.spec, self.engine = self._files.spec, self._files.engine
        self._watch = Watch(self.spec, self._files.begin(), self._files.parts)
        self._live = Live((self._files.begin(), 0))

    def __copy__(self) -> FileRunner:
        """Return a second stream, which continues from the same state in the same engine."""
        result = object.__new__(FileRunner)
        vars(result).update(vars(self), _live=Live(self._live.value))
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> FileRunner:
        return self.__copy__()

    @property
    def resets(self) -> int:
        """The number of steps after which the stream started again, because of ``on_nonfinite="reset"``."""
        return self._live.value[1]

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run one step, on arrays by the names of the stepper; return the outputs.

        Raises:
            InputError: an input does not fit.
            NonFiniteError: ``on_nonfinite`` is ``"raise"``, and the step or an input is not finite.
        """
        arrays = bind(self.spec.inputs, inputs, convert=taken)
        return self._live.change(self._stepped, {name: np.asarray(array) for name, array in arrays.items()})

    def _stepped(self, now: tuple[Any, int], arrays: Arrays) -> tuple[Mapping[str, np.ndarray], tuple[Any, int]]:
        state, resets = now
        outputs, after = self._files(state, arrays)
        judged = {} if self._files.guard else arrays
        error = None if self._on_nonfinite == "keep" else self._watch.error(outputs, after, judged)
        if error is None:
            return outputs, (after, resets)
        if self._on_nonfinite == "raise":
            raise error
        return error.outputs, (self._files.begin(), resets + 1)

    def flush(self, tail: Mapping[str, Any] | None = None, valid: int | None = None) -> dict[str, np.ndarray]:
        """Return the rest of the recording, as `jaxrnn.Runner.flush`, and begin a new stream."""
        if not self._files.flushes:
            raise StateError(f"{self.spec.label} was exported without its flush: export again with flush")
        return self._live.change(lambda now: (self._files.rest(now[0], tail, valid), (self._files.begin(), now[1])))

    def reset(self) -> None:
        """Begin a new stream."""
        self._live.change(lambda now: (None, (self._files.begin(), now[1])))
