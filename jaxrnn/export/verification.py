"""Verification of exported files in a second engine, over whole recordings."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxrnn._files.messages import short_repr
from jaxrnn.comparison import Check, Comparison, Verdict, compare
from jaxrnn.errors import InputError
from jaxrnn.export.engines import ExportedFile, InEngine, engines_of, precision_of, read_pair
from jaxrnn.export.exportable import is_complex, to_pairs
from jaxrnn.model import Model
from jaxrnn.onnx.stepfile import StepFile
from jaxrnn.steps.numpy_step import Run, run
from jaxrnn.steps.recordings import part, recording_specs, time_axis
from jaxrnn.steps.specs import Arrays, ArraySpec
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.arbiter import Arbiter, Whole
from jaxrnn.verification.peers import OpenPeer, candidates, first_to_run
from jaxrnn.verification.running import (
    WHOLE,
    Offline,
    awkward_lengths,
    given_recordings,
    numpy_step,
    offline_outputs,
)
from jaxrnn.verification.sampling import (
    inside_domain,
    integer_ranges,
    random_arrays,
    symbols_of,
    verifiable_inputs,
)

#: Steps over the longest recording, in addition to the look-ahead and the receptive field.
LENGTH = 64
#: The most steps of a receptive field.
LONGEST = 1024
#: The share of elements that may differ by one step of quantisation.
FEW = 0.01
#: The number of elements that may do so in a short recording.
SOME = 20
#: The largest error of dynamic quantisation, as a share of the output (both as root mean squares).
ROUGH = 0.25
#: The numbers of streams with which a file for any number is run.
STREAMS = (1, 3)
_NO_ENGINE = "{}: no engine can run the files"
#: The name of the first reference; the second is `jaxrnn.verification.running.WHOLE`.
STEPS = "the steps in jaxrnn"


@short_repr
@dataclass(frozen=True)
class ExportReport(Verdict):
    """The result of `verify_export`.

    Attributes:
        label: the name of the exported stepper.
        engine: the name and version of the engine that ran the files.
        notes: the reasons why preferred engines were skipped.
        cases: the comparisons of each recording, with the stepper and, if given, with the function over whole
            recordings; ``dims["frames"]`` is the number of frames, or of steps.
        flushed: True if recordings were flushed; otherwise recordings end with the last whole pulse.
        seconds: the median time of a step in the engine, called from Python; None without whole steps.
    """

    flushed: bool
    seconds: float | None = None


def verify_export(
    stepper: Stepper,
    params: Any,
    path: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | None = None,
    flush: str | os.PathLike[str] | None = None,
    offline: Offline | Model | None = None,
    limits: Mapping[str, int | range] | None = None,
    seed: int = 0,
    engine: str = "auto",
) -> ExportReport:
    """Run exported files over recordings in a second engine, and compare.

    Each recording starts from the first state in the file, runs step by step, and ends with the flush if a flush file
    exists. The recordings of a stream have several lengths: shorter than a pulse and than the delay, whole pulses, and
    pulses with a tail. Each element must pass `jaxrnn.verification.compare` with ``scaled``, at the tolerance of the
    lowest precision that the file computes in. An output without a finite element in any recording is a failure. In a
    quantised file, 1 % of the elements, or twenty, may differ by a single step of quantisation; the comparison then has
    a `reason`. In a file with dynamic quantisation, the root mean square of the error must be at most 25 % of the root
    mean square of the output, and the `reason` states the error.

    Args:
        stepper: the exported stepper.
        params: the exported parameters; by default the parameters of the stepper.
        path: the file of the step.
        inputs: a dict of recordings, in the layout of the stepper, or of the file with a recording for each stream of
            the batch. The recordings set the longest length. Missing recordings are random: floats are standard normal
            if the outputs are then finite, and otherwise positive, between 0 and 1, or above 1.
        flush: the file of the flush; by default the file that the step names, in the same folder.
        offline: the model that was streamed, or the function over whole recordings, from a dict of arrays to a dict of
            arrays. With a model, the graph in float64 decides on differences, as in `jaxrnn.verification.verify`.
        limits: for integer inputs, exclusive upper bounds or ranges; by default 0 and 1, or the numbers that the graph
            of a model takes.
        seed: the seed of the recordings.
        engine: the engine, as in `jaxrnn.verification.verify`; by default ONNX Runtime with optimisations.

    Raises:
        InputError: a file was not written by `jaxrnn.export_onnx`, the function does not run on the longest recording,
            or only the flush returns outputs, and the file of the flush is missing.
        PeerError: no engine runs the files.
        MissingPackageError: ``engine="ort"`` without ONNX Runtime.
    """
    offline = Whole(offline, params) if isinstance(offline, Model) else offline
    step_file, flush_file = read_pair(path, flush)
    given = {"inputs": inputs, "offline": offline, "limits": limits, "seed": seed, "engine": engine}
    # A file for any number of streams runs with two numbers.
    counts = STREAMS if isinstance(step_file.facts.batch, str) else STREAMS[:1]
    reports = [
        _verified(stepper, params, step_file.of_streams(count), flush_file and flush_file.of_streams(count), **given)
        for count in counts
    ]
    return dataclasses.replace(reports[0], cases=tuple(case for report in reports for case in report.cases))


def _verified(
    stepper: Stepper, params: Any, step_file: ExportedFile, flush_file: ExportedFile | None, **given: Any
) -> ExportReport:
    """Compare files for a known number of streams; ``given`` are the other arguments of `verify_export`."""
    inputs, offline, limits, seed, engine = (given[each] for each in ("inputs", "offline", "limits", "seed", "engine"))
    spec, flushed = step_file.facts.spec, flush_file is not None
    given = given_recordings(spec, of_batch(stepper.spec, step_file.facts, inputs or {}))
    total = spec.count_frames(given) or _total(spec)
    if limits is None:
        ranges = integer_ranges(stepper, {}) if isinstance(stepper, Model) else {}
    else:
        ranges = {name: limit if isinstance(limit, range) else range(limit) for name, limit in limits.items()}
    specs = recording_specs(spec, "frames")
    dims = {"frames": total} if "frames" in symbols_of(specs) else {}
    draw = functools.partial(random_arrays, specs, given, dims=dims, seed=seed, ranges=ranges)
    lengths = [*(awkward_lengths(spec, total) if spec.streams else ()), total]
    with jax.default_matmul_precision("highest"):
        reference = _JaxReference(stepper, params, step_file.facts, flushed, offline)
        recordings = inside_domain(draw, lambda sample: reference.step(sample.inputs, total).everything).inputs
        steps = [reference.step(recordings, length) for length in lengths]
        wholes = [reference.whole(recordings, length) for length in lengths]
    if wholes[-1] is not None and wholes[-1].problem is not None:
        raise InputError(f"no reference to compare with: {wholes[-1].problem}")
    compared = _Comparing([each for each in (step_file, flush_file) if each is not None])

    def use(open_peer: OpenPeer) -> tuple[InEngine, list[_Outputs]]:
        in_engine = InEngine(open_peer, step_file, flush_file)
        ran = (run(in_engine, recordings, length, flushed=flushed) for length in lengths)
        return in_engine, [_outputs_of(each, spec) for each in ran]

    (in_engine, results), notes = first_to_run(engines_of(step_file, engine), use, _NO_ENGINE.format(spec.label))
    cases = tuple(
        case
        for length, found, step, whole in zip(lengths, results, steps, wholes, strict=True)
        for case in compared.cases(length, found, step, whole, reference.arbiter(recordings, length))
    )
    if not any(case.outputs for case in cases):
        raise InputError(
            f"{spec.label}: only the flush returns outputs, and the export has no file of the flush: export again "
            "with flush"
        )
    seconds = float(np.median(in_engine.seconds)) if in_engine.seconds else None
    return ExportReport(spec.label, in_engine.engine, notes, cases, flushed, seconds)


def of_batch(stepper: StepSpec, facts: StepFile, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat recordings in the layout of a stepper for each stream of a file with a batch."""
    if not isinstance(facts.batch, int) or not _lead(stepper, facts):
        return dict(inputs)
    axis = 0 if facts.spec.streams else 1
    ranks = {each.name: len(each.shape or ()) + axis - is_complex(each) for each in facts.spec.inputs}
    arrays = {name: np.asarray(array) for name, array in inputs.items()}
    return {
        name: np.stack([array] * facts.batch, axis) if array.ndim == ranks.get(name, 0) - 1 else array
        for name, array in arrays.items()
    }


def _total(spec: StepSpec) -> int:
    """Return the length of the longest recording: enough pulses to use all kept frames, and a tail."""
    if not spec.streams:
        return LENGTH
    field = min(spec.receptive_field or 0, LONGEST * spec.pulse)
    pulses = LENGTH + -(-(spec.look_ahead + field) // spec.pulse)
    total = max(pulses * spec.pulse + spec.pulse - spec.multiple, spec.shortest)
    return total if spec.longest is None else min(total, spec.longest)


class _Tolerance:
    """The tolerance of the lowest precision of ``floats``, the types that files compute in."""

    def __init__(self, floats: Iterable[np.dtype], is_rough: bool):
        self._precision = max(floats, key=lambda each: float(jnp.finfo(each).eps), default=None)
        self._is_rough = is_rough
        #: The size of a step of quantisation by the name of the output.
        self.steps: dict[str, float] = {}

    def compare(
        self, name: str, value: Any, expected: Any, axis: int | None = None, arbiter: Arbiter | None = None
    ) -> Comparison:
        inexact = expected is not None and jnp.issubdtype(expected.dtype, jnp.inexact)
        if inexact and value is not None and jnp.issubdtype(value.dtype, jnp.floating):
            expected = np.asarray(expected).astype(value.dtype)  # of an export with dtype
        limits = {"scaled": True, "precision": self._precision}
        found = compare(name, value, expected, time_axis=axis, **limits)
        if not found.differs or found.max_abs is None:
            return found
        if self._is_rough:
            return _rough(found, value, expected)
        if name not in self.steps:
            return found if arbiter is None else arbiter.judge(found, value, expected, ("the file", "jaxrnn"), **limits)
        step = self.steps[name] if inexact else 1.0
        again = compare(name, value, expected, atol=step * (1 + 1e-3), precision=self._precision, time_axis=axis)
        # A wrong file differs in many elements. Values between two integers are rare.
        if again.differs or found.wrong > max(FEW * math.prod(found.shape), SOME):
            return found
        return dataclasses.replace(again, reason=f"within one step of quantisation ({step:.3g}): {found.reason}")


class _Comparing:
    """A comparison of the outputs and the state of files with known ones."""

    def __init__(self, files: Sequence[ExportedFile]):
        spec = files[0].facts.spec
        self._axes = {each.name: time_axis(spec, each) for each in spec.outputs}
        self._flushed = len(files) > 1
        self._tolerance = _Tolerance([each for file in files for each in file.floats], any(f.is_rough for f in files))
        self._facts = files[0].facts
        quantised = self._tolerance.steps
        for file in files:
            for name, step in file.steps.items():
                parts = [f"state {part.name}" for part in self._facts.parts.get(name.removeprefix("state "), ())]
                for each in parts or [name]:
                    quantised[each] = max(step, quantised.get(each, 0.0))

    def cases(
        self, frames: int, found: _Outputs, step: _Outputs, whole: _Outputs | None, arbiter: Arbiter | None
    ) -> Iterator[Check]:
        dims = {"frames": frames}
        yield Check(dims, tuple(self._comparisons(found, step, arbiter)), STEPS)
        if whole is not None:
            yield Check(dims, tuple(self._comparisons(found, whole, arbiter)), WHOLE, whole.problem)

    def _comparisons(self, found: _Outputs, known: _Outputs, arbiter: Arbiter | None) -> Iterator[Comparison]:
        for name, expected in known.outputs.items():
            value, axis = found.outputs[name], self._axes[name]
            if not self._flushed:
                if value is None:
                    continue  # no frame leaves before the last whole pulse
                if axis is not None:
                    expected = expected[(slice(None),) * axis + (slice(value.shape[axis]),)]
            yield self._tolerance.compare(name, value, expected, axis, arbiter)
        state = dict(found.state)
        for name in self._facts.parts:
            if name in state and name not in known.state:
                state |= self._facts.entries(name, state.pop(name))
        for name, expected in known.state.items():
            result = self._tolerance.compare(f"state {name}", state[name], expected)
            if not result.differs and not np.size(expected):
                # The shape is all that an entry without elements has.
                result = dataclasses.replace(result, ok=True, compared=1, reason="without elements")
            yield result


def compare_converted(
    model: Model,
    before: Path,
    after: Path,
    inputs: Mapping[str, Any],
    *,
    dims: Mapping[str, int],
    static: Mapping[str, Any],
    seed: int,
) -> Verdict:
    """Compare the whole graph of a model before and after a change of types."""
    sample = verifiable_inputs(model, inputs, dims=dims, seed=seed).inputs
    arrays = {name: np.asarray(array) for name, array in {**sample, **static}.items()}
    graph = ir.load(after).graph
    types = {value.name: value.dtype.numpy() for value in graph.inputs if value.dtype is not None}
    fed = {name: array for name, array in arrays.items() if name in types}

    def use(open_peer: OpenPeer) -> tuple[str, dict[str, Any], dict[str, Any]]:
        peer = open_peer(after)
        found = peer.run({name: array.astype(types[name]) for name, array in fed.items()})
        return peer.name, found, open_peer(before).run(fed)

    openers, tolerance = candidates("auto", optimized=True), _Tolerance(*precision_of(graph))
    (engine, found, known), notes = first_to_run(openers, use, _NO_ENGINE.format(model.label))
    outputs = tuple(tolerance.compare(name, found[name], expected) for name, expected in known.items())
    return Verdict(model.label, engine, notes, (Check(dims, outputs, "the model"),))


def _rough(found: Comparison, value: Any, expected: Any) -> Comparison:
    """Compare with a value of a dynamically quantised file by the energy of the error, which is reported."""
    here, there = (np.asarray(each, np.float64) for each in (value, expected))
    share = float(np.sqrt(np.mean((here - there) ** 2) / max(np.mean(there**2), np.finfo(np.float32).tiny)))
    if not share <= ROUGH:
        return dataclasses.replace(found, reason=f"the error of quantisation is {share:.1%} of the output")
    below = f"{-20 * np.log10(share):.0f} dB below the output"
    return found.accepted(f"with an error of quantisation of {share:.2%} ({below})")


@dataclass(frozen=True)
class _Outputs:
    """The outputs of a recording from frame 0 on; an output is None before the first frame.

    ``state`` is the state after the last step, and empty for streams. ``problem`` is the reason for missing outputs.
    """

    outputs: dict[str, Any]
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    problem: str | None = None

    @property
    def everything(self) -> dict[str, Any]:
        """A dict of all arrays."""
        return {name: value for name, value in {**self.outputs, **self.state}.items() if value is not None}


def _outputs_of(ran: Run, spec: StepSpec) -> _Outputs:
    return _Outputs(ran.outputs, {} if spec.streams else ran.state)


class _JaxReference:
    """The exported stepper, and the function over whole recordings, in the layout of the files.

    The streams of a batch run in sequence, so that the comparison reveals any influence between streams.
    """

    def __init__(self, stepper: Stepper, params: Any, facts: StepFile, flushed: bool, offline: Offline | None):
        self._offline = offline
        lead = _lead(stepper.spec, facts)
        self._batch = facts.batch if lead and isinstance(facts.batch, int) else None
        self._step = numpy_step(stepper, params, {}, _sizes(stepper.spec, facts, lead))
        self._spec, self._flushed = _in_time(self._step.spec, facts.spec, lead), flushed
        #: The batch axis of a recording, after the axis of stacked frames.
        self._axis = 0 if facts.spec.streams else 1

    def step(self, recordings: Arrays, frames: int) -> _Outputs:
        options = {"spec": self._spec, "flushed": self._flushed}
        ran = [run(self._step, row, frames, **options) for row in self._rows(recordings)]
        rows = [_outputs_of(each, self._spec) for each in ran]
        state = self._joined([row.state for row in rows], 0)
        return _Outputs(self._joined([row.outputs for row in rows], self._axis), state)

    def whole(self, recordings: Arrays, frames: int) -> _Outputs | None:
        if self._offline is None:
            return None
        rows = [offline_outputs(self._offline, self._spec, row, frames) for row in self._rows(recordings)]
        if (problem := rows[0][1]) is not None:
            return _Outputs({}, problem=problem)
        return _Outputs(self._joined([outputs for outputs, _ in rows], self._axis))

    def arbiter(self, recordings: Arrays, frames: int) -> Arbiter | None:
        """Return the arbiter between the file and jaxrnn on a recording of one stream, if the model is known."""
        if self._batch is not None or not isinstance(self._offline, Whole):
            return None
        (row,) = self._rows(recordings)
        return self._offline.arbiter(part(self._spec, row, 0, frames))

    def _rows(self, recordings: Arrays) -> list[dict[str, np.ndarray]]:
        """Return a recording for each stream in the stepper's layout."""
        indices = [None] if self._batch is None else range(self._batch)
        return [
            {each.name: self._row(each, recordings[each.name], index) for each in self._spec.inputs}
            for index in indices
        ]

    def _row(self, each: ArraySpec, array: np.ndarray, index: int | None) -> np.ndarray:
        row = array if index is None else array.take(index, self._axis)
        if is_complex(each):
            return (row[..., 0] + 1j * row[..., 1]).astype(each.dtype)
        return row.astype(each.dtype) if jnp.issubdtype(row.dtype, jnp.floating) else row  # of an export with dtype

    def _joined(self, rows: Sequence[Arrays], axis: int) -> dict[str, Any]:
        return {name: self._of_file([row[name] for row in rows], axis) for name in rows[0]}

    def _of_file(self, arrays: Sequence[Any], axis: int) -> Any:
        """Join the arrays of all streams for an output, in the files' layout."""
        if arrays[0] is None:
            return None
        return to_pairs(arrays[0] if self._batch is None else np.stack(arrays, axis))


def _lead(stepper: StepSpec, facts: StepFile) -> int:
    """Return the number of batch axes that a file adds before the stepper's axes."""
    file = facts.spec
    # The state of a stream can have other entries in the file.
    state = () if facts.parts or stepper.streams else zip(stepper.state, file.state, strict=True)
    pairs = (*zip(stepper.inputs, file.inputs, strict=True), *state)
    leads = (len(there.sizes) - len(here.shape or ()) - is_complex(here) for here, there in pairs)
    return next(leads, 0)


def _in_time(stepper: StepSpec, file: StepSpec, lead: int) -> StepSpec:
    """Return the stepper's spec with the time axes of the file. The stepper can be a model of the step of a stream."""
    if stepper.streams == file.streams:
        return stepper

    def timed(here: Any, there: Any) -> Any:
        axis = None if there.time_axis is None else there.time_axis - lead
        return dataclasses.replace(there, shape=here.shape, dtype=here.dtype, time_axis=axis)

    return dataclasses.replace(
        file,
        inputs=tuple(map(timed, stepper.inputs, file.inputs)),
        outputs=tuple(map(timed, stepper.outputs, file.outputs)),
        state=stepper.state,
        joined=stepper.joined,
    )


def _sizes(stepper: StepSpec, facts: StepFile, lead: int) -> dict[str, int]:
    """Return the sizes of a stepper's open dimensions in the file, after the batch axes."""
    sizes = {}
    inputs = [
        (named, (sized.shape or ())[lead:]) for named, sized in zip(stepper.inputs, facts.spec.inputs, strict=True)
    ]
    # The state of a stream has fixed sizes, and may have other entries in the file.
    own = {each.name for each in stepper.state}
    # A model of a step with a joined state has the same vectors as the file.
    parts = {name: entries for name, entries in facts.parts.items() if name not in own}
    entries = [entry for each in facts.spec.state for entry in parts.get(each.name, (each,))]
    listed = [] if stepper.streams else zip(stepper.state, entries, strict=True)
    state = [(named, (sized.shape or ())[0 if parts else lead :]) for named, sized in listed]
    for named, shape in (*inputs, *state):
        # The file has a further last axis for pairs of complex numbers.
        pairs = zip(named.shape or (), shape, strict=False)
        sizes |= {name: size for name, size in pairs if isinstance(name, str)}
    return sizes
