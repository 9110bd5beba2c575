"""Static quantisation: the inputs of exported files over recordings, and the error of quantised files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxrnn.errors import InputError, UnsupportedError
from jaxrnn.export.engines import ExportedFile, InEngine, engines_of, read_pair
from jaxrnn.export.verification import of_batch
from jaxrnn.steps.numpy_step import run
from jaxrnn.steps.recordings import part
from jaxrnn.steps.specs import Arrays, check_names
from jaxrnn.steps.stepper import missing_parts
from jaxrnn.steps.stepspec import StepSpec
from jaxrnn.verification.peers import Peer
from jaxrnn.verification.running import given_recordings

#: The inputs of all calls of a file, by the kind of the file.
Calls = dict[str, list[dict[str, np.ndarray]]]
#: Arrays with all frames, and the number of frames.
Recording = tuple[dict[str, np.ndarray], int]
#: Recordings, which are dicts of arrays by input: in order, or by name.
Recordings = Iterable[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]

#: The most bytes of the inputs of all calls of a file, which are in memory together.
_MOST = 2**31
#: The steps from one flush to the next.
_EACH = 8


class _Noting:
    """An engine that notes its inputs."""

    def __init__(self, peer: Peer, calls: list[dict[str, np.ndarray]]):
        self.name, self._peer, self._calls, self._bytes = peer.name, peer, calls, 0

    def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        # Frames that do not exist are NaN, which has no place in a range.
        self._calls.append({name: np.asarray(np.nan_to_num(array)) for name, array in feeds.items()})
        self._bytes += sum(each.nbytes for each in self._calls[-1].values())
        if self._bytes > _MOST:
            raise InputError("`Quantization.recordings` gives more than 2 GB of inputs and states: give fewer")
        return self._peer.run(feeds)


class _Watched(InEngine):
    """Files in an engine. The flush also runs during a recording, because a recording of a user may end there."""

    frames = 0

    def begin(self) -> dict[str, np.ndarray]:
        self.frames = 0
        return super().begin()

    def __call__(self, state: Arrays, inputs: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        rest = self.spec.pulse - self.spec.multiple
        if self.flushes and self.frames % (_EACH * self.spec.pulse) == 0 and self.frames + rest >= self.spec.shortest:
            self.rest(state, part(self.spec, inputs, 0, rest), rest)
        self.frames += self.spec.pulse
        return super().__call__(state, inputs)


@dataclass(frozen=True)
class Calibration:
    """Recordings, with the inputs and outputs of float files over the recordings.

    ``outputs`` has a dict for each recording.
    """

    recordings: Sequence[Recording]
    calls: Calls
    outputs: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, stepper: Any, recordings: Recordings, path: Path, flush: Path | None = None) -> Calibration:
        """Run float files over recordings in the layout of a stepper, each from the first state."""
        if missing_parts(stepper):
            raise InputError("`quantize='static'` is for a step or a stream: a function has no recordings")
        files = _pair(path, flush)
        named = recordings.items() if isinstance(recordings, Mapping) else enumerate(recordings)
        checked = [_checked(stepper.spec, files[0], label, each) for label, each in named]
        if not checked:
            raise InputError("`Quantization.recordings` has no recordings: give dicts of arrays by input")
        calls: Calls = {}
        return cls(checked, calls, _outputs(files, checked, calls))

    def errors(self, path: Path, flush: Path | None = None) -> dict[str, float]:
        """Return by how many decibels the error of quantised files is below each float output."""
        found, result = _outputs(_pair(path, flush), self.recordings), {}
        for name in self.outputs[0]:
            pairs = [(here[name], there[name]) for here, there in zip(found, self.outputs, strict=True)]
            flat = [(np.ravel(here), np.ravel(there)) for here, there in pairs if there is not None]
            if not flat or not np.issubdtype(flat[0][1].dtype, np.floating):
                continue
            here, there = (np.concatenate(each).astype(np.float64) for each in zip(*flat, strict=True))
            finite = np.isfinite(there)
            if not np.array_equal(finite, np.isfinite(here)):
                raise UnsupportedError(
                    f"{name!r} is not finite after static quantisation: keep products before it in float with "
                    "`Quantization.exclude`"
                )
            signal, noise = (np.sum(each[finite] ** 2) for each in (there, here - there))
            result[name] = 10 * math.log10(signal / noise) if noise and signal else math.inf if not noise else -math.inf
        return result


def _pair(path: Path, flush: Path | None) -> list[ExportedFile]:
    """Return the files of a step and the flush, for one stream if the number is open."""
    return [each.of_streams(1) for each in read_pair(path, flush) if each is not None]


def _outputs(
    files: Sequence[ExportedFile], recordings: Sequence[Recording], calls: Calls | None = None
) -> list[dict[str, Any]]:
    """Run files over recordings, return the outputs of each, and note the inputs of all calls by kind."""
    open_peer = engines_of(files[0], "ort")[0]
    step, flush = files[0], files[1] if len(files) > 1 else None
    if calls is None:
        in_engine = InEngine(open_peer, step, flush)
    else:
        kinds = {id(file.opened): calls.setdefault(file.facts.kind, []) for file in files}
        in_engine = _Watched(lambda opened: _Noting(open_peer(opened), kinds[id(opened)]), step, flush)
    return [run(in_engine, arrays, frames, flushed=flush is not None).outputs for arrays, frames in recordings]


def _checked(stepper: StepSpec, file: ExportedFile, label: Any, arrays: Any) -> Recording:
    """Return a recording in the layout of a file, and the number of frames."""
    spec = file.facts.spec
    try:
        check_names(spec.inputs, arrays)
        if missing := [each.name for each in spec.inputs if each.name not in arrays]:
            raise InputError(f"missing input {missing[0]!r}")
        given = given_recordings(spec, of_batch(stepper, file.facts, arrays))
        if bad := [name for name, array in given.items() if not np.all(np.isfinite(array))]:
            raise InputError(f"{bad[0]!r} is not finite everywhere")
        if not (frames := spec.count_frames(given)):
            raise InputError("there are no frames")
    except (InputError, ValueError, TypeError) as error:
        raise InputError(f"`Quantization.recordings`, recording {label}: {error}") from error
    return given, frames
