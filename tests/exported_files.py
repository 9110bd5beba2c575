"""Exported files as a user runs them who has no jaxrnn: ONNX Runtime, NumPy, and what the metadata say."""

from __future__ import annotations

import json

import jax
import numpy as np
import onnx
from lowering_verifier import check_well_formed
from streaming_verifier import assert_same
from verifier import run_session, session

import jaxrnn
from jaxrnn.streaming.measuring import drawn


def facts_of(path):
    """What a file says of itself, as a program reads it."""
    return json.loads(session(path).get_modelmeta().custom_metadata_map["jaxrnn"])


def lengths_of(graph):
    """The recurrent layers of a graph and its subgraphs whose number of frames is computed, by name."""
    names = []
    for node in graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN") and len(node.input) > 4 and node.input[4]:
            names.append(node.name)
        for each in node.attribute:
            names += lengths_of(each.g) if each.HasField("g") else []
    return names


class ExportedStream:
    """A step and its flush, if there is one, over whole recordings, pulse by pulse.

    Frames that do not exist are NaN, or the least number of their type: whoever reads them is seen.
    """

    def __init__(self, step, flush=None, streams=1):
        for path in (step, flush):
            if path is not None:
                check_well_formed(onnx.load(path))
        self.step, self.facts = session(step), facts_of(step)
        self.flush, self.flush_facts = (None, None) if flush is None else (session(flush), facts_of(flush))
        start = step.with_name(self.facts["files"]["first_state"]) if self.facts["state"] else None
        self.first = {} if start is None else dict(np.load(start))
        if isinstance(self.facts["batch"], str):  # a first axis of any number of streams
            self.first = {name: np.repeat(array, streams, 0) for name, array in self.first.items()}
            for facts in filter(None, (self.facts, self.flush_facts)):
                facts["batch"] = streams
                for each in facts["inputs"]:
                    each["shape"][0] = streams

    def run(self, inputs):
        """The outputs of a recording, by the stepper's names; inputs by the stepper's names."""
        facts = self.facts
        timed = [each for each in facts["inputs"] if each["time_axis"] is not None]
        frames = {each["name"]: each["shape"][each["time_axis"]] for each in timed}
        name, axis = timed[0]["name"], timed[0]["time_axis"]
        total = inputs[name].shape[axis] * facts["pulse"] // frames[name]
        whole = total // facts["pulse"]
        state, pieces = dict(self.first), {each["name"]: [] for each in facts["outputs"]}
        for index in range(whole):
            taken = {
                each["input"]: _part(inputs[each["name"]], each, index * frames.get(each["name"], 0))
                for each in facts["inputs"]
            }
            given = run_session(self.step, {**taken, **state})
            state = {each["input"]: given[each["output"]] for each in facts["state"]}
            for each in facts["outputs"]:
                if each["output"] is not None:
                    pieces[each["name"]].append(given[each["output"]])
        if self.flush is not None:
            self._end(inputs, state, whole, total, frames, pieces)
        return {each["name"]: _joined(pieces[each["name"]], each) for each in facts["outputs"]}

    def _end(self, inputs, state, whole, total, frames, pieces):
        facts = self.flush_facts
        taken = {
            each["input"]: _part(inputs[each["name"]], each, whole * frames.get(each["name"], 0))
            for each in facts["inputs"]
        }
        if facts["valid"] is not None:
            valid = np.int32(total - whole * self.facts["pulse"])
            taken[facts["valid"]] = np.full(() if facts["batch"] is None else (facts["batch"],), valid, np.int32)
        given = run_session(self.flush, {**taken, **state})
        for each in facts["outputs"]:
            array, count = given[each["output"]], facts["counts"].get(each["name"])
            if count is not None:
                (exist,) = set(np.ravel(given[count]).tolist())
                array = array[(slice(None),) * each["time_axis"] + (slice(exist),)]
            pieces[each["name"]].append(array)


def _part(array, each, start):
    """The frames of a pulse, those that do not exist poisoned."""
    axis = each["time_axis"]
    if axis is None:
        return array
    part = np.array(array[(slice(None),) * axis + (slice(start, start + each["shape"][axis]),)])
    widths = [(0, size - have) for size, have in zip(each["shape"], part.shape, strict=True)]
    poison = np.nan if part.dtype.kind == "f" else 0
    return np.pad(part, widths, constant_values=poison)


def _joined(pieces, each):
    axis = each["time_axis"]
    if axis is None:
        return pieces[-1] if pieces else None
    return np.concatenate(pieces, axis)[(slice(None),) * axis + (slice(each["delay"], None),)]


def check_exported(
    function, shape, folder, *, lengths=(1, 6, 11), pulses=(1, 3), tolerance=1e-5, opset=None, **options
):
    """A function of one array with time in front, streamed and written with its flush, equals itself in ONNX Runtime.

    Args:
        function: of one array.
        shape: of the array; the size of the first axis does not matter.
        folder: for the files.
        lengths: recordings to try, in multiples of ``multiple``.
        pulses: in multiples of the smallest.
        tolerance: relative to the largest value, or to 1.
        opset: of the files.
        options: of ``jaxrnn.stream``.
    """
    example = {"x": jax.ShapeDtypeStruct(tuple(shape), np.float32)}
    streamed = jaxrnn.stream(lambda arrays: {"y": function(arrays["x"])}, example, axes=0, pulse=None, **options)
    recordings = [drawn((length * streamed.multiple, *shape[1:]), seed=length) for length in lengths]
    offline = jax.jit(lambda recordings: list(map(function, recordings)))(recordings)
    for pulse in pulses:
        step, flush = folder / f"step_{pulse}.onnx", folder / f"flush_{pulse}.onnx"
        bound = streamed.with_pulse(pulse * streamed.smallest_pulse)
        jaxrnn.export_onnx(bound, None, step, flush=flush, opset=opset)
        exported = ExportedStream(step, flush)
        for x, expected in zip(recordings, offline, strict=True):
            found = exported.run({"x": x})["y"]
            assert_same(found, expected, tolerance, f"{len(x)} frames, pulse {pulse}")
