"""Exported files against what they were made of: over whole recordings, in another engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrnn._files.messages import brief
from jaxrnn.errors import InputError
from jaxrnn.exporting.engine import ExportedFile, read_files, ready_in
from jaxrnn.exporting.reference import Reference, Results, results_of
from jaxrnn.model import Model
from jaxrnn.steps.recordings import recording_specs, time_axis
from jaxrnn.steps.stepper import Stepper
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.comparison import Comparison, compare, tolerances
from jaxrnn.verification.peers import PeerError, candidates
from jaxrnn.verification.sampling import index_limits, random_arrays
from jaxrnn.verification.streams import Check, Offline, awkward_lengths

#: Steps over the longest recording, besides those that the look-ahead and the receptive field take.
LENGTH = 64
#: The most steps that a receptive field takes.
LONGEST = 1024
#: What a file is compared with, besides `jaxrnn.verification.streams.WHOLE`.
STEP = "the steps in jaxrnn"


@brief
@dataclass(frozen=True)
class ExportReport:
    """The result of `verify_export`.

    Attributes:
        label: what was exported.
        engine: what ran the files, and its version.
        notes: why another engine than the first choice was taken.
        flushed: whether recordings were flushed. Otherwise they end with their last whole pulse.
        checks: for each recording, the outputs against those of the stepper, and against those of the function over
            whole recordings where there is one.
    """

    label: str
    engine: str
    notes: tuple[str, ...]
    flushed: bool
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every output of every recording agrees."""
        return all(check.ok for check in self.checks)


def verify_export(
    stepper: Stepper,
    params: Any,
    path: str | os.PathLike[str],
    *,
    flush: str | os.PathLike[str] | None = None,
    offline: Offline | None = None,
    limits: Mapping[str, int] | None = None,
    shortest: int = 1,
    seed: int = 0,
    engine: str = "auto",
) -> ExportReport:
    """Run exported files over random recordings in another engine, and compare.

    Every recording starts from the first state in the file, goes step by step with the state carried by name, and ends
    with the flush, where there is a file of it. The recordings of a stream are of several lengths: shorter than a pulse
    and than the delay, whole pulses, pulses and a tail. Every element must satisfy what `jaxrnn.verification.compare`
    asks for with ``scaled``, at the tolerance of the lowest precision that the file computes in.

    Args:
        stepper: what was exported.
        params: its parameters, as they were exported; None for its own.
        path: the file of the step.
        flush: the file of the flush; by default the one that the step names, beside it.
        offline: the function over whole recordings that the stepper is the stream of; arrays by name.
        limits: for integer inputs by name, what they are below; 2 by default, or the rows that a model indexes.
        shortest: the fewest frames that a recording has.
        seed: of the recordings.
        engine: as of `jaxrnn.verification.verify`; ONNX Runtime with its optimisations.

    Raises:
        InputError: a file is none that `jaxrnn.export_onnx` wrote, the function does not run on the longest recording,
            or every output comes with a flush that there is no file of.
        PeerError: no engine takes the files.
        MissingPackageError: ``engine="ort"`` without ONNX Runtime.
    """
    step_file, flush_file = read_files(Path(path), None if flush is None else Path(flush))
    spec, flushed = step_file.facts.spec, flush_file is not None
    if isinstance(stepper, Model) and limits is None:
        limits = index_limits(stepper)
    total = _total(spec, shortest)
    specs = recording_specs(spec, "frames")
    recordings = random_arrays(specs, {}, dims={"frames": total}, seed=seed, limits=limits).inputs
    lengths = [*(awkward_lengths(spec, total, shortest) if spec.streams else ()), total]
    with jax.default_matmul_precision("highest"):
        reference = Reference(stepper, params, step_file.facts, flushed, offline)
        steps = [reference.step(recordings, length) for length in lengths]
        wholes = [reference.whole(recordings, length) for length in lengths]
    if wholes[-1] is not None and wholes[-1].problem is not None:
        raise InputError(f"nothing to compare with: {wholes[-1].problem}")
    compared = _Comparing([each for each in (step_file, flush_file) if each is not None])
    failures: list[str] = []
    for open_peer in candidates(engine, optimized=True):
        try:
            file, name = ready_in(open_peer, step_file, flush_file)
            results = [results_of(file, recordings, length) for length in lengths]
        except PeerError as error:
            failures.append(str(error))
            continue
        checks = [
            check
            for length, found, step, whole in zip(lengths, results, steps, wholes, strict=True)
            for check in compared.checks(length, found, step, whole)
        ]
        if not any(check.outputs for check in checks):
            raise InputError(f"{spec.label}: nothing to compare: every output comes with the flush; write that, too")
        return ExportReport(spec.label, name, tuple(failures), flushed, tuple(checks))
    raise PeerError(f"{spec.label}: nothing to verify with: {'; '.join(failures)}")


def _total(spec: StepSpec, shortest: int) -> int:
    """The frames of the longest recording: pulses in which every frame that is kept comes to count, and a tail."""
    if not spec.streams:
        return LENGTH
    field = min(spec.receptive_field or 0, LONGEST * spec.pulse)
    pulses = LENGTH + -(-(spec.look_ahead + field) // spec.pulse)
    return max(pulses * spec.pulse + spec.pulse - spec.multiple, -(-shortest // spec.multiple) * spec.multiple)


class _Comparing:
    """How the outputs of files are compared: at the tolerance of the lowest precision that the files compute in."""

    def __init__(self, files: Sequence[ExportedFile]):
        spec = files[0].facts.spec
        self._axes = {each.name: time_axis(spec, each) for each in spec.outputs}
        self._flushed = len(files) > 1
        types = {value.dtype for file in files for node in file.graph.all_nodes() for value in node.outputs}
        floats = [each.numpy() for each in types if each is not None and each.is_floating_point()]
        #: Absolute and relative; of integers they are those of their type.
        self._tolerances = max((tolerances(each, None, None) for each in floats), default=(None, None))

    def checks(self, frames: int, found: Results, step: Results, whole: Results | None) -> Iterator[Check]:
        """The outputs, and the state of a step, against those of the stepper and of the function."""
        yield Check(frames, tuple(self._comparisons(found, step)), against=STEP)
        if whole is not None:
            yield Check(frames, tuple(self._comparisons(found, whole)), whole.problem)

    def _comparisons(self, found: Results, known: Results) -> Iterator[Comparison]:
        for name, expected in known.outputs.items():
            value, axis = found.outputs[name], self._axes[name]
            if not self._flushed:
                if value is None:
                    continue  # it comes after the last whole pulse
                if axis is not None:
                    expected = expected[(slice(None),) * axis + (slice(value.shape[axis]),)]
            yield self._compare(name, value, expected, axis)
        for name, expected in known.state.items():
            yield self._compare(f"state {name}", found.state[name], expected, None)

    def _compare(self, name: str, value: Any, expected: Any, axis: int | None) -> Comparison:
        inexact = expected is not None and jnp.issubdtype(expected.dtype, jnp.inexact)
        atol, rtol = self._tolerances if inexact else (None, None)
        return compare(name, value, expected, atol=atol, rtol=rtol, scaled=True, time_axis=axis)
